"""The data that a model takes from a tree: allocated, or else as stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from build import safetensors_of
from weightctl import DType, QuantizationEncoding, open_weights
from weightctl.errors import MissingTensorError
from weightctl.weights.tree import allocations_of, find_stored_name

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.weights import WeightData, Weights
    from weightctl.weights.tree import Checkpoint

NUMBERS = np.random.default_rng(0).standard_normal((3, 256), np.float32)


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    path = tmp_path / "model.safetensors"
    tensors = {
        "embed.weight": ("F32", (3, 256), NUMBERS.tobytes()),
        "layers.0.w": ("BF16", (4, 4), np.ones(16, ml_dtypes.bfloat16).tobytes()),
    }
    path.write_bytes(safetensors_of(tensors, {"head.weight": "embed.weight", "format": "pt"}))
    return open_weights(path)


def taken_from(node: Checkpoint) -> WeightData:
    return allocations_of(node).take(node.name, find_stored_name(node))


def test_a_tied_name_may_be_allocated_otherwise(weights: Weights) -> None:
    weights.head.weight.allocate(DType.float16)
    weights.embed.weight.allocate(quantization_encoding=QuantizationEncoding.Q8_0)
    assert taken_from(weights.head.weight).info.encoding.name == "F16"
    assert taken_from(weights.embed.weight).info.encoding.name == "Q8_0"


def test_what_is_taken_is_what_was_allocated_or_else_what_is_stored(weights: Weights) -> None:
    weights.embed.weight.allocate(DType.float16)
    assert taken_from(weights.embed.weight).to_numpy().dtype == np.float16
    assert weights.embed.weight.data().dtype is DType.float32
    taken = taken_from(weights.layers[0].w)
    assert (taken.name, taken.dtype, taken.info) == (
        ("layers.0.w", DType.bfloat16, weights.layers[0].w.info)
    )
    assert taken.to_numpy().tolist() == [[1] * 4] * 4
    with pytest.raises(MissingTensorError):
        taken_from(weights.layers[0])


def test_nothing_that_was_taken_is_kept_in_the_tree(weights: Weights) -> None:
    weights.embed.weight.allocate(DType.float16)
    first, second = (taken_from(weights.embed.weight).to_numpy() for _ in range(2))
    assert not np.shares_memory(first, second)

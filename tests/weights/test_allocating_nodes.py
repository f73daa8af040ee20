"""Which trees and nodes share allocated weights, and which requests are invalid."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from arrays import weights_of
from weightctl import DType, QuantizationEncoding, WeightData, Weights
from weightctl.errors import GraphError
from weightctl.weights.from_arrays import as_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

NUMBERS = np.random.default_rng(0).standard_normal((3, 256), np.float32)


@pytest.fixture
def weights() -> Weights:
    return weights_of({"embed.weight": NUMBERS})


def test_trees_in_memory_give_their_own_numbers() -> None:
    array = np.ones((2, 2), np.float32)
    weights = as_checkpoint({"w": WeightData.from_numpy(array, "w")})
    weights["w"].allocate()
    assert np.shares_memory(np.asarray(weights.allocated_weights["w"]), array)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda weights: pickle.loads(pickle.dumps(weights))]
)
def test_the_copy_of_a_tree_has_allocated_nothing(
    duplicate: Callable[[Any], Any], weights: Weights
) -> None:
    weights.embed.weight.allocate(DType.float16)
    twin = duplicate(weights)
    assert twin.allocated_weights == {}
    assert twin.embed.weight.allocate().dtype is DType.float32
    assert twin.embed.weight.data().to_numpy().tolist() == NUMBERS.tolist()


def test_nodes_of_one_tree_know_what_was_allocated_by_any(weights: Weights) -> None:
    weight = copy.copy(weights).embed.weight.allocate()
    assert weights.embed.weight.allocate() is weight


@pytest.mark.parametrize(
    "asked",
    [{"quantization_encoding": 8}, {"device": "cpu"}, {"device": None}],
    ids=str,
)
def test_what_is_not_an_encoding_or_device_is_refused(
    asked: dict[str, Any], weights: Weights
) -> None:
    ((word, _),) = asked.items()
    with pytest.raises(GraphError, match="for example") as error:
        weights.embed.weight.allocate(**asked)
    assert f"{word} must be a " in str(error.value)
    assert not weights.allocated_weights


def test_an_encoding_is_taken_by_its_name(weights: Weights) -> None:
    weight = weights.embed.weight.allocate(quantization_encoding="q8_0")
    assert weight.quantization_encoding is QuantizationEncoding.Q8_0
    with pytest.raises(
        TypeError, match="'Q9_0' is not a block encoding; use a QuantizationEncoding"
    ):
        weights.embed.weight.allocate(quantization_encoding="Q9_0")


@pytest.mark.parametrize("dtype", ["float16", "f16", np.float16, np.dtype("f2"), torch.float16])
def test_a_dtype_is_taken_in_any_spelling(dtype: Any, weights: Weights) -> None:
    assert weights.embed.weight.allocate(dtype).dtype is DType.float16


def test_what_is_not_a_dtype_is_refused(weights: Weights) -> None:
    with pytest.raises(TypeError, match="'float31' is not a dtype; use a DType"):
        weights.embed.weight.allocate("float31")
    assert not weights.allocated_weights

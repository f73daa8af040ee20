"""The hint for an unknown family does not lead to a model that computes something else."""

from __future__ import annotations

from typing import Any

import small_models
from weightctl.dtype import ENCODINGS
from weightctl.families.nearest import describe_nearest
from weightctl.weights.info import TensorInfo


def nearest(**document: Any) -> str:
    """Return the hint for a model with the tensors of a llama, and these keys."""
    arrays = small_models.arrays(small_models.llama())
    infos = [TensorInfo(name, each.shape, ENCODINGS["F32"]) for name, each in arrays.items()]
    return describe_nearest(infos, "hugging_face", {"model_type": "lama", **document})


def test_a_key_that_the_nearest_family_does_not_read_is_named() -> None:
    said = nearest(num_hidden_layers=2, residual_factor=0.5)
    assert "the closest is llama, which has 12 of the 12" in said
    assert "but does not read `residual_factor` of the config" in said


def test_the_nearest_family_is_one_that_reads_the_keys() -> None:
    said = nearest(residual_multiplier=0.5)
    assert "the closest is granite, which has 12 of the 12" in said
    assert said.endswith("supports all keys of its config")


def test_a_key_that_says_nothing_is_not_named() -> None:
    assert nearest(use_windows=False, window=None, initializer_range=0.02).endswith(
        "(layer numbers are ignored)"
    )

"""Rotations that GGUF tells by tensors, made of a config and found in one again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama import LlamaConfig
from transformers.models.phi3 import Phi3Config

from each import each
from weightctl.errors import ArchitectureError, GraphError
from weightctl.families.rope_factors import (
    llama3_scaling,
    long_factors,
    rope_factors,
    short_factors,
    with_llama3,
)
from weightctl.families.rope_scaling import RopeScaling, inverse_frequencies


@dataclass
class Rotations:
    """What of a config matters here."""

    rope_base: float
    rope_dimensions: int
    rope_scaling: RopeScaling | None


def llama3(base: float, dimensions: int, factor: float, *rest: float) -> Rotations:
    original, low, high = rest
    scaling = RopeScaling(
        kind="llama3",
        factor=factor,
        original_context=int(original),
        low_frequency_factor=low,
        high_frequency_factor=high,
    )
    return Rotations(base, dimensions, scaling)


LLAMA3 = [
    (500000.0, 128, 8.0, 8192, 1.0, 4.0),
    (500000.0, 64, 32.0, 8192, 1.0, 4.0),
    (1000000.0, 128, 8.0, 4096, 1.0, 32.0),
    (10000.0, 64, 4.0, 300, 2.0, 5.5),
    (10000.0, 16, 8.0, 64, 1.0, 4.0),
    # No pair turns at a speed between.
    (10000.0, 8, 8.0, 32, 1.0, 4.0),
]


@each("case", LLAMA3, ids=str)
def test_factors_stretch_rotations_as_transformers_does(case: tuple[float, ...]) -> None:
    base, dimensions, factor, original, low, high = case
    config = LlamaConfig(
        head_dim=int(dimensions),
        max_position_embeddings=1 << 20,
        rope_parameters={
            "rope_type": "llama3", "rope_theta": base, "factor": factor, "low_freq_factor": low,
            "high_freq_factor": high, "original_max_position_embeddings": int(original),
        },
    )  # fmt: skip
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
    factors = rope_factors(llama3(*case))  # type: ignore[arg-type]
    assert factors is not None
    assert factors.dtype == np.float32
    plain = inverse_frequencies(int(dimensions), base)
    assert plain / factors == pytest.approx(expected.numpy(), rel=1e-6)


def test_factors_are_those_of_llama_cpps_own_rule() -> None:
    # As its `convert_hf_to_gguf.py` has it, pair by pair.
    base, dimensions, factor, original, low, high = LLAMA3[0]
    expected: list[Any] = []
    for frequency in 1.0 / base ** (
        torch.arange(0, dimensions, 2, dtype=torch.float32) / dimensions
    ):
        wavelength = 2 * math.pi / frequency
        smooth = (original / wavelength - low) / (high - low)
        is_fast, is_slow = wavelength < original / high, wavelength > original / low
        between = 1 / ((1 - smooth) / factor + smooth)
        expected.append(1 if is_fast else factor if is_slow else between)
    found = rope_factors(llama3(*LLAMA3[0]))  # type: ignore[arg-type]
    assert found == pytest.approx(np.array(expected, np.float32), rel=1e-6)


@each("says_context", [True, False])
@each("case", LLAMA3, ids=str)
def test_factors_tell_the_scaling_that_they_were_made_of(
    case: tuple[float, ...], says_context: bool
) -> None:
    config = llama3(*case)  # type: ignore[arg-type]
    base, dimensions, factor, original, low, high = case
    found = llama3_scaling(
        rope_factors(config),  # type: ignore[arg-type]
        base,
        int(dimensions),
        1 << 20,
        int(original) if says_context else None,
    )
    assert found["scaling.kind"] == "llama3"
    assert found["scaling.factor"] == factor
    # Without the context only its ratio to the others is known, and 1 is the usual lowest.
    scale = 1 if says_context else low
    assert found["scaling.original_context"] * scale == original
    assert found["scaling.low_frequency_factor"] * scale == low
    assert found["scaling.high_frequency_factor"] * scale == high


def test_factors_of_1_are_not_a_scaling() -> None:
    found = llama3_scaling(np.ones(8, np.float32), 10000.0, 16, 2048)
    assert found["scaling.kind"] is None


@each(
    "factors, message",
    [
        (
            np.ones(7, np.float32),
            r"`rope_freqs\.weight` has 7 values, but there are 8 pairs",
        ),
        (np.full(8, np.nan, np.float32), "that is less than 1 or not finite"),
        (np.full(8, np.inf, np.float32), "that is less than 1 or not finite"),
        (np.full(8, 0.5, np.float32), "that is less than 1 or not finite"),
        (np.full(8, -1.0, np.float32), "that is less than 1 or not finite"),
        (
            np.arange(8, 0, -1).astype(np.float32),
            "does not match llama3 scaling",
        ),
        (
            np.array([1, 1, 1, 3, 2, 9, 9, 9], np.float32),
            "does not match llama3 scaling",
        ),
    ],
)
@each("base", [10000.0, 1.0, 1e12])
def test_factors_of_no_llama3_scaling_are_refused(factors: Any, message: str, base: float) -> None:
    fields = {
        "scaling.kind": "linear", "scaling.factor": 0.0, "scaling.original_context": 2048,
        "rope_base": base, "rope_dimensions": 16, "context": 2048,
    }  # fmt: skip
    with pytest.raises(ArchitectureError, match=message):
        with_llama3(fields, factors)


def test_factors_beside_another_scaling_are_refused() -> None:
    fields = {"scaling.kind": "linear", "scaling.factor": 4.0}
    with pytest.raises(ArchitectureError, match="and a metadata key"):
        with_llama3(fields, np.ones(8, np.float32))


SHORT = tuple(1 + n / 64 for n in range(48))
LONG = tuple(2.0 + n for n in range(48))


def longrope(**changes: Any) -> RopeScaling:
    given: dict[str, Any] = {
        "kind": "longrope", "factor": 32.0, "original_context": 4096, "short_factors": SHORT,
        "long_factors": LONG,
    }  # fmt: skip
    return RopeScaling(**given | changes)


@each("length", [1, 4096, 4097])
@each("attention_factor", [None, 1.25])
def test_longrope_turns_pairs_as_transformers_does(
    length: int, attention_factor: float | None
) -> None:
    config = Phi3Config(
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": list(SHORT),
            "long_factor": list(LONG), "attention_factor": attention_factor,
        },
    )  # fmt: skip
    expected, amplitude = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)
    scaling = longrope(attention_factor=attention_factor)
    found = inverse_frequencies(96, 10000.0, scaling, length)
    assert found == pytest.approx(expected.numpy(), rel=1e-6)
    assert scaling.amplitude == pytest.approx(amplitude)


def test_longropes_factors_are_tensors_of_float32() -> None:
    config: Any = Rotations(10000.0, 96, longrope())
    short, long = short_factors(config), long_factors(config)
    assert short is not None
    assert long is not None
    assert (short.dtype, long.dtype) == (np.float32, np.float32)
    assert (short.tolist(), long.tolist()) == (list(SHORT), list(LONG))
    assert rope_factors(config) is None


def test_without_scaling_there_are_no_factors() -> None:
    config: Any = Rotations(10000.0, 96, None)
    assert rope_factors(config) is short_factors(config) is long_factors(config) is None


def test_longrope_with_factors_for_other_pairs_is_refused() -> None:
    with pytest.raises(GraphError, match="48 factors for 32 pairs"):
        inverse_frequencies(64, 10000.0, longrope())

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch_layers import difference, numbers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.cohere.modeling_cohere import apply_rotary_pos_emb as interleaved
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from each import each
from runs import run
from weightctl.errors import GraphError
from weightctl.families.rope_scaling import inverse_frequencies
from weightctl.graph import ops
from weightctl.nn import FrequencyFactors, Module, RopeScaling, RotaryEmbedding

if TYPE_CHECKING:
    from weightctl.graph import Value

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
SCALINGS = {
    "linear": ({"rope_type": "linear", "factor": 4.0}, RopeScaling(kind="linear", factor=4.0)),
    "llama3": (LLAMA3, RopeScaling(kind="llama3", factor=8.0, original_context=8192)),
    "llama3-steep": (
        LLAMA3 | {"factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
        RopeScaling(
            kind="llama3",
            factor=32.0,
            original_context=8192,
            low_frequency_factor=2.0,
            high_frequency_factor=8.0,
        ),
    ),
    "yarn": (YARN, RopeScaling(kind="yarn", factor=4.0, original_context=4096)),
    "yarn-whole": (
        YARN | {"truncate": False, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 0.8},
        RopeScaling(
            kind="yarn",
            factor=4.0,
            original_context=4096,
            truncate=False,
            beta_fast=20.0,
            beta_slow=2.0,
            attention_factor=0.8,
        ),
    ),
    "yarn-mscale": (
        YARN | {"mscale": 1.0, "mscale_all_dim": 0.7},
        RopeScaling(kind="yarn", factor=4.0, original_context=4096, mscale=1.0, mscale_all_dim=0.7),
    ),
}


def config(parameters: dict[str, object], head_dim: int, base: float) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=16384,
        rope_parameters={"rope_theta": base, **parameters},
    )


class Rotated(Module):
    """Numbers rotated by the angles of their positions, 0 to seq - 1."""

    def __init__(self, rotary: RotaryEmbedding, *, interleaved: bool = False) -> None:
        self.rotary = rotary
        self.interleaved = interleaved

    def __call__(self, x: Value, positions: Value) -> Value:
        cos, sin = self.rotary(positions)
        return ops.rope(x, cos, sin, interleaved=self.interleaved)


@each("base", [500.0, 10000.0, 500000.0])
@each("dimensions", [32, 128])
@each("name", SCALINGS)
def test_scaled_frequencies_are_those_of_transformers(
    name: str, dimensions: int, base: float
) -> None:
    parameters, scaling = SCALINGS[name]
    theirs, amplitude = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
        config(parameters, dimensions, base)
    )
    ours = inverse_frequencies(dimensions, base, scaling)
    assert ours.dtype == np.float32
    # A few units in the last place: torch rounds powers otherwise, and each processor its own way.
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
    assert scaling.amplitude == pytest.approx(amplitude, rel=1e-12)


@each("base", [10000.0, 500000.0])
def test_frequencies_without_scaling_are_those_of_transformers(base: float) -> None:
    theirs = LlamaRotaryEmbedding(config({"rope_type": "default"}, 64, base)).inv_freq
    ours = inverse_frequencies(64, base)
    np.testing.assert_array_max_ulp(ours, theirs.numpy(), maxulp=1)


@each("base", [10000.0, 500000.0])
def test_frequencies_without_scaling_are_exact_to_the_last_place(base: float) -> None:
    exact = np.float64(base) ** (-np.arange(32) / 32)
    ours = inverse_frequencies(64, base)
    np.testing.assert_array_max_ulp(ours, exact.astype(np.float32), maxulp=1)


@each("name", [None, *SCALINGS])
def test_rotated_heads_are_those_of_transformers(name: str) -> None:
    parameters, scaling = SCALINGS[name] if name else ({"rope_type": "default"}, None)
    x, positions = numbers(2, 3, 40, 32), torch.arange(40)
    cos, sin = LlamaRotaryEmbedding(config(parameters, 32, 10000.0))(x, positions[None])
    theirs, _ = apply_rotary_pos_emb(x, x, cos, sin)
    ours = run(Rotated(RotaryEmbedding(32, 10000.0, scaling)), x, positions)
    assert difference(ours, theirs) < 1e-5


def test_positions_need_not_start_at_zero() -> None:
    x, positions = numbers(1, 1, 4, 32), torch.tensor([900, 3, 50, 51])
    cos, sin = LlamaRotaryEmbedding(config({"rope_type": "default"}, 32, 10000.0))(
        x, positions[None]
    )
    theirs, _ = apply_rotary_pos_emb(x, x, cos, sin)
    assert difference(run(Rotated(RotaryEmbedding(32)), x, positions), theirs) < 1e-4


def test_interleaved_rotation_turns_neighbors() -> None:
    x, positions = numbers(2, 3, 10, 16), torch.arange(10)
    angles = positions[:, None] * torch.from_numpy(inverse_frequencies(16, 10000.0))
    angles = angles.repeat_interleave(2, dim=-1)[None]
    theirs, _ = interleaved(x, x, angles.cos(), angles.sin())
    ours = run(Rotated(RotaryEmbedding(16), interleaved=True), x, positions)
    assert difference(ours, theirs) < 1e-5


def test_numbers_beyond_the_rotated_dimensions_stay() -> None:
    x, positions = numbers(2, 3, 10, 24), torch.arange(10)
    ours = run(Rotated(RotaryEmbedding(16)), x, positions)
    whole = run(Rotated(RotaryEmbedding(16)), x[..., :16].contiguous(), positions)
    assert torch.equal(ours[..., 16:], x[..., 16:])
    assert torch.equal(ours[..., :16], whole)


def test_frequency_factors_divide_the_frequencies() -> None:
    class Angles(Module):
        def __init__(self) -> None:
            self.rotary = RotaryEmbedding(8)
            self.factors = FrequencyFactors(4)

        def __call__(self, positions: Value) -> Value:
            return self.rotary(positions, factors=self.factors())[1]

    factors = torch.tensor([1.0, 2.0, 4.0, 8.0])
    layer = Angles()
    layer.load_state_dict({"factors.weight": factors})
    expected = torch.sin(
        torch.arange(5)[:, None] * (torch.from_numpy(inverse_frequencies(8, 10000.0)) / factors)
    )
    assert difference(run(layer, torch.arange(5)), expected) < 1e-6


def test_bfloat16_heads_are_rotated_by_exact_angles() -> None:
    x, positions = numbers(1, 1, 2, 8), torch.tensor([3001, 3003])
    exact = run(Rotated(RotaryEmbedding(8)), x.bfloat16().float(), positions)
    ours = run(Rotated(RotaryEmbedding(8)), x.bfloat16(), positions)
    assert torch.equal(ours, exact.bfloat16())


def test_an_unknown_scaling_is_refused() -> None:
    with pytest.raises(GraphError, match="`ntk` is not a supported RoPE scaling"):
        RopeScaling(kind="ntk", factor=2.0)


@each("kind", ["llama3", "yarn"])
def test_a_scaling_without_its_original_context_is_refused(kind: str) -> None:
    with pytest.raises(GraphError, match="original_context"):
        RopeScaling(kind=kind, factor=2.0)


def test_a_scaling_by_zero_is_refused() -> None:
    with pytest.raises(GraphError, match="a RoPE scaling factor of 0 is not valid"):
        RopeScaling(kind="linear", factor=0.0)

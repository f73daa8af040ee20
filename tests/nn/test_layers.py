"""Layers, and the angles of RoPE, against torch and transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import LazyModule, torch, transformers
from rows import in_blocks
from runs import run
from torch_layers import difference, numbers, seeded, taken
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import GraphError
from weightctl.families.rope_factors import inverse_frequencies
from weightctl.graph import ops
from weightctl.nn import FrequencyFactors, Module, RopeScaling, RotaryEmbedding
from weightctl.nn.attention import Attention
from weightctl.nn.embedding import Embedding
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import MLP, GatedMLP
from weightctl.nn.models.stream_decoder import StreamProjection
from weightctl.nn.norm import LayerNorm, RMSNorm

if TYPE_CHECKING:
    from weightctl.graph import Value
    from weightctl.weights import WeightData

activations: Any = LazyModule("transformers.activations")
modeling_rope_utils: Any = LazyModule("transformers.modeling_rope_utils")
modeling_bert: Any = LazyModule("transformers.models.bert.modeling_bert")
modeling_cohere: Any = LazyModule("transformers.models.cohere.modeling_cohere")
modeling_gemma2: Any = LazyModule("transformers.models.gemma2.modeling_gemma2")
modeling_gpt2: Any = LazyModule("transformers.models.gpt2.modeling_gpt2")
modeling_llama: Any = LazyModule("transformers.models.llama.modeling_llama")
modeling_qwen3: Any = LazyModule("transformers.models.qwen3.modeling_qwen3")
pytorch_utils: Any = LazyModule("transformers.pytorch_utils")


HEADS = {"self_attn.": "", "_proj": "", "query": "q", "key": "k", "value": "v"}
FUSED = {"c_attn": "qkv", "c_proj": "o"}
LLAMA = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
    "attn_implementation": "eager",
}  # fmt: skip


class WithPositions(Module):
    """Attention whose queries and keys are rotated."""

    def __init__(self, attention: Attention, dimensions: int) -> None:
        self.attention = attention
        self.rope = RotaryEmbedding(dimensions)

    def __call__(self, x: Value, positions: Value) -> Value:
        return self.attention(x, *self.rope(positions))


def causal_mask(seq: int, window: int | None = None) -> torch.Tensor:
    seen = torch.ones(seq, seq, dtype=torch.bool).tril()
    if window is not None:
        seen &= ~torch.ones(seq, seq, dtype=torch.bool).tril(-window)
    return torch.zeros(seq, seq).masked_fill(~seen, -torch.inf)[None, None]


def compared(
    theirs: torch.nn.Module, ours: Attention, config: Any, *, window: int | None = None
) -> float:
    """How far our rotated attention is from that of a transformers module on the same weights."""
    seeded(theirs)
    ours.load_state_dict(taken(theirs, HEADS))
    x, positions = numbers(2, 9, config.hidden_size), torch.arange(9)
    rotation = modeling_llama.LlamaRotaryEmbedding(config)(x, positions[None])
    with torch.no_grad():
        expected, _ = theirs(x, position_embeddings=rotation, attention_mask=causal_mask(9, window))
    return difference(run(WithPositions(ours, config.head_dim), x, positions), expected)


@each("bias", [False, True])
def test_linear_gives_what_torch_gives(bias: bool) -> None:
    theirs = seeded(torch.nn.Linear(12, 20, bias=bias))
    ours = Linear(12, 20, bias=bias)
    ours.load_state_dict(taken(theirs))
    x = numbers(2, 3, 12)
    assert difference(run(ours, x), theirs(x).detach()) < 1e-5


def test_a_transposed_linear_is_a_conv1d() -> None:
    theirs = seeded(pytorch_utils.Conv1D(20, 12))
    ours = Linear(12, 20, bias=True, transposed=True)
    ours.load_state_dict(taken(theirs))
    x = numbers(2, 3, 12)
    assert difference(run(ours, x), theirs(x).detach()) < 1e-5


def test_weights_of_another_dtype_are_cast_to_that_of_the_activations() -> None:
    theirs = seeded(torch.nn.Linear(12, 20)).bfloat16()
    ours = Linear(12, 20, bias=True, dtype=DType.bfloat16)
    ours.load_state_dict(taken(theirs))
    x = numbers(3, 12)
    expected = theirs.float()(x).detach()
    assert difference(run(ours, x), expected) < 1e-5


def test_activations_keep_their_dtype_whatever_the_weights_are_stored_in() -> None:
    theirs = seeded(torch.nn.Linear(12, 20))
    ours = Linear(12, 20, bias=True)
    ours.load_state_dict(taken(theirs))
    x = numbers(3, 12, dtype=torch.bfloat16)
    assert difference(run(ours, x), theirs.bfloat16()(x).detach()) < 0.05


@each("dtype", [torch.float32, torch.bfloat16])
@each("name", ["Q8_0", "Q4_K"])
def test_a_quantized_linear_equals_the_dequantized_one(name: str, dtype: torch.dtype) -> None:
    blocks, dequantized = quantized(name, 20, 256)
    ours = Linear(256, 20, quantization_encoding=QuantizationEncoding[name])
    ours.load_state_dict({"weight": blocks})
    plain = Linear(256, 20)
    plain.load_state_dict({"weight": dequantized})
    x = numbers(3, 256, dtype=dtype)
    if dtype is torch.bfloat16:
        assert torch.equal(run(ours, x), run(plain, x))
    else:  # the order of additions is another
        expected = run(plain, x)
        assert difference(run(ours, x), expected) < 1e-6 * float(expected.abs().max())


def test_a_quantized_linear_may_have_a_bias() -> None:
    blocks, dequantized = quantized("Q8_0", 20, 64)
    ours = Linear(64, 20, bias=True, quantization_encoding=QuantizationEncoding.Q8_0)
    bias = numbers(20, seed=5)
    ours.load_state_dict({"weight": blocks, "bias": bias})
    x = numbers(3, 64)
    expected = x @ torch.from_numpy(dequantized).T + bias
    assert difference(run(ours, x), expected) < 1e-4


def quantized(name: str, rows: int, columns: int) -> tuple[WeightData, np.ndarray]:
    """Random weights in blocks, and the numbers that those blocks hold."""
    return in_blocks(numbers(rows, columns).numpy(), QuantizationEncoding[name])


def test_embedding_gives_the_rows_that_integers_point_at() -> None:
    table, ids = numbers(10, 6), torch.tensor([[3, 0, 9], [3, 3, 1]])
    layer = Embedding(10, 6)
    layer.load_state_dict({"weight": table})
    assert torch.equal(run(layer, ids), table[ids])


def test_embedding_gives_rows_in_the_dtype_asked_for() -> None:
    table, ids = numbers(10, 6), torch.tensor([3, 0, 9])
    layer = Embedding(10, 6)
    layer.load_state_dict({"weight": table})
    assert torch.equal(run(layer, ids, dtype=DType.bfloat16), table[ids].bfloat16())


def test_a_quantized_embedding_gives_the_numbers_of_its_blocks() -> None:
    blocks, held = quantized("Q8_0", 10, 64)
    layer = Embedding(10, 64, quantization_encoding=QuantizationEncoding.Q8_0)
    layer.load_state_dict({"weight": blocks})
    ids = torch.tensor([[9, 2]])
    assert torch.equal(run(layer, ids), torch.from_numpy(held)[ids])


@each("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm_is_that_of_llama(dtype: torch.dtype) -> None:
    theirs = seeded(modeling_llama.LlamaRMSNorm(16, eps=1e-5))
    ours = RMSNorm(16, 1e-5)
    ours.load_state_dict(taken(theirs))
    x = numbers(2, 3, 16, dtype=dtype)
    expected = theirs.to(dtype)(x).detach()
    assert difference(run(ours, x), expected) < (1e-5 if dtype is torch.float32 else 0.03)


def test_rms_norm_with_an_offset_is_that_of_gemma() -> None:
    theirs = seeded(modeling_gemma2.Gemma2RMSNorm(16, eps=1e-6))
    ours = RMSNorm(16, 1e-6, offset=1.0)
    ours.load_state_dict(taken(theirs))
    x = numbers(2, 3, 16)
    assert difference(run(ours, x), theirs(x).detach()) < 1e-5


def test_the_epsilon_of_rms_norm_bounds_what_small_numbers_grow_to() -> None:
    layer = RMSNorm(4, 1.0)
    layer.load_state_dict({"weight": torch.ones(4)})
    x = torch.full((1, 4), 1e-3)
    assert difference(run(layer, x), x) < 1e-8


@each("bias", [False, True])
def test_layer_norm_is_that_of_torch(bias: bool) -> None:
    theirs = seeded(torch.nn.LayerNorm(16, eps=1e-3, bias=bias))
    ours = LayerNorm(16, 1e-3, bias=bias)
    ours.load_state_dict(taken(theirs))
    x = numbers(2, 3, 16) + 3
    assert difference(run(ours, x), theirs(x).detach()) < 1e-5


@each(
    "name, theirs",
    [("silu", "silu"), ("gelu", "gelu"), ("gelu_tanh", "gelu_new"), ("relu", "relu")],
)
@each("bias", [False, True])
def test_a_gated_mlp_is_that_of_llama(bias: bool, name: str, theirs: str) -> None:
    config = transformers.LlamaConfig(**LLAMA, hidden_act=theirs, mlp_bias=bias)
    module = seeded(modeling_llama.LlamaMLP(config))
    ours = GatedMLP(32, 48, name, bias=bias)
    ours.load_state_dict(taken(module, {"_proj": ""}))
    x = numbers(2, 3, 32)
    assert difference(run(ours, x), module(x).detach()) < 1e-4


def test_an_mlp_is_that_of_gpt2() -> None:
    module = seeded(modeling_gpt2.GPT2MLP(48, transformers.GPT2Config(n_embd=32)))
    ours = MLP(32, 48, "gelu_tanh", transposed=True)
    ours.load_state_dict(taken(module, {"c_fc": "up", "c_proj": "down"}))
    x = numbers(2, 3, 32)
    assert difference(run(ours, x), module(x).detach()) < 1e-4


def test_an_mlp_of_torch_linears_has_the_exact_gelu() -> None:
    up, down = seeded(torch.nn.Linear(8, 16)), seeded(torch.nn.Linear(16, 8), 1)
    ours = MLP(8, 16, "gelu")
    names = {"up": up, "down": down}
    ours.load_state_dict(
        {f"{name}.{key}": part for name, m in names.items() for key, part in taken(m).items()}
    )
    x = numbers(3, 8)
    assert difference(run(ours, x), down(activations.ACT2FN["gelu"](up(x))).detach()) < 1e-5


def test_an_unknown_activation_is_refused_with_the_known_ones() -> None:
    with pytest.raises(GraphError, match=r"`swiglu`(.|\n)*silu, gelu, gelu_tanh"):
        GatedMLP(8, 16, "swiglu")


@each("bias", [False, True])
@each("head_dim", [8, 16])
@each("kv_heads", [1, 2, 4])
def test_attention_with_grouped_heads_is_that_of_llama(
    kv_heads: int, head_dim: int, bias: bool
) -> None:
    sizes = LLAMA | {"num_key_value_heads": kv_heads}
    config = transformers.LlamaConfig(**sizes, head_dim=head_dim, attention_bias=bias)
    ours = Attention(32, 4, kv_heads=kv_heads, head_dim=head_dim, bias=bias)
    assert compared(modeling_llama.LlamaAttention(config, 0), ours, config) < 1e-4


def test_attention_with_norms_of_queries_and_keys_is_that_of_qwen3() -> None:
    config = transformers.Qwen3Config(**LLAMA, head_dim=8, rms_norm_eps=1e-6)
    ours = Attention(32, 4, kv_heads=2, norm_epsilon=1e-6)
    assert compared(modeling_qwen3.Qwen3Attention(config, 0), ours, config) < 1e-4


def test_attention_with_bounded_scores_in_a_window_is_that_of_gemma2() -> None:
    config = transformers.Gemma2Config(
        **LLAMA, head_dim=8, query_pre_attn_scalar=16, attn_logit_softcapping=2.0
    )
    ours = Attention(32, 4, kv_heads=2, window=3, softcap=2.0, scale=0.25)
    assert compared(modeling_gemma2.Gemma2Attention(config, 0), ours, config, window=3) < 1e-4


@each("transposed", [True, False])
def test_attention_with_a_fused_projection_is_that_of_gpt2(transposed: bool) -> None:
    config = transformers.GPT2Config(n_embd=32, n_head=4, attn_implementation="eager")
    theirs = seeded(modeling_gpt2.GPT2Attention(config, layer_idx=0))
    ours = Attention(32, 4, bias=True, fused=True, transposed=transposed)
    weights = taken(theirs, FUSED)
    if not transposed:
        weights = {n: w.T.contiguous() if w.ndim == 2 else w for n, w in weights.items()}
    ours.load_state_dict(weights)
    x = numbers(2, 9, 32)
    with torch.no_grad():
        expected, _ = theirs(x, attention_mask=causal_mask(9))
    assert difference(run(ours, x), expected) < 1e-4


def test_attention_in_both_directions_sees_what_its_mask_lets_it() -> None:
    config = transformers.BertConfig(
        hidden_size=32, num_attention_heads=4, attn_implementation="eager"
    )
    theirs = seeded(modeling_bert.BertSelfAttention(config))
    ours = Attention(32, 4, bias=True, output_bias=False, causal=False)
    ours.load_state_dict(taken(theirs, HEADS) | {"o.weight": torch.eye(32)})
    x = numbers(2, 5, 32)
    seen = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)[:, None, None]
    added = torch.zeros(2, 1, 1, 5).masked_fill(~seen, -torch.inf)
    with torch.no_grad():
        expected, _ = theirs(x, attention_mask=added)
    for mask in (seen, added):
        assert difference(run(Masked(ours), x, mask), expected) < 1e-4


class Masked(Module):
    def __init__(self, attention: Attention) -> None:
        self.attention = attention

    def __call__(self, x: Value, mask: Value) -> Value:
        return self.attention(x, mask=mask)


@each("kv_heads", [0, 3, 8])
def test_heads_that_cannot_be_shared_evenly_are_refused(kv_heads: int) -> None:
    with pytest.raises(
        GraphError, match=f"4 query heads cannot be divided evenly among {kv_heads} KV heads"
    ):
        Attention(32, 4, kv_heads=kv_heads)


def test_features_that_heads_do_not_divide_are_refused() -> None:
    with pytest.raises(GraphError, match="34 features cannot be divided evenly among 4 heads"):
        Attention(34, 4)


def test_the_weights_of_a_layer_are_named_by_their_attributes() -> None:
    whole = Attention(8, 2, bias=True, output_bias=False, norm_epsilon=1e-6)
    assert sorted(whole.raw_state_dict()) == [
        "k.bias", "k.weight", "k_norm.weight", "o.weight",
        "q.bias", "q.weight", "q_norm.weight", "v.bias", "v.weight",
    ]  # fmt: skip
    fused = Attention(8, 2, bias=True, fused=True)
    assert sorted(fused.raw_state_dict()) == ["o.bias", "o.weight", "qkv.bias", "qkv.weight"]
    assert sorted(GatedMLP(8, 16, "silu").raw_state_dict()) == [
        "down.weight", "gate.weight", "up.weight",
    ]  # fmt: skip


def test_an_input_of_the_wrong_width_is_refused_with_both_shapes() -> None:
    layer = Linear(12, 20)
    with pytest.raises(GraphError, match=r"float32\[3, 11\] and float32\[12, 20\]"):
        run(layer, numbers(3, 11))


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


def config(parameters: dict[str, object], head_dim: int, base: float) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
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
    theirs, amplitude = modeling_rope_utils.ROPE_INIT_FUNCTIONS[parameters["rope_type"]](
        config(parameters, dimensions, base)
    )
    ours = inverse_frequencies(dimensions, base, scaling)
    assert ours.dtype == np.float32
    # A few units in the last place: torch rounds powers otherwise, and each processor its own way.
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
    assert scaling.amplitude == pytest.approx(amplitude, rel=1e-12)


@each("base", [10000.0, 500000.0])
def test_frequencies_without_scaling_are_those_of_transformers(base: float) -> None:
    theirs = modeling_llama.LlamaRotaryEmbedding(
        config({"rope_type": "default"}, 64, base)
    ).inv_freq
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
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config(parameters, 32, 10000.0))(
        x, positions[None]
    )
    theirs, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
    ours = run(Rotated(RotaryEmbedding(32, 10000.0, scaling)), x, positions)
    assert difference(ours, theirs) < 1e-5


def test_positions_need_not_start_at_zero() -> None:
    x, positions = numbers(1, 1, 4, 32), torch.tensor([900, 3, 50, 51])
    cos, sin = modeling_llama.LlamaRotaryEmbedding(config({"rope_type": "default"}, 32, 10000.0))(
        x, positions[None]
    )
    theirs, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
    assert difference(run(Rotated(RotaryEmbedding(32)), x, positions), theirs) < 1e-4


def test_interleaved_rotation_turns_neighbors() -> None:
    x, positions = numbers(2, 3, 10, 16), torch.arange(10)
    angles = positions[:, None] * torch.from_numpy(inverse_frequencies(16, 10000.0))
    angles = angles.repeat_interleave(2, dim=-1)[None]
    theirs, _ = modeling_cohere.apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())
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


def test_a_stream_has_the_length_of_the_active_one_if_it_is_not_nearly_zero() -> None:
    projection = StreamProjection(4, DType.float32)
    projection.load_state_dict({"projection.weight": np.eye(4, dtype=np.float32)})
    like = np.full((1, 1, 4), 3, np.float32)
    # As in transformers' `Gemma3nTextModel`, the mean square is 1e-5 at least.
    for value, wanted in ((0.5, 3.0), (1e-3, 3e-3 / 1e-5**0.5), (0.0, 0.0)):
        found = run(projection, np.full((1, 1, 4), value, np.float32), like)
        np.testing.assert_allclose(found, np.full((1, 1, 4), wanted), rtol=1e-5)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch_layers import difference, numbers, seeded, taken
from transformers import BertConfig, Gemma2Config, GPT2Config, LlamaConfig, Qwen3Config
from transformers.activations import ACT2FN
from transformers.models.bert.modeling_bert import BertSelfAttention
from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention, Gemma2RMSNorm
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP, GPT2Attention
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention
from transformers.pytorch_utils import Conv1D

from each import each
from rows import in_blocks
from runs import run
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import GraphError
from weightctl.nn import Module
from weightctl.nn.attention import Attention
from weightctl.nn.embedding import Embedding
from weightctl.nn.linear import Linear
from weightctl.nn.mlp import MLP, GatedMLP
from weightctl.nn.norm import LayerNorm, RMSNorm
from weightctl.nn.rope import RotaryEmbedding

if TYPE_CHECKING:
    import numpy as np

    from weightctl.graph import Value
    from weightctl.weights import WeightData

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
    rotation = LlamaRotaryEmbedding(config)(x, positions[None])
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
    theirs = seeded(Conv1D(20, 12))
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
    theirs = seeded(LlamaRMSNorm(16, eps=1e-5))
    ours = RMSNorm(16, 1e-5)
    ours.load_state_dict(taken(theirs))
    x = numbers(2, 3, 16, dtype=dtype)
    expected = theirs.to(dtype)(x).detach()
    assert difference(run(ours, x), expected) < (1e-5 if dtype is torch.float32 else 0.03)


def test_rms_norm_with_an_offset_is_that_of_gemma() -> None:
    theirs = seeded(Gemma2RMSNorm(16, eps=1e-6))
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
    config = LlamaConfig(**LLAMA, hidden_act=theirs, mlp_bias=bias)
    module = seeded(LlamaMLP(config))
    ours = GatedMLP(32, 48, name, bias=bias)
    ours.load_state_dict(taken(module, {"_proj": ""}))
    x = numbers(2, 3, 32)
    assert difference(run(ours, x), module(x).detach()) < 1e-4


def test_an_mlp_is_that_of_gpt2() -> None:
    module = seeded(GPT2MLP(48, GPT2Config(n_embd=32)))
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
    assert difference(run(ours, x), down(ACT2FN["gelu"](up(x))).detach()) < 1e-5


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
    config = LlamaConfig(**sizes, head_dim=head_dim, attention_bias=bias)
    ours = Attention(32, 4, kv_heads=kv_heads, head_dim=head_dim, bias=bias)
    assert compared(LlamaAttention(config, 0), ours, config) < 1e-4


def test_attention_with_norms_of_queries_and_keys_is_that_of_qwen3() -> None:
    config = Qwen3Config(**LLAMA, head_dim=8, rms_norm_eps=1e-6)
    ours = Attention(32, 4, kv_heads=2, norm_epsilon=1e-6)
    assert compared(Qwen3Attention(config, 0), ours, config) < 1e-4


def test_attention_with_bounded_scores_in_a_window_is_that_of_gemma2() -> None:
    config = Gemma2Config(**LLAMA, head_dim=8, query_pre_attn_scalar=16, attn_logit_softcapping=2.0)
    ours = Attention(32, 4, kv_heads=2, window=3, softcap=2.0, scale=0.25)
    assert compared(Gemma2Attention(config, 0), ours, config, window=3) < 1e-4


@each("transposed", [True, False])
def test_attention_with_a_fused_projection_is_that_of_gpt2(transposed: bool) -> None:
    config = GPT2Config(n_embd=32, n_head=4, attn_implementation="eager")
    theirs = seeded(GPT2Attention(config, layer_idx=0))
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
    config = BertConfig(hidden_size=32, num_attention_heads=4, attn_implementation="eager")
    theirs = seeded(BertSelfAttention(config))
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

"""A llama of transformers with parts that some types have and its own types lack."""

from __future__ import annotations

import copy
import math
from typing import Any, ClassVar

import transformers
from torch import nn
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from lazy import torch

TYPE = "own_llama"


class OwnLlamaConfig(llama.LlamaConfig):
    """The config of a llama that may have ALiBi in place of RoPE, and layers without some parts.

    `widths` and `shared` are the widths of the MLP and the numbers of KV heads by layer, 0 for
    none, and `queries` the numbers of query heads. With `normed`, heads are normed before RoPE. If
    `parallel`, attention and MLP read the same norm. With `gated`, the output of each head is
    multiplied by the sigmoid of another projection. `windowed` are the layers with a window of
    `window` positions. `rope` has the base and the rotated share of layers without a window, then
    of those with one. The layers are passed `loops` times, with the norm after each pass, or only
    after the last one if `skips`. With `layer_norm`, norms are LayerNorms. With `by_size`, scores
    are divided by the size of a head. The embedding and the logits are multiplied by factors.
    """

    model_type = TYPE

    alibi: bool = False
    parallel: bool = False
    widths: list[int] | None = None
    queries: list[int] | None = None
    shared: list[int] | None = None
    normed: bool = False
    gated: bool = False
    windowed: list[bool] | None = None
    window: int = 0
    rope: list[list[float]] | None = None
    loops: int = 1
    skips: bool = False
    layer_norm: bool = False
    by_size: bool = False
    embedding_factor: float = 1.0
    logit_factor: float = 1.0


def _rotate(x: torch.Tensor, base: float, share: float) -> torch.Tensor:
    """Return queries or keys, [batch, heads, positions, size], whose first elements are rotated."""
    size = int(x.shape[-1] * share)
    steps = base ** -(torch.arange(0, size, 2) / size)
    angles = torch.arange(x.shape[2])[:, None] * steps
    first, second = x[..., :size].chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat((*turned, x[..., size:]), -1)


class _Attention(nn.Module):
    """Attention with gates of heads, and with RoPE as the layer has it."""

    def __init__(self, config: OwnLlamaConfig, number: int) -> None:
        super().__init__()
        heads, shared, size = (
            config.num_attention_heads, config.num_key_value_heads, config.head_dim,
        )  # fmt: skip
        self.size, self.groups = size, heads // shared
        is_windowed = bool(config.windowed and config.windowed[number])
        self.window = config.window if is_windowed else 0
        self.rope = config.rope[is_windowed]
        for name, rows in (("q_proj", heads), ("k_proj", shared), ("v_proj", shared)):
            setattr(self, name, nn.Linear(config.hidden_size, rows * size, bias=False))
        self.g_proj = nn.Linear(config.hidden_size, heads, bias=False)
        self.o_proj = nn.Linear(heads * size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, _: Any, mask: torch.Tensor) -> tuple[torch.Tensor]:
        parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.view(*x.shape[:2], -1, self.size).transpose(1, 2) for part in parts)
        q, k = _rotate(q, *self.rope), _rotate(k, *self.rope)
        k, v = (part.repeat_interleave(self.groups, 1) for part in (k, v))
        if self.window:
            positions = torch.arange(x.shape[1])
            is_far = positions[:, None] - positions >= self.window
            mask = mask.masked_fill(is_far, -torch.inf)
        shares = (q @ k.mT * self.size**-0.5 + mask).softmax(-1)
        attended = (shares @ v).transpose(1, 2) * self.g_proj(x).sigmoid()[..., None]
        return (self.o_proj(attended.flatten(2)),)


def _norm(config: OwnLlamaConfig) -> nn.Module:
    kind = nn.LayerNorm if config.layer_norm else llama.LlamaRMSNorm
    return kind(config.hidden_size, config.rms_norm_eps)


class _Layer(nn.Module):
    def __init__(self, config: OwnLlamaConfig, number: int) -> None:
        super().__init__()
        own = copy.copy(config)
        own.intermediate_size = config.widths[number] if config.widths else own.intermediate_size
        own.num_key_value_heads = (
            config.shared[number] if config.shared else own.num_key_value_heads
        )
        if config.queries:
            own.num_attention_heads = config.queries[number]
        self.has_attention, self.has_mlp = own.num_key_value_heads > 0, own.intermediate_size > 0
        self.is_parallel = config.parallel
        if self.has_attention:
            self.input_layernorm = _norm(config)
            kind = _Attention if config.gated else llama.LlamaAttention
            if config.normed:
                own.layer_types = ["full_attention"] * config.num_hidden_layers
                kind, own.sliding_window = qwen3.Qwen3Attention, None
            self.self_attn = kind(own, number)
            if config.by_size:
                self.self_attn.scaling = 1 / own.head_dim
        if self.has_mlp:
            self.mlp = llama.LlamaMLP(own)
            if not config.parallel:
                self.post_attention_layernorm = _norm(config)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, rope: Any) -> torch.Tensor:
        if self.is_parallel:
            normed = self.input_layernorm(x)
            return x + self.self_attn(normed, rope, mask)[0] + self.mlp(normed)
        if self.has_attention:
            x = x + self.self_attn(self.input_layernorm(x), rope, mask)[0]
        return x + self.mlp(self.post_attention_layernorm(x)) if self.has_mlp else x


class _Model(nn.Module):
    def __init__(self, config: OwnLlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, n) for n in range(config.num_hidden_layers))
        self.norm = _norm(config)


def find_slopes(heads: int) -> torch.Tensor:
    """Return the slopes of ALiBi; beyond a power of 2, every other one of the next power of 2."""
    whole = 2 ** math.floor(math.log2(heads))
    more = [2 ** (-4 * (2 * head + 1) / whole) for head in range(heads - whole)]
    return torch.tensor([2 ** (-8 * (head + 1) / whole) for head in range(whole)] + more)


class OwnLlamaForCausalLM(transformers.PreTrainedModel):
    config_class = OwnLlamaConfig
    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embed_tokens.weight"}

    def __init__(self, config: OwnLlamaConfig) -> None:
        super().__init__(config)
        self.model = _Model(config)
        self.rotary = llama.LlamaRotaryEmbedding(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        x = self.model.embed_tokens(input_ids) * self.config.embedding_factor
        positions = torch.arange(input_ids.shape[1])[None]
        distance = positions - positions.T
        mask = torch.where(distance > 0, -torch.inf, 0.0)[None, None]
        rope = self.rotary(x, positions)
        if self.config.alibi:
            slopes = find_slopes(self.config.num_attention_heads)[None, :, None, None]
            mask = mask + distance.clamp(max=0) * slopes
            rope = (torch.ones_like(rope[0]), torch.zeros_like(rope[1]))
        for number in range(self.config.loops):
            if number and not self.config.skips:
                x = self.model.norm(x)
            for layer in self.model.layers:
                x = layer(x, mask, rope)
        logits = self.lm_head(self.model.norm(x)) * self.config.logit_factor
        return CausalLMOutput(logits=logits)


transformers.AutoConfig.register(TYPE, OwnLlamaConfig)
transformers.AutoModelForCausalLM.register(OwnLlamaConfig, OwnLlamaForCausalLM)

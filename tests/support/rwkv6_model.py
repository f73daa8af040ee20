"""RWKV-6 as a model of transformers, which lacks it: the definition position by position, in torch.

The names are those of the models that llama.cpp converts. Importing the module registers the type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

__all__ = ["TYPE", "Rwkv6Config", "Rwkv6ForCausalLM"]

TYPE = "rwkv6"


class Rwkv6Config(PreTrainedConfig):
    model_type = TYPE

    hidden_size: int = 768
    attention_hidden_size: int | None = None
    num_hidden_layers: int = 24
    intermediate_size: int | None = None
    vocab_size: int = 65536
    head_size: int = 64
    head_size_divisor: int = 8
    layer_norm_epsilon: float = 1e-5
    rescale_every: int = 6
    tie_word_embeddings: bool = False


def _before(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x, (0, 0, 1, -1))


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class _TimeMix(nn.Module):
    def __init__(self, config: Rwkv6Config, layer: int) -> None:
        super().__init__()
        hidden, self.size = config.hidden_size, config.head_size
        self.heads = hidden // self.size
        for name in ("x", "w", "k", "v", "r", "g"):
            self.register_parameter(f"time_maa_{name}", nn.Parameter(torch.zeros(1, 1, hidden)))
        self.time_maa_w1 = nn.Parameter(torch.zeros(hidden, 5 * 32))
        self.time_maa_w2 = nn.Parameter(torch.zeros(5, 32, hidden))
        self.time_decay = nn.Parameter(torch.zeros(1, 1, hidden))
        self.time_decay_w1 = nn.Parameter(torch.zeros(hidden, 64))
        self.time_decay_w2 = nn.Parameter(torch.zeros(64, hidden))
        self.time_faaaa = nn.Parameter(torch.zeros(self.heads, self.size))
        self.receptance, self.key, self.value, self.gate, self.output = (
            _linear(hidden, hidden) for _ in range(5)
        )
        epsilon = 1e-5 * config.head_size_divisor**2
        self.ln_x = nn.GroupNorm(self.heads, hidden, eps=epsilon)
        self.scale = 0.5 ** (layer // config.rescale_every if config.rescale_every else 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = _before(x) - x
        low = torch.tanh((x + moved * self.time_maa_x) @ self.time_maa_w1)
        shares = torch.einsum("bpmr,mrh->mbph", low.view(*x.shape[:2], 5, 32), self.time_maa_w2)
        w, k, v, r, g = (
            x + moved * (getattr(self, f"time_maa_{name}") + share)
            for name, share in zip("wkvrg", shares, strict=True)
        )
        split = (*x.shape[:-1], self.heads, self.size)
        r, k, v = (each.view(split) for each in (self.receptance(r), self.key(k), self.value(v)))
        decay = self.time_decay + torch.tanh(w @ self.time_decay_w1) @ self.time_decay_w2
        kept = torch.exp(-torch.exp(decay)).view(split)
        state = x.new_zeros(len(x), self.heads, self.size, self.size)  # keys as rows
        out: list[Any] = []
        for t in range(x.shape[1]):
            added = k[:, t, :, :, None] * v[:, t, :, None]
            read = state + self.time_faaaa[:, :, None] * added
            out.append((r[:, t, :, None] @ read)[..., 0, :])
            state = state * kept[:, t, :, :, None] + added
        y = self.ln_x(torch.stack(out, 1).reshape(-1, x.shape[-1])).view(x.shape)
        return self.output(y * nn.functional.silu(self.gate(g))) * self.scale


class _ChannelMix(nn.Module):
    def __init__(self, config: Rwkv6Config, layer: int) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.time_maa_k, self.time_maa_r = (
            nn.Parameter(torch.zeros(1, 1, hidden)) for _ in range(2)
        )
        self.key, self.receptance = _linear(hidden, inner), _linear(hidden, hidden)
        self.value = _linear(inner, hidden)
        self.scale = 0.5 ** (layer // config.rescale_every if config.rescale_every else 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        moved = _before(x) - x
        up = torch.relu(self.key(x + moved * self.time_maa_k)) ** 2
        gate = torch.sigmoid(self.receptance(x + moved * self.time_maa_r))
        return gate * self.value(up) * self.scale


class _Block(nn.Module):
    def __init__(self, config: Rwkv6Config, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.layer_norm_epsilon
        if layer == 0:
            self.pre_ln = nn.LayerNorm(hidden, eps)
        self.ln1, self.ln2 = (nn.LayerNorm(hidden, eps) for _ in range(2))
        self.attention, self.feed_forward = _TimeMix(config, layer), _ChannelMix(config, layer)
        self.halves = config.rescale_every > 0 and (layer + 1) % config.rescale_every == 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if hasattr(self, "pre_ln"):
            x = self.pre_ln(x)
        x = x + self.attention(self.ln1(x))
        x = x + self.feed_forward(self.ln2(x))
        return x / 2 if self.halves else x


class _Model(nn.Module):
    def __init__(self, config: Rwkv6Config) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(_Block(config, n) for n in range(config.num_hidden_layers))
        self.ln_out = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)


class Rwkv6ForCausalLM(PreTrainedModel):
    config_class = Rwkv6Config

    def __init__(self, config: Rwkv6Config) -> None:
        super().__init__(config)
        self.rwkv = _Model(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        x = self.rwkv.embeddings(input_ids)
        for block in self.rwkv.blocks:
            x = block(x)
        return CausalLMOutput(logits=self.head(self.rwkv.ln_out(x)))


AutoConfig.register(TYPE, Rwkv6Config)
AutoModelForCausalLM.register(Rwkv6Config, Rwkv6ForCausalLM)

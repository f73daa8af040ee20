"""RWKV-7 as a model of transformers, which lacks it: the definition position by position, in torch.

The names are those of flash-linear-attention. Importing the module registers the type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

__all__ = ["Rwkv7Config", "Rwkv7ForCausalLM"]


class Rwkv7Config(PreTrainedConfig):
    model_type = "rwkv7"

    hidden_size: int = 2048
    num_hidden_layers: int = 24
    intermediate_size: int | None = None
    vocab_size: int = 32000
    max_position_embeddings: int = 2048
    head_dim: int = 64
    norm_eps: float = 1e-5
    norm_bias: bool = True
    norm_first: bool = True
    hidden_act: str = "sqrelu"
    decay_low_rank_dim: int | None = None
    a_low_rank_dim: int | None = None
    v_low_rank_dim: int | None = None
    gate_low_rank_dim: int | None = None
    attn: dict[str, Any] | None = None
    tie_word_embeddings: bool = False


class _LowRank(nn.Module):
    def __init__(self, hidden: int, rank: int, between: nn.Module, *, bias: bool = True) -> None:
        super().__init__()
        self.lora = nn.Sequential(
            nn.Linear(hidden, rank, bias=False), between, nn.Linear(rank, hidden, bias=bias)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lora(x)


def _before(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x, (0, 0, 1, -1))


class _TimeMix(nn.Module):
    def __init__(self, config: Rwkv7Config, layer: int) -> None:
        super().__init__()
        hidden, self.size = config.hidden_size, config.head_dim
        self.heads = hidden // self.size
        for name in "rwkvag":
            self.register_parameter(f"x_{name}", nn.Parameter(torch.zeros(1, 1, hidden)))
        for name in "rkvo":
            setattr(self, f"{name}_proj", nn.Linear(hidden, hidden, bias=False))
        self.k_k, self.k_a = (nn.Parameter(torch.ones(hidden)) for _ in range(2))
        self.r_k = nn.Parameter(torch.zeros(self.heads, self.size))
        self.w_lora = _LowRank(hidden, config.decay_low_rank_dim, nn.Tanh())
        self.a_lora = _LowRank(hidden, config.a_low_rank_dim, nn.Identity())
        self.g_lora = _LowRank(hidden, config.gate_low_rank_dim, nn.Sigmoid(), bias=False)
        if layer:
            self.v_lora = _LowRank(hidden, config.v_low_rank_dim, nn.Identity())
        self.layer = layer
        self.g_norm = nn.GroupNorm(self.heads, hidden, eps=self.size * config.norm_eps)

    def forward(self, x: torch.Tensor, first: Any) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = {each: x + (_before(x) - x) * getattr(self, f"x_{each}") for each in "rwkvag"}
        r, k, v = (getattr(self, f"{each}_proj")(mixed[each]) for each in "rkv")
        if self.layer:
            v = torch.lerp(v, first, torch.sigmoid(self.v_lora(mixed["v"])))
        else:
            first = v
        w = torch.exp(-(torch.tensor(-0.5).exp()) * torch.sigmoid(self.w_lora(mixed["w"])))
        a = torch.sigmoid(self.a_lora(mixed["a"]))
        split = (*x.shape[:-1], self.heads, self.size)
        kk = nn.functional.normalize((k * self.k_k).view(split), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        r, w, k, v, a = (each.view(split) for each in (r, w, k, v, a))
        state = x.new_zeros(len(x), self.heads, self.size, self.size)  # values as rows
        out = []
        for t in range(x.shape[1]):
            removed = state @ -kk[:, t, :, :, None]
            state = (
                state * w[:, t, :, None]
                + removed * (kk[:, t] * a[:, t])[:, :, None]
                + v[:, t, :, :, None] * k[:, t, :, None]
            )
            out.append((state @ r[:, t, :, :, None])[..., 0])
        y = torch.stack(out, 1).reshape(-1, x.shape[-1])
        y = self.g_norm(y).view(x.shape)
        y = y + ((r * k * self.r_k).sum(-1, keepdim=True) * v).view(x.shape)
        return self.o_proj(y * self.g_lora(mixed["g"])), first


class _ChannelMix(nn.Module):
    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(config.hidden_size))
        self.key = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.value = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(torch.relu(self.key(x + (_before(x) - x) * self.x_k)) ** 2)


class _Layer(nn.Module):
    def __init__(self, config: Rwkv7Config, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.norm_eps
        if layer == 0:
            self.pre_norm = nn.LayerNorm(hidden, eps)
        self.attn_norm, self.ffn_norm = (nn.LayerNorm(hidden, eps) for _ in range(2))
        self.attn, self.ffn = _TimeMix(config, layer), _ChannelMix(config)

    def forward(self, x: torch.Tensor, first: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if hasattr(self, "pre_norm"):
            x = self.pre_norm(x)
        y, first = self.attn(self.attn_norm(x), first)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), first


class _Model(nn.Module):
    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, n) for n in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)


class Rwkv7ForCausalLM(PreTrainedModel):
    config_class = Rwkv7Config

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__(config)
        self.model = _Model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        x, first = self.model.embeddings(input_ids), None
        for layer in self.model.layers:
            x, first = layer(x, first)
        return CausalLMOutput(logits=self.lm_head(self.model.norm(x)))


AutoConfig.register("rwkv7", Rwkv7Config)
AutoModelForCausalLM.register(Rwkv7Config, Rwkv7ForCausalLM)

"""PLaMo 2 as a model of transformers, which lacks it: the definition, in torch.

The names are those of the checkpoints, as llama.cpp's converter reads them; the states are computed
position by position. Importing the module registers the type.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

__all__ = ["Plamo2Config", "Plamo2ForCausalLM"]


class Plamo2Config(PreTrainedConfig):
    model_type = "plamo2"

    hidden_size: int = 4096
    num_hidden_layers: int = 32
    intermediate_size: int = 13312
    vocab_size: int = 32000
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_parameters: dict[str, Any] | None = None
    num_attention_heads: int = 32
    num_key_value_heads: int = 4
    hidden_size_per_head: int = 128
    mamba_enabled: bool = True
    mamba_step: int = 2
    mamba_d_state: int = 64
    mamba_d_conv: int = 4
    mamba_num_heads: int = 64
    tie_word_embeddings: bool = True


def _rms(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class _Norm(nn.Module):
    def __init__(self, config: Plamo2Config, offset: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.hidden_size))
        self.offset, self.eps = offset, config.rms_norm_eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _rms(x, self.weight + self.offset, self.eps)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


class _Mamba(nn.Module):
    def __init__(self, config: Plamo2Config) -> None:
        super().__init__()
        self.heads, self.size = config.mamba_num_heads, config.hidden_size_per_head
        self.states, self.eps = config.mamba_d_state, config.rms_norm_eps
        self.rank = max(64, config.hidden_size // 16)
        inner = self.heads * self.size
        self.in_proj = _linear(config.hidden_size, 2 * inner)
        self.conv1d = nn.Conv1d(inner, inner, config.mamba_d_conv, groups=inner, bias=False)
        self.bcdt_proj = _linear(inner, 2 * self.states + self.rank)
        self.dt_proj = _linear(self.rank, self.heads)
        self.dt_bias, self.A_log, self.D = (nn.Parameter(torch.ones(self.heads)) for _ in range(3))
        self.dt_norm_weight = nn.Parameter(torch.ones(self.rank))
        self.B_norm_weight, self.C_norm_weight = (
            nn.Parameter(torch.ones(self.states)) for _ in range(2)
        )
        self.out_proj = _linear(inner, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, positions, _ = x.shape
        pairs = self.in_proj(x).view(batch, positions, self.heads, 2 * self.size)
        z, x = pairs.split(self.size, -1)
        x = nn.functional.pad(x.flatten(2).transpose(1, 2), (self.conv1d.kernel_size[0] - 1, 0))
        x = nn.functional.silu(self.conv1d(x)).transpose(1, 2)
        b, c, dt = self.bcdt_proj(x).split([self.states, self.states, self.rank], -1)
        b, c = _rms(b, self.B_norm_weight, self.eps), _rms(c, self.C_norm_weight, self.eps)
        dt = self.dt_proj(_rms(dt, self.dt_norm_weight, self.eps)) + self.dt_bias
        dt = nn.functional.softplus(dt)
        x = x.reshape(z.shape)
        state = x.new_zeros(batch, self.heads, self.size, self.states)
        out = []
        for t in range(positions):
            fading = torch.exp(-self.A_log.exp() * dt[:, t])[..., None, None]
            added = (x[:, t] * dt[:, t, :, None])[..., None] * b[:, t, None, None]
            state = state * fading + added
            out.append((state * c[:, t, None, None]).sum(-1))
        y = torch.stack(out, 1) + x * self.D[:, None]
        return self.out_proj((y * nn.functional.silu(z)).flatten(2))


class _Attention(nn.Module):
    def __init__(self, config: Plamo2Config) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.size, self.eps = config.hidden_size_per_head, config.rms_norm_eps
        rope = config.rope_parameters
        self.base, self.factor = rope["rope_theta"], rope.get("factor", 1.0)  # linear scaling
        rows = (self.heads + 2 * self.kv_heads) * self.size
        self.qkv_proj = _linear(config.hidden_size, rows)
        self.q_weight = nn.Parameter(torch.ones(self.heads, self.size))
        self.k_weight = nn.Parameter(torch.ones(self.kv_heads, self.size))
        self.o_proj = _linear(self.heads * self.size, config.hidden_size)

    def _rotate(self, x: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        angles = torch.outer(
            torch.arange(x.shape[1]) / self.factor,
            self.base ** (-torch.arange(half, dtype=x.dtype) / half),
        )
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        first, second = x.split(half, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = [self.heads, self.kv_heads, self.kv_heads]
        heads = self.qkv_proj(x).view(*x.shape[:2], sum(counts), self.size)
        q, k, v = heads.split(counts, 2)
        q = self._rotate(_rms(q, self.q_weight, self.eps))
        k = self._rotate(_rms(k, self.k_weight, self.eps))
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class _MLP(nn.Module):
    def __init__(self, config: Plamo2Config) -> None:
        super().__init__()
        self.gate_up_proj = _linear(config.hidden_size, 2 * config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(nn.functional.silu(gate) * up)


def _is_mamba(config: Plamo2Config, layer: int) -> bool:
    middle = config.mamba_step // 2
    if config.num_hidden_layers <= middle:
        return layer != config.num_hidden_layers - 1
    return layer % config.mamba_step != middle


class _Layer(nn.Module):
    def __init__(self, config: Plamo2Config, layer: int) -> None:
        super().__init__()
        self.pre_mixer_norm = _Norm(config, 1.0)
        self.mixer = _Mamba(config) if _is_mamba(config, layer) else _Attention(config)
        self.post_mixer_norm = _Norm(config, 1 / 5)
        self.pre_mlp_norm, self.post_mlp_norm = _Norm(config, 1.0), _Norm(config, 1 / 5**1.5)
        self.mlp = _MLP(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.post_mixer_norm(self.mixer(self.pre_mixer_norm(x)))
        return x + self.post_mlp_norm(self.mlp(self.pre_mlp_norm(x)))


class _Layers(nn.Module):
    def __init__(self, config: Plamo2Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config, n) for n in range(config.num_hidden_layers))


class _Model(nn.Module):
    def __init__(self, config: Plamo2Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = _Layers(config)
        self.norm = _Norm(config, 1.0)


class Plamo2ForCausalLM(PreTrainedModel):
    config_class = Plamo2Config
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: Plamo2Config) -> None:
        super().__init__(config)
        self.model = _Model(config)
        self.lm_head = _linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        x = self.model.embed_tokens(input_ids)
        for layer in self.model.layers.layers:
            x = layer(x)
        return CausalLMOutput(logits=self.lm_head(self.model.norm(x)))


AutoConfig.register("plamo2", Plamo2Config)
AutoModelForCausalLM.register(Plamo2Config, Plamo2ForCausalLM)

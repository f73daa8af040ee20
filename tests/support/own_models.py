"""Torch models with the names and the computation of types that transformers lacks."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_outputs import CausalLMOutput

import own_bert  # noqa: F401  # it registers a type
import own_llama  # noqa: F401
import own_step  # noqa: F401
from lazy import torch, transformers

# PLaMo 2 as a model of transformers, which lacks it: the definition, in torch.
# The names are those of the checkpoints, as llama.cpp's converter reads them; the states are
# computed position by position. Importing the module registers the type.


class Plamo2Config(transformers.PreTrainedConfig):
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


class Plamo2ForCausalLM(transformers.PreTrainedModel):
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


transformers.AutoConfig.register("plamo2", Plamo2Config)
transformers.AutoModelForCausalLM.register(Plamo2Config, Plamo2ForCausalLM)


# RWKV-6 as a model of transformers, which lacks it: the definition position by position, in torch.
# The names are those of the models that llama.cpp converts. Importing the module registers the
# type.

TYPE = "rwkv6"


class Rwkv6Config(transformers.PreTrainedConfig):
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


class _ModelRwkv6(nn.Module):
    def __init__(self, config: Rwkv6Config) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(_Block(config, n) for n in range(config.num_hidden_layers))
        self.ln_out = nn.LayerNorm(config.hidden_size, config.layer_norm_epsilon)


class Rwkv6ForCausalLM(transformers.PreTrainedModel):
    config_class = Rwkv6Config

    def __init__(self, config: Rwkv6Config) -> None:
        super().__init__(config)
        self.rwkv = _ModelRwkv6(config)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        x = self.rwkv.embeddings(input_ids)
        for block in self.rwkv.blocks:
            x = block(x)
        return CausalLMOutput(logits=self.head(self.rwkv.ln_out(x)))


transformers.AutoConfig.register(TYPE, Rwkv6Config)
transformers.AutoModelForCausalLM.register(Rwkv6Config, Rwkv6ForCausalLM)


# RWKV-7 as a model of transformers, which lacks it: the definition position by position, in torch.
# The names are those of flash-linear-attention. Importing the module registers the type.


class Rwkv7Config(transformers.PreTrainedConfig):
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


class _TimeMixRwkv(nn.Module):
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


class _ChannelMixRwkv(nn.Module):
    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__()
        self.x_k = nn.Parameter(torch.zeros(config.hidden_size))
        self.key = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.value = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(torch.relu(self.key(x + (_before(x) - x) * self.x_k)) ** 2)


class _LayerRwkv(nn.Module):
    def __init__(self, config: Rwkv7Config, layer: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.norm_eps
        if layer == 0:
            self.pre_norm = nn.LayerNorm(hidden, eps)
        self.attn_norm, self.ffn_norm = (nn.LayerNorm(hidden, eps) for _ in range(2))
        self.attn, self.ffn = _TimeMixRwkv(config, layer), _ChannelMixRwkv(config)

    def forward(self, x: torch.Tensor, first: Any) -> tuple[torch.Tensor, torch.Tensor]:
        if hasattr(self, "pre_norm"):
            x = self.pre_norm(x)
        y, first = self.attn(self.attn_norm(x), first)
        x = x + y
        return x + self.ffn(self.ffn_norm(x)), first


class _ModelRwkv(nn.Module):
    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_LayerRwkv(config, n) for n in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size, config.norm_eps)


class Rwkv7ForCausalLM(transformers.PreTrainedModel):
    config_class = Rwkv7Config

    def __init__(self, config: Rwkv7Config) -> None:
        super().__init__(config)
        self.model = _ModelRwkv(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def forward(self, input_ids: torch.Tensor) -> CausalLMOutput:
        x, first = self.model.embeddings(input_ids), None
        for layer in self.model.layers:
            x, first = layer(x, first)
        return CausalLMOutput(logits=self.lm_head(self.model.norm(x)))


transformers.AutoConfig.register("rwkv7", Rwkv7Config)
transformers.AutoModelForCausalLM.register(Rwkv7Config, Rwkv7ForCausalLM)


# The types that transformers lacks and that the tests compute themselves, by definitions in torch.
# Importing the module registers them.

"""One layer of a model, whose parts the config selects: attention, and an MLP or experts."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from weightctl.families.family import at_layer
from weightctl.nn.attention import Attention
from weightctl.nn.convolution import ShortConvolution
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.latent_attention import LatentAttention
from weightctl.nn.mlp import MLP, GatedMLP
from weightctl.nn.module import Module
from weightctl.nn.norm import LayerNorm, RMSNorm
from weightctl.nn.temperature import Temperature
from weightctl.nn.xielu import XIELU, XieluNumbers

if TYPE_CHECKING:
    from weightctl.dtype import DType
    from weightctl.families.decoder import DecoderConfig
    from weightctl.graph.value import Value

__all__ = ["Block", "make_attention", "make_mlp", "make_norm"]


def make_norm(config: DecoderConfig, dtype: DType) -> RMSNorm | LayerNorm:
    """Return a norm over the hidden size, of the kind that the config states."""
    if config.norm == "rms":
        return RMSNorm(config.hidden, config.norm_epsilon, offset=config.norm_offset, dtype=dtype)
    return LayerNorm(
        config.hidden,
        config.norm_epsilon,
        weight=config.norm_weight,
        bias=config.norm_bias,
        offset=config.norm_offset,
        dtype=dtype,
    )


class Block(Module):
    """A layer of a model: attention, then an MLP or experts, with norms and residual additions.

    `rotation` is the number of the rotary embedding that its attention uses, None without RoPE.
    """

    def __init__(self, config: DecoderConfig, layer: int, dtype: DType) -> None:
        self.config = config
        self.has_norms = config.pre_norms or config.norms_after
        window = config.window(layer)
        self.rotation: int | None = None
        self.has_attention = at_layer(config, "attention_layers", layer)
        if self.has_attention and config.position == "rope" and config.is_rotated(layer):
            self.rotation = int(config.local_rope_base is not None and window is not None)
        normed = config.attention_norms
        self.reads_normed = config.pre_norms and (normed is None or normed[layer])
        if self.reads_normed or config.norms_after:
            self.attention_norm = make_norm(config, dtype)
        if self.has_attention:
            self.attention = make_attention(config, layer, dtype)
        self.has_convolution = at_layer(config, "convolution_layers", layer)
        if self.has_convolution:
            self.convolution = ShortConvolution(
                config.hidden,
                config.convolution_length,
                bias=config.convolution_bias,
                dtype=dtype,
            )
        if config.post_norms:
            self.post_attention_norm = make_norm(config, dtype)
        self.has_mlp = at_layer(config, "mlp_layers", layer)
        if not self.has_mlp:
            return
        if self.has_norms and not config.shared_norm:
            self.mlp_norm = make_norm(config, dtype)
        self.mlp = make_mlp(config, layer, dtype)
        if config.post_norms:
            self.post_mlp_norm = make_norm(config, dtype)

    def __call__(
        self,
        x: Value,
        cos: Value | None = None,
        sin: Value | None = None,
        mask: Value | None = None,
    ) -> Value:
        """Return the input of the next layer, in the shape of `x`."""
        config = self.config
        if config.norms_after:
            x = self.attention_norm(x + self._mix(x, cos, sin, mask))
            return self.mlp_norm(x + self.mlp(x))
        normal = self.attention_norm(x) if self.reads_normed else x
        attended = self._mix(normal, cos, sin, mask)
        if config.post_norms:
            attended = self.post_attention_norm(attended)
        if config.parallel:
            inner = normal if config.shared_norm or not config.pre_norms else self.mlp_norm(x)
            return x + self._scale(attended + self._inner(inner))
        x = x + self._scale(attended)
        if not self.has_mlp:
            return x
        return x + self._scale(self._inner(self.mlp_norm(x) if config.pre_norms else x))

    def _mix(self, x: Value, cos: Value | None, sin: Value | None, mask: Value | None) -> Value:
        """Return the sum of the outputs of the parts that combine positions."""
        outputs: list[Value] = []
        if self.has_attention:
            outputs.append(self.attention(x, cos, sin, mask))
        if self.has_convolution:
            outputs.append(self.convolution(x))
        return reduce(add, outputs)

    def _inner(self, x: Value) -> Value:
        y = self.mlp(x)
        return self.post_mlp_norm(y) if self.config.post_norms else y

    def _scale(self, x: Value) -> Value:
        scale = self.config.residual_scale
        return x if scale == 1 else x * scale


def make_attention(config: DecoderConfig, layer: int, dtype: DType) -> Attention | LatentAttention:
    """Return the attention of a layer."""
    scale = config.attention_scale
    if config.query_scalar is not None:
        scale = config.query_scalar**-0.5
    is_rotated = config.is_rotated(layer)
    temperature = None
    if config.temperature_scale and not (config.temperature_without_rope and is_rotated):
        temperature = Temperature(
            config.temperature_scale, config.temperature_length, config.temperature_offset
        )
    is_normed = config.qk_norm is not None and (config.qk_norm != "unit" or is_rotated)
    if config.latent_rank:
        return LatentAttention(
            config.hidden,
            config.heads,
            latent_rank=config.latent_rank,
            plain=config.plain_dimensions,
            rotated=config.rope_dimensions,
            value=config.value_dimensions,
            query_rank=config.query_rank,
            scale=scale,
            causal=config.causal,
            interleaved=config.rope_interleaved,
            temperature=temperature,
            dtype=dtype,
        )
    return Attention(
        config.hidden,
        config.heads,
        kv_heads=config.count_kv_heads(layer),
        head_dim=at_layer(config, "head_dim", layer),
        value_dim=config.value_dimensions or None,
        value_scale=config.value_scale,
        values_normed=config.values_normed,
        values_from_keys=at_layer(config, "values_from_keys", layer),
        bias=config.attention_bias,
        output_bias=config.attention_output_bias,
        causal=config.causal,
        window=config.window(layer),
        chunk=config.chunk(layer),
        inner_norm=config.norm_epsilon if config.inner_norms else None,
        softcap=config.attention_softcap,
        scale=scale,
        norm_epsilon=config.norm_epsilon if is_normed else None,
        norm_offset=config.norm_offset,
        norms_whole=config.qk_norm == "whole",
        norms_last=config.qk_norm_after_rope or config.qk_norm == "unit",
        norms_weighted=config.qk_norm != "unit",
        norms_apart=config.qk_norm == "apart",
        clamp=config.query_clamp,
        alibi=config.alibi_bias if config.position == "alibi" else None,
        sinks=config.has_sinks(layer),
        temperature=temperature,
        gated=config.attention_gate,
        fused=config.fused_qkv,
        transposed=config.transposed,
        interleaved=config.rope_interleaved,
        dtype=dtype,
    )


def make_mlp(config: DecoderConfig, layer: int, dtype: DType) -> MLP | GatedMLP | MixtureOfExperts:
    """Return the MLP or the experts of a layer."""
    if config.is_sparse(layer):
        return MixtureOfExperts(
            config.hidden,
            config.expert_intermediate,
            config.activation,
            count=config.experts,
            used=config.experts_used,
            is_normalized=config.experts_normalized,
            scores=config.router,
            scale=config.experts_scale,
            groups=config.expert_groups,
            groups_used=config.expert_groups_used,
            has_correction=config.router_correction,
            has_scales=config.expert_scales,
            bias=config.expert_bias,
            shared=config.shared_intermediate,
            shared_gate=config.shared_gate,
            scales_inputs=config.shares_scale_inputs,
            dtype=dtype,
        )
    if config.gated:
        return GatedMLP(
            config.hidden,
            at_layer(config, "intermediate", layer),
            config.activation,
            bias=config.mlp_bias,
            fused=config.fused_gate_up,
            inner_norm=config.norm_epsilon if config.inner_norms else None,
            dtype=dtype,
        )
    return MLP(
        config.hidden,
        at_layer(config, "intermediate", layer),
        config.activation,
        bias=config.mlp_bias,
        transposed=config.transposed,
        xielu=_make_xielu(config, layer),
        dtype=dtype,
    )


def _make_xielu(config: DecoderConfig, layer: int) -> XIELU | None:
    if config.activation != "xielu":
        return None
    if config.has_xielu_weights:
        return XIELU()
    return XIELU(XieluNumbers(*(at_layer(config, f"xielu_{each}", layer)
                                for each in XieluNumbers._fields)))  # fmt: skip

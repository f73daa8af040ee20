"""One layer of a model, whose parts the config selects: attention, and an MLP or experts."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from weightctl.families.modules import at_layer
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.mlp import MLP, GatedMLP
from weightctl.nn.models.mixers import (
    make_attention,
    make_convolution,
    make_delta_net,
    make_linear_unit,
    make_state_space,
)
from weightctl.nn.module import Module
from weightctl.nn.norm import LayerNorm, RMSNorm
from weightctl.nn.xielu import XIELU, XieluNumbers

if TYPE_CHECKING:
    from weightctl.dtype import DType
    from weightctl.families.decoder import DecoderConfig
    from weightctl.graph.graph import Value


def make_norm(
    config: DecoderConfig, dtype: DType, offset: float | None = None
) -> RMSNorm | LayerNorm:
    """Return a norm over the hidden size, of the kind and with the offset that the config states.

    `offset` is another one.
    """
    offset = config.norm_offset if offset is None else offset
    if config.norm == "rms":
        return RMSNorm(config.hidden, config.norm_epsilon, offset=offset, dtype=dtype)
    return LayerNorm(
        config.hidden,
        config.norm_epsilon,
        weight=config.norm_weight,
        bias=config.norm_bias,
        offset=offset,
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
        self.has_convolution = at_layer(config, "convolution_layers", layer)
        self.has_ssm = at_layer(config, "ssm_layers", layer)
        self.has_delta = at_layer(config, "delta_layers", layer)
        self.has_lru = at_layer(config, "lru_layers", layer)
        others = (self.has_convolution, self.has_ssm, self.has_delta, self.has_lru)
        self.mixes = self.has_attention or any(others)
        normed = config.attention_norms
        self.reads_normed = config.pre_norms and (normed is None or normed[layer])
        if self.mixes and (self.reads_normed or config.norms_after):
            self.attention_norm = make_norm(config, dtype)
        self._add_mixers(config, layer, dtype)
        if config.post_norms:
            self.post_attention_norm = make_norm(config, dtype, config.post_attention_offset)
        self.has_mlp = at_layer(config, "mlp_layers", layer)
        if not self.has_mlp:
            return
        if self.has_norms and not config.shared_norm:
            self.mlp_norm = make_norm(config, dtype)
        self.mlp = make_mlp(config, layer, dtype)
        if config.post_norms:
            self.post_mlp_norm = make_norm(config, dtype, config.post_mlp_offset)

    def _add_mixers(self, config: DecoderConfig, layer: int, dtype: DType) -> None:
        """Add the parts that combine positions, whose outputs are added."""
        if self.has_attention:
            self.attention = make_attention(config, layer, dtype)
        if self.has_convolution:
            self.convolution = make_convolution(config, dtype)
        if self.has_ssm:
            self.ssm = make_state_space(config, dtype)
        if self.has_delta:
            self.delta = make_delta_net(config, dtype)
        if self.has_lru:
            self.lru = make_linear_unit(config, dtype)

    def __call__(
        self,
        x: Value,
        cos: Value | None = None,
        sin: Value | None = None,
        mask: Value | None = None,
    ) -> Value:
        """Return the input of the next layer, in the shape of `x`."""
        config = self.config
        if not self.mixes:
            if not self.has_mlp:
                return x
            return x + self._scale(self._inner(self.mlp_norm(x)))
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
            before, _, after = self.config.attention_scales
            attended = self.attention(_times(x, before), cos, sin, mask)
            outputs.append(_times(attended, after))
        if self.has_convolution:
            outputs.append(self.convolution(x))
        if self.has_ssm:
            outputs.append(self.ssm(x))
        if self.has_delta:
            outputs.append(self.delta(x))
        if self.has_lru:
            outputs.append(self.lru(x))
        return reduce(add, outputs)

    def _inner(self, x: Value) -> Value:
        y = _times(self.mlp(x), self.config.mlp_scales[1])
        return self.post_mlp_norm(y) if self.config.post_norms else y

    def _scale(self, x: Value) -> Value:
        return _times(x, self.config.residual_scale)


def _times(x: Value, scale: float) -> Value:
    return x if scale == 1 else x * scale


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
            shared_scale=config.shared_scale,
            latent=config.expert_latent or 0,
            scales_inputs=config.shares_scale_inputs,
            gated=config.gated,
            limit=at_layer(config, "expert_limits", layer) or None,
            shared_limit=at_layer(config, "mlp_limits", layer) or None,
            limits_activated=config.limits_activated,
            dtype=dtype,
        )
    if config.gated:
        return GatedMLP(
            config.hidden,
            at_layer(config, "intermediate", layer),
            config.activation,
            bias=config.mlp_bias,
            output_bias=config.mlp_output_bias,
            fused=config.fused_gate_up,
            gate_scale=config.mlp_scales[0],
            limit=at_layer(config, "mlp_limits", layer) or None,
            limits_activated=config.limits_activated,
            inner_norm=config.norm_epsilon if config.inner_norms else None,
            transposed=config.transposed,
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

"""A layer that reads an embedding of its own, and may share keys and values with an earlier one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.nn.models.block import make_mlp, make_norm
from weightctl.nn.models.layer_inputs import LayerInput, LayerScale
from weightctl.nn.models.mixers import make_attention
from weightctl.nn.module import Module

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import DType
    from weightctl.families.per_layer import PerLayerConfig
    from weightctl.graph.value import Value
    from weightctl.nn.attention import Attention


class PerLayerBlock(Module):
    """A layer that may read its own embedding of a token, and the keys of an earlier layer.

    Attention and MLP have a norm before and after them. With experts, an MLP and the experts read
    the sum after attention, each through its own norm, and both are normed and added.
    `rotation` is the number of the rotary embedding, and `number` that of the layer.
    """

    def __init__(self, config: PerLayerConfig, layer: int, dtype: DType) -> None:
        self.config, self.number = config, layer
        self.rotation = int(config.local_rope_base is not None and config.has_window(layer))
        self.attention_norm = make_norm(config, dtype)
        # `parallel` replaces this module and the MLP by others, which are called in the same way.
        self.attention: Module = make_attention(config, layer, dtype)
        self.post_attention_norm = make_norm(config, dtype)
        self.mlp_norm = make_norm(config, dtype)
        self.has_experts = config.experts > 0
        if self.has_experts:
            self.dense = make_mlp(replace(config, experts=0), layer, dtype)
            self.post_dense_norm = make_norm(config, dtype)
            self.router_norm = make_norm(config, dtype)
            self.expert_norm = make_norm(config, dtype)
            self.post_expert_norm = make_norm(config, dtype)
        self.mlp: Module = make_mlp(config, layer, dtype)
        self.post_mlp_norm = make_norm(config, dtype)
        if config.layer_input:
            self.layer_input = LayerInput(
                config.hidden,
                config.layer_input,
                config.activation,
                eps=config.norm_epsilon,
                dtype=dtype,
            )
        if config.layer_scale:
            self.scale = LayerScale(dtype)

    def __call__(
        self, x: Value, cos: Value, sin: Value, given: Value | None, source: Value | None
    ) -> tuple[Value, Value]:
        """Return the input of the next layer, and what attention reads, in the shape of `x`.

        `given` is the layer's own embedding, and `source` what keys and values are computed from if
        that is not the layer's own input.
        """
        normal = self.attention_norm(x)
        attended: Value = self.attention(normal, cos, sin, None, source)
        x = x + self.post_attention_norm(attended)
        x = x + self.post_mlp_norm(self._compute_inner(x))
        if given is not None:
            x = x + self.layer_input(x, given)
        return self.scale(x) if self.config.layer_scale else x, normal

    def _compute_inner(self, x: Value) -> Value:
        if not self.has_experts:
            inner: Value = self.mlp(self.mlp_norm(x))
            return inner
        dense = self.post_dense_norm(self.dense(self.mlp_norm(x)))
        routed = self.router_norm(x) * self.config.hidden**-0.5
        mixed: Value = self.mlp(self.expert_norm(x), routed)
        return dense + self.post_expert_norm(mixed)


def share_keys(config: PerLayerConfig, attention: Sequence[Any]) -> None:
    """Let layers without keys of their own use the weights of the layers whose keys they share."""
    for layer, own in enumerate(attention):
        shared: Attention = attention[config.keys_of(layer)]
        if own is shared:
            continue
        own.k.set_shared_weight("weight", shared.k.weight)
        if not shared.values_from_keys:
            own.v.set_shared_weight("weight", shared.v.weight)
        if shared.k_norm.weight is not None:
            own.k_norm.set_shared_weight("weight", shared.k_norm.weight)

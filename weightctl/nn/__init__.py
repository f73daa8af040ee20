"""Layers and modules: parts of models that name, load and use their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.families.rope_factors import RopeScaling
    from weightctl.nn.across_ranks import Parallel, parallel
    from weightctl.nn.attention import Attention
    from weightctl.nn.base_layer import (
        Layer,
        LayerList,
        add_layer_hook,
        clear_hooks,
        recursive_named_layers,
    )
    from weightctl.nn.embedding import Embedding
    from weightctl.nn.experts import MixtureOfExperts
    from weightctl.nn.linear import Linear
    from weightctl.nn.mlp import MLP, GatedMLP
    from weightctl.nn.module import Divisible, LayerV2, Module
    from weightctl.nn.norm import LayerNorm, RMSNorm
    from weightctl.nn.rope import FrequencyFactors, RotaryEmbedding

__all__ = [
    "MLP",
    "Attention",
    "Divisible",
    "Embedding",
    "FrequencyFactors",
    "GatedMLP",
    "Layer",
    "LayerList",
    "LayerNorm",
    "LayerV2",
    "Linear",
    "MixtureOfExperts",
    "Module",
    "Parallel",
    "RMSNorm",
    "RopeScaling",
    "RotaryEmbedding",
    "add_layer_hook",
    "clear_hooks",
    "parallel",
    "recursive_named_layers",
]

_NAMES = {
    "Attention": "weightctl.nn.attention:Attention",
    "Divisible": "weightctl.nn.module:Divisible",
    "Embedding": "weightctl.nn.embedding:Embedding",
    "FrequencyFactors": "weightctl.nn.rope:FrequencyFactors",
    "GatedMLP": "weightctl.nn.mlp:GatedMLP",
    "Layer": "weightctl.nn.base_layer:Layer",
    "LayerList": "weightctl.nn.base_layer:LayerList",
    "LayerNorm": "weightctl.nn.norm:LayerNorm",
    "LayerV2": "weightctl.nn.module:LayerV2",
    "Linear": "weightctl.nn.linear:Linear",
    "MLP": "weightctl.nn.mlp:MLP",
    "MixtureOfExperts": "weightctl.nn.experts:MixtureOfExperts",
    "Module": "weightctl.nn.module:Module",
    "Parallel": "weightctl.nn.across_ranks:Parallel",
    "RMSNorm": "weightctl.nn.norm:RMSNorm",
    "RopeScaling": "weightctl.families.rope_factors:RopeScaling",
    "RotaryEmbedding": "weightctl.nn.rope:RotaryEmbedding",
    "add_layer_hook": "weightctl.nn.base_layer:add_layer_hook",
    "clear_hooks": "weightctl.nn.base_layer:clear_hooks",
    "parallel": "weightctl.nn.across_ranks:parallel",
    "recursive_named_layers": "weightctl.nn.base_layer:recursive_named_layers",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)

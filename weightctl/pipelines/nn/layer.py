"""The specified place of `weightctl.nn.layer`."""

from __future__ import annotations

from weightctl.nn.base_layer import (
    Layer,
    LayerList,
    add_layer_hook,
    clear_hooks,
    recursive_named_layers,
)
from weightctl.nn.module import LayerV2

__all__ = [
    "Layer",
    "LayerList",
    "LayerV2",
    "add_layer_hook",
    "clear_hooks",
    "recursive_named_layers",
]

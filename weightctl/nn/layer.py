"""The documented names of `layer`: layers, lists of layers, modules, and call hooks."""

from __future__ import annotations

from weightctl.nn.base_layer import (
    Layer,
    LayerList,
    add_layer_hook,
    clear_hooks,
    recursive_named_layers,
)
from weightctl.nn.module import LayerV2, Module

__all__ = [
    "Layer",
    "LayerList",
    "LayerV2",
    "Module",
    "add_layer_hook",
    "clear_hooks",
    "recursive_named_layers",
]

"""What is noted of a layer, which stands in its `vars`: layers need not call `__init__` of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightctl.nn.base_layer import Layer

__all__ = ["ROOT", "SHARED", "attributes"]

# What named its weights, and the weights that are others'.
ROOT, SHARED = "_model_root", "_shared_weights"
_NOTES = frozenset({ROOT, SHARED})


def attributes(layer: Layer) -> dict[str, object]:
    """Return the attributes of a layer by name, without what is noted of it."""
    return {name: value for name, value in vars(layer).items() if name not in _NOTES}

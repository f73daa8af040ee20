"""Models as text that people read."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from weightctl.graph.types import TensorType
from weightctl.graph.weight import Weight
from weightctl.nn.layer_list import LayerList

if TYPE_CHECKING:
    from weightctl.nn.base_layer import Layer

__all__ = ["outline"]


def outline(layer: Layer) -> str:
    """Return a layer's class, weights and sublayers; those of a list that look alike are one."""
    weights = [
        f"{name}: {_weight(weight)}"
        for name, weight in vars(layer).items()
        if isinstance(weight, Weight)
    ]
    below = layer.sublayers.items()
    name = type(layer).__name__
    if not below:
        return f"{name}({', '.join(weights)})"
    parts = weights + [f"{name}: {_outline(found)}" for name, found in below]
    return f"{name}({_indent(parts)})"


def _outline(layer: Layer) -> str:
    if not isinstance(layer, LayerList):
        return outline(layer)
    parts: list[str] = []
    first = 0
    for text, group in groupby(map(_outline, layer.sublayers.values())):
        count = len(list(group))
        numbers = str(first) if count == 1 else f"{first} to {first + count - 1}"
        parts.append(f"{numbers}: {text}")
        first += count
    return f"[{_indent(parts)}]" if parts else "[]"


def _indent(parts: list[str]) -> str:
    lines = "\n".join(parts).splitlines()
    return "\n" + "".join(f"  {line}\n" for line in lines)


def _weight(weight: Weight) -> str:
    dtype, shape = weight.original_dtype_and_shape
    kind = str(TensorType(dtype, shape, weight.device))
    encoding = weight.quantization_encoding
    return kind if encoding is None else f"{kind} as {encoding.name}"

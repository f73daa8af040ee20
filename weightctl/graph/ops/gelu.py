"""The Gaussian error linear unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import require_float
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["gelu", "infer", "lower"]

_APPROXIMATIONS = ("none", "tanh")


def gelu(x: ValueLike, *, approximate: Literal["none", "tanh"] = "none") -> Value:
    """Return the products of the elements and the normal distribution function of them.

    `approximate` is `none` for the function itself, and `tanh` for
    `0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))`, which GPT-2 was trained with.
    Source: D. Hendrycks, K. Gimpel, "Gaussian error linear units", 2016.
    """
    return apply("gelu", x, approximate=approximate)


def infer(x: TensorType, *, approximate: str) -> TensorType:
    """Return the operand's own type."""
    require_float(x)
    if approximate not in _APPROXIMATIONS:
        raise GraphError(
            f"there is no approximation {approximate!r}", hint=f"use one of {_APPROXIMATIONS}"
        )
    return x


def lower(x: Tensor, *, approximate: str) -> Tensor:
    """Return a copy."""
    from torch.nn.functional import gelu

    return gelu(x, approximate=approximate)

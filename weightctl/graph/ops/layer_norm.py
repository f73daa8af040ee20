"""Rows brought to mean 0 and variance 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import require_float, require_rank, same_dtype
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "layer_norm", "lower"]


def layer_norm(
    x: ValueLike,
    weight: ValueLike | None = None,
    bias: ValueLike | None = None,
    epsilon: float = 1e-5,
) -> Value:
    """Return (x - mean) / sqrt(variance + epsilon) over the last dimension, * weight + bias.

    `weight` and `bias` have shape [dim]. Computed in float32 and rounded once. Source: Ba, Kiros
    and Hinton, "Layer Normalization" (2016).
    """
    if weight is None:
        normal = apply("layer_norm", x, epsilon=epsilon)
        return normal if bias is None else normal + bias
    given = (x, weight) if bias is None else (x, weight, bias)
    return apply("layer_norm", *given, epsilon=epsilon)


def infer(x: TensorType, *scales: TensorType, epsilon: float) -> TensorType:
    """Return the type of `x`; `scales` are the weight and the bias."""
    del epsilon
    require_rank(x, 1)
    require_float(x)
    for scale in scales:
        same_dtype(x, scale)
        if scale.shape != x.shape[-1:]:
            raise GraphError(
                f"weight and bias are not [{x.shape[-1]}] both",
                hint="they have a number for each element of the last dimension",
            )
    return x


def lower(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, epsilon: float
) -> Tensor:
    """Return the rows, normalized; torch works in float32 inside."""
    from torch.nn import functional

    return functional.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)

"""Normalization of rows: RMS norm and layer norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.graph import apply
from weightctl.graph.ops.rules import Op, require_float, require_rank, require_same_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType


def rms_norm(x: ValueLike, weight: ValueLike | None = None, epsilon: float = 1e-6) -> Value:
    """Return x / sqrt(mean(x^2) + epsilon) over the last dimension, times `weight` [dim].

    Computed in float32 and rounded to the dtype of `x` before the multiplication by `weight`, as
    Llama models are trained. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization"
    (2019).
    """
    given = (x,) if weight is None else (x, weight)
    return apply(RMS_NORM, *given, epsilon=epsilon)


def infer_rms_norm(
    x: TensorType, weight: TensorType | None = None, *, epsilon: float
) -> TensorType:
    del epsilon
    require_rank(x, 1)
    require_float(x)
    if weight is not None:
        require_same_dtype(x, weight)
        if weight.shape != x.shape[-1:]:
            raise GraphError(
                f"the shape of the weight must be [{x.shape[-1]}]",
                hint="the weight needs as many elements as the last dimension of the input",
            )
    return x


def lower_rms_norm(x: Tensor, weight: Tensor | None = None, *, epsilon: float) -> Tensor:
    """Return the normalized rows, computed in at least float32."""
    import torch
    from torch.nn import functional

    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normal = functional.rms_norm(wide, (x.shape[-1],), eps=epsilon).to(x.dtype)
    return normal if weight is None else normal * weight


RMS_NORM = Op("rms_norm", infer_rms_norm, lower_rms_norm)


def layer_norm(
    x: ValueLike,
    weight: ValueLike | None = None,
    bias: ValueLike | None = None,
    epsilon: float = 1e-5,
) -> Value:
    """Return (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension.

    `weight` and `bias` have shape [dim]. Computed in float32 and rounded once. Source: Ba, Kiros
    and Hinton, "Layer Normalization" (2016).
    """
    if weight is None:
        normal = apply(LAYER_NORM, x, epsilon=epsilon)
        return normal if bias is None else normal + bias
    given = (x, weight) if bias is None else (x, weight, bias)
    return apply(LAYER_NORM, *given, epsilon=epsilon)


def infer_layer_norm(x: TensorType, *scales: TensorType, epsilon: float) -> TensorType:
    """Return the type of `x`; `scales` are the weight and the bias."""
    del epsilon
    require_rank(x, 1)
    require_float(x)
    for scale in scales:
        require_same_dtype(x, scale)
        if scale.shape != x.shape[-1:]:
            raise GraphError(
                f"the shapes of weight and bias must be [{x.shape[-1]}]",
                hint="both need one element for each element of the last dimension",
            )
    return x


def lower_layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, *, epsilon: float
) -> Tensor:
    """Return the normalized rows; torch computes in float32."""
    from torch.nn import functional

    return functional.layer_norm(x, (x.shape[-1],), weight, bias, epsilon)


LAYER_NORM = Op("layer_norm", infer_layer_norm, lower_layer_norm)

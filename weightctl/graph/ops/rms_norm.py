"""Rows divided by their root mean square."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import require_float, require_rank, same_dtype
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "rms_norm"]


def rms_norm(x: ValueLike, weight: ValueLike | None = None, epsilon: float = 1e-6) -> Value:
    """Return x / sqrt(mean(x^2) + epsilon) over the last dimension, times `weight` [dim].

    Computed in float32 and rounded to the dtype of `x` before `weight` is multiplied, as llama
    models are trained. Source: Zhang and Sennrich, "Root Mean Square Layer Normalization" (2019).
    """
    given = (x,) if weight is None else (x, weight)
    return apply("rms_norm", *given, epsilon=epsilon)


def infer(x: TensorType, weight: TensorType | None = None, *, epsilon: float) -> TensorType:
    """Return the type of `x`."""
    del epsilon
    require_rank(x, 1)
    require_float(x)
    if weight is not None:
        same_dtype(x, weight)
        if weight.shape != x.shape[-1:]:
            raise GraphError(
                f"the weight is not [{x.shape[-1]}]",
                hint="it has a number for each element of the last dimension",
            )
    return x


def lower(x: Tensor, weight: Tensor | None = None, *, epsilon: float) -> Tensor:
    """Return the rows, normalized in at least float32."""
    import torch
    from torch.nn import functional

    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normal = functional.rms_norm(wide, (x.shape[-1],), eps=epsilon).to(x.dtype)
    return normal if weight is None else normal * weight

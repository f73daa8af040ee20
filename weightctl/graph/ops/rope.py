"""Rotary position embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph.ops.rules import require_broadcast, require_float, require_rank
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "rope"]


def rope(x: ValueLike, cos: ValueLike, sin: ValueLike, *, interleaved: bool = False) -> Value:
    """Return [..., seq, dim] with pairs of elements rotated by an angle for each position.

    `cos` and `sin`, of the dtype of `x` or float32, are [seq, rotated / 2], or have more
    dimensions that broadcast to those of `x`. Element `i` pairs with `i + rotated / 2`, or
    `2 i` with `2 i + 1` where `interleaved`; what is after the first `rotated` elements stays.
    Computed in float32 and rounded once. Source: Su et al., "RoFormer" (2021).
    """
    return apply("rope", x, cos, sin, interleaved=interleaved)


def infer(x: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool) -> TensorType:
    """Return the type of `x`."""
    del interleaved
    require_rank(x, 2)
    require_float(x)
    for table in (cos, sin):
        if table.dtype not in {x.dtype, DType.float32}:
            raise GraphError(
                f"cos and sin of {table.dtype.value} do not mix with {x.dtype.value}",
                hint="keep them in float32",
            )
    if cos.shape != sin.shape or not cos.rank:
        raise GraphError("cos and sin are not of one shape", hint="[seq, rotated / 2] both")
    require_broadcast("the shape of positions", cos.shape[:-1], x.shape[:-1])
    half, dim = cos.shape[-1], x.shape[-1]
    if 2 * half != dim and not (half.is_static and dim.is_static and 2 * int(half) < int(dim)):
        raise GraphError(
            f"{half} angles turn {2 * half} elements, of {dim}",
            hint="cos and sin have an angle for each pair",
        )
    return x


def lower(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Return the pairs, rotated in at least float32."""
    import torch

    half = cos.shape[-1]
    kind = torch.promote_types(x.dtype, torch.float32)
    wide, cos, sin = x[..., : 2 * half].to(kind), cos.to(kind), sin.to(kind)
    if interleaved:
        left, right = wide[..., ::2], wide[..., 1::2]
    else:
        left, right = wide[..., :half], wide[..., half:]
    pairs = (left * cos - right * sin, right * cos + left * sin)
    turned = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    if 2 * half == x.shape[-1]:
        return turned.to(x.dtype)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)

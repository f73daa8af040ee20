"""Convolution along one dimension."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.rules import require_float, same_dtype
from weightctl.graph.value import apply
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["conv1d", "infer", "lower"]


def conv1d(
    x: ValueLike,
    weight: ValueLike,
    bias: ValueLike | None = None,
    *,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Value:
    """Return [batch, out, length'] of [batch, channels, length] and [out, channels/groups, kernel].

    `bias` has shape [out]. As in neural networks the kernel is not turned round. With `padding`
    zeros on both sides, length' is
    (length + 2 padding - dilation (kernel - 1) - 1) // stride + 1. Accumulates in float32.
    """
    given = (x, weight) if bias is None else (x, weight, bias)
    return apply("conv1d", *given, stride=stride, padding=padding, dilation=dilation, groups=groups)


def infer(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None = None,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> TensorType:
    """Return the type of the result."""
    require_float(x)
    same_dtype(x, weight, *([] if bias is None else [bias]))
    if x.rank != 3 or weight.rank != 3:
        raise GraphError(
            "both have three dimensions",
            hint="[batch, channels, length] and [out, channels / groups, kernel]",
        )
    if min(stride, dilation, groups) < 1 or padding < 0:
        raise GraphError("stride, dilation and groups are at least 1, padding at least 0")
    batch, channels, length = x.shape
    out, group, kernel = weight.shape
    if group * groups != channels or out % groups != 0:
        raise GraphError(
            f"a weight [{out}, {group}, {kernel}] in {groups} groups does not fit {channels} "
            "channels",
            hint="[out, channels / groups, kernel], out a multiple of groups",
        )
    if bias is not None and bias.shape != (out,):
        raise GraphError(f"the bias is not [{out}]")
    try:
        steps = length + 2 * padding - (kernel - 1) * dilation - 1
    except ValueError:  # less than 0, whatever the names stand for
        raise GraphError(
            f"a kernel of {kernel} does not fit {length} elements", hint="padding makes room"
        ) from None
    return replace(x, shape=Shape([batch, out, Dim(steps) // stride + 1]))


def lower(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> Tensor:
    """Return the result, summed in at least float32."""
    import torch
    from torch.nn import functional

    # On a CPU torch may sum float16 in float16; elsewhere the libraries sum in float32.
    kind = torch.promote_types(x.dtype, torch.float32) if x.device.type == "cpu" else x.dtype
    wide = None if bias is None else bias.to(kind)
    made = functional.conv1d(x.to(kind), weight.to(kind), wide, stride, padding, dilation, groups)
    return made.to(x.dtype)

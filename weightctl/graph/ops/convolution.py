"""Convolution along the positions of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.graph import apply
from weightctl.graph.ops.rules import Op, require_float, require_same_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType


def causal_convolution(x: ValueLike, weight: ValueLike, bias: ValueLike | None = None) -> Value:
    """Return the convolution of each channel with its own weights, over this and earlier positions.

    `x` is [batch, positions, channels], `weight` is [channels, kernel], and `bias` is [channels].
    The last weight of a channel multiplies the value at the position itself. Values before the
    first position are zero. Source: `causal_conv1d` of Dao's package of that name.
    """
    given = (x, weight) if bias is None else (x, weight, bias)
    return apply(CAUSAL_CONVOLUTION, *given)


def infer_causal_convolution(
    x: TensorType, weight: TensorType, bias: TensorType | None = None
) -> TensorType:
    require_float(x)
    given = (x, weight) if bias is None else (x, weight, bias)
    require_same_dtype(*given)
    if x.rank != 3:
        raise GraphError(
            "the input must have three dimensions", hint="use [batch, positions, channels]"
        )
    channels = x.shape[2]
    if weight.rank != 2 or weight.shape[0] != channels:
        raise GraphError(
            f"the shape of the weight must be [{channels}, kernel]",
            hint="the weight needs a row for each channel of the input",
        )
    if bias is not None and bias.shape != x.shape[2:]:
        raise GraphError(
            f"the shape of the bias must be [{channels}]",
            hint="the bias needs an element for each channel of the input",
        )
    return x


def lower_causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the result of torch's grouped convolution with zeros before the first position."""
    from torch.nn import functional

    channels, kernel = weight.shape
    padded = functional.pad(x.transpose(1, 2), (kernel - 1, 0))
    return functional.conv1d(padded, weight.unsqueeze(1), bias, groups=channels).transpose(1, 2)


CAUSAL_CONVOLUTION = Op("causal_convolution", infer_causal_convolution, lower_causal_convolution)

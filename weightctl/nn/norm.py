"""Normalization layers."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import ArgumentTypeError
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.module import Module
from weightctl.nn.precision import require_value, weight_as
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value
    from weightctl.split import Range


class RMSNorm(Module):
    """`x / sqrt(mean(x * x) + eps) * (offset + weight)` over the last axis.

    `features` is the size of that axis, or a sequence of only this size, as in torch. Gemma's
    checkpoints store weights minus 1, which an `offset` of 1 compensates. Without `weight` the last
    factor is left out.
    """

    def __init__(
        self,
        features: int | Sequence[int],
        eps: float = 1e-6,
        *,
        offset: float = 0.0,
        weight: bool = True,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        size = _size(type(self).__name__, features)
        self.eps = eps
        self.offset = offset
        self.weight = Weight("weight", dtype, (size,), device) if weight else None

    def __call__(self, x: Value) -> Value:
        """Return the normalized activations, in the same shape and dtype."""
        require_value(self, x)
        if self.weight is None:
            ones = ops.constant([1.0] * int(x.shape[-1]), x.dtype, x.device)
            return ops.rms_norm(x, ones, self.eps)
        if not self.offset:
            return ops.rms_norm(x, weight_as(self.weight, x.dtype), self.eps)
        # In float32, as Gemma is trained: near 1, a sum in a narrower dtype would lose most of the
        # weight.
        scale = weight_as(self.weight, DType.float32) + self.offset
        return ops.rms_norm(x.cast(DType.float32), scale, self.eps).cast(x.dtype)


class LayerNorm(Module):
    """`(x - mean(x)) / sqrt(variance(x) + eps) * (offset + weight) + bias` over the last axis.

    `features` is the size of that axis, or a sequence of only this size, as in torch. `weight` and
    `bias` are optional. `offset` is added to the weight: Nemotron's checkpoints store it less 1.
    """

    def __init__(
        self,
        features: int | Sequence[int],
        eps: float = 1e-5,
        *,
        weight: bool = True,
        bias: bool = True,
        offset: float = 0.0,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        size = _size(type(self).__name__, features)
        self.eps = eps
        self.offset = offset
        self.weight = Weight("weight", dtype, (size,), device) if weight else None
        self.bias = Weight("bias", dtype, (size,), device) if bias else None

    def __call__(self, x: Value) -> Value:
        """Return the normalized activations, in the same shape and dtype."""
        require_value(self, x)
        weight = None if self.weight is None else weight_as(self.weight, x.dtype)
        if weight is not None and self.offset:
            weight = weight + self.offset
        bias = None if self.bias is None else weight_as(self.bias, x.dtype)
        return ops.layer_norm(x, weight, bias, self.eps)


class HeadNorm(Module):
    """A LayerNorm of queries or keys, in which each of the `heads` has weights of its own.

    `(x - mean(x)) / sqrt(variance(x) + eps) * weight` over the `size` elements of each head, which
    has a row of the weight. It is an RMSNorm, which does not subtract the mean, unless `centered`.
    """

    def __init__(
        self,
        heads: int,
        size: int,
        eps: float,
        *,
        centered: bool = True,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
    ) -> None:
        self.eps = eps
        self.centered = centered
        self.weight = Weight("weight", dtype, (heads, size), device)

    def __call__(self, x: Value, own: Range | None = None) -> Value:
        """Return normalized `(batch, heads, positions, size)`; `own` are the heads of a shard."""
        require_value(self, x)
        weight = weight_as(self.weight, x.dtype)
        weight = weight if own is None else weight[own[0] : own[1]]
        if self.centered:
            normal = ops.layer_norm(x, None, None, self.eps)
        else:
            ones = ops.constant([1.0] * int(x.shape[-1]), x.dtype, x.device)
            normal = ops.rms_norm(x, ones, self.eps)
        return normal * ops.unsqueeze(weight, 1)


def _size(layer: str, features: Any) -> int:
    """Return the size of the last axis; raises `ArgumentTypeError` for several axes."""
    if isinstance(features, SupportsIndex):
        return index(features)
    if is_sequence(features) and len(features) == 1 and isinstance(features[0], SupportsIndex):
        return index(features[0])
    raise ArgumentTypeError(
        f"{features!r} is not a valid size for {layer}",
        hint="the layer normalizes the last axis; use the size of that axis, such as `8` or `(8,)`",
    )

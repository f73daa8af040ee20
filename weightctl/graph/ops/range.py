"""Numbers at equal steps."""

from __future__ import annotations

import builtins
import sys
from operator import index
from typing import TYPE_CHECKING, SupportsIndex, TypeAlias, cast

from weightctl.device import CPU
from weightctl.dtype import DType, as_dtype
from weightctl.errors import EngineError, GraphError
from weightctl.graph.ops.rules import require_number
from weightctl.graph.scope import sizing
from weightctl.graph.types import TensorType
from weightctl.graph.value import apply
from weightctl.shape import Dim

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.value import Value
    from weightctl.shape import DimLike

__all__ = ["arange", "infer", "lower", "range"]

# Numbers may be negative, which no dimension is.
_Bound: TypeAlias = "int | Dim"

# The least and the largest number of each dtype that is computed with.
_HOLDS: dict[DType, tuple[float, float]] = {
    DType.int8: (-(2**7), 2**7 - 1),
    DType.int16: (-(2**15), 2**15 - 1),
    DType.int32: (-(2**31), 2**31 - 1),
    DType.int64: (-(2**63), 2**63 - 1),
    DType.uint8: (0, 2**8 - 1),
    DType.float16: (-65504, 65504),
    DType.bfloat16: (-(2.0**128 - 2.0**120), 2.0**128 - 2.0**120),
    DType.float32: (-(2.0**128 - 2.0**104), 2.0**128 - 2.0**104),
    DType.float64: (-sys.float_info.max, sys.float_info.max),
}


def range(  # noqa: A001  # as Python calls it
    start: DimLike,
    stop: DimLike | None = None,
    step: int = 1,
    *,
    dtype: DTypeLike = DType.int64,
    device: DeviceRef = CPU,
) -> Value:
    """Return `start`, `start + step`, ... before `stop`, as Python's `range` does: [length].

    Of names of dimensions, `start` is taken to be no more than `stop`. Raises `GraphError` for a
    step of 0, a dtype that is not computed with, and numbers that it does not hold; where they are
    not known yet, running it raises `EngineError`.
    """
    first, last = (0, start) if stop is None else (start, stop)
    with sizing("range"):
        begin, end, distance = _read_bound(first), _read_bound(last), _whole(step)
        kind = as_dtype(dtype)
    return apply("range", start=begin, stop=end, step=distance, dtype=kind, device=device)


def arange(
    start: DimLike,
    stop: DimLike | None = None,
    step: int = 1,
    *,
    end: DimLike | None = None,
    dtype: DTypeLike = DType.int64,
    device: DeviceRef = CPU,
) -> Value:
    """Return what `range` does, by the name that NumPy and torch have for it.

    `end` is torch's word for `stop`.
    """
    if end is not None and stop is not None:
        raise GraphError("`stop` and `end` are the same, and both are given", hint="give one")
    return range(start, end if stop is None else stop, step, dtype=dtype, device=device)


def infer(*, start: _Bound, stop: _Bound, step: int, dtype: DType, device: DeviceRef) -> TensorType:
    """Return the type of the numbers."""
    if step == 0:
        raise GraphError("a step of 0 never arrives", hint="1 is the step from one to the next")
    low, high = (start, stop) if step > 0 else (stop, start)
    made = TensorType(dtype, [_length(low, high, abs(step))], device)
    require_number(made)
    if isinstance(start, int) and isinstance(stop, int):
        beyond = _beyond(start, stop, step, dtype)
        if beyond is not None:
            raise GraphError(f"{dtype.value} does not hold {beyond}", hint="give a wider dtype")
    return made


def lower(*, start: int, stop: int, step: int, dtype: DType, device: DeviceRef) -> Tensor:
    """Return the numbers, made on the device."""
    import torch

    from weightctl.graph.ops.torch_types import torch_device, torch_dtype

    beyond = _beyond(start, stop, step, dtype)
    if beyond is not None:
        raise EngineError(
            f"{dtype.value} does not hold {beyond}", hint="give the range a wider dtype"
        )
    # torch refuses to go the wrong way; Python gives no numbers.
    end = max(start, stop) if step > 0 else min(start, stop)
    place, kind = torch_device(device), torch_dtype(dtype)
    return torch.arange(start, end, step, dtype=kind, device=place)


def _read_bound(value: DimLike) -> _Bound:
    if isinstance(value, Dim | str):
        dim = Dim(value)
        return int(dim) if dim.is_static else dim
    return _whole(value)


def _whole(value: object) -> int:
    if not isinstance(value, SupportsIndex):
        raise GraphError(
            f"{value!r} is not a whole number",
            hint="whole steps become fractions by arithmetic: "
            "`ops.arange(4).cast(DType.float32) * 0.25`",
        )
    return index(value)


def _beyond(start: int, stop: int, step: int, dtype: DType) -> int | None:
    """Return a number of the range that a dtype cannot hold, None where it holds all."""
    numbers = builtins.range(start, stop, step)
    low, high = _HOLDS[dtype]
    ends = (numbers[0], numbers[-1]) if numbers else ()
    return next((number for number in ends if not low <= number <= high), None)


def _length(low: _Bound, high: _Bound, step: int) -> Dim:
    if isinstance(low, int) and isinstance(high, int):
        return Dim(max(0, -((low - high) // step)))
    try:
        # One of the two is a Dim, and so is the difference.
        distance = cast("Dim", high - low)
    except ValueError:  # less than 0, whatever the names stand for
        return Dim(0)
    return (distance + (step - 1)) // step

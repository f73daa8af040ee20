"""Operations without inputs: constants, ranges, and dimensions as integers."""

from __future__ import annotations

import builtins
import reprlib
import sys
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

from weightctl.device import CPU
from weightctl.dtype import DType, as_dtype
from weightctl.errors import EncodingError, EngineError, GraphError
from weightctl.graph.graph import apply
from weightctl.graph.ops.lowering import torch_device, torch_dtype
from weightctl.graph.ops.rules import Op, require_number
from weightctl.graph.scope import refusing, sizing
from weightctl.graph.types import TensorType
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from weightctl.device import DeviceLike, DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.graph import Value
    from weightctl.shape import DimLike, ShapeLike
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.dlpack import DLPackArray

    ConstantLike: TypeAlias = (
        float | SupportsIndex | Sequence[Any] | NDArray[Any] | Buffer | DLPackArray
    )


def constant(
    value: ConstantLike, dtype: DTypeLike | None = None, device: DeviceLike = CPU
) -> Value:
    """Return the elements of an array, a buffer, a nested list or a scalar, on a device.

    Arrays are copied; a `Buffer` is used without a copy. Arrays keep their dtype unless `dtype` is
    given; Python numbers become bool, int64 or float32. The data moves to the device when the graph
    runs. Raises `GraphError` if an element does not fit the dtype: a fraction in an integer dtype,
    a value that is too large, or any number in bool.
    """
    with refusing("constant"):
        data = _make_buffer(value, None if dtype is None else as_dtype(dtype))
    return apply(CONSTANT, data=data, device=device)


def _make_buffer(value: ConstantLike, dtype: DType | None) -> Buffer:
    """Return the data of a constant, copied unless it is a `Buffer`."""
    from weightctl.weights.buffer import Buffer

    if isinstance(value, Buffer) and dtype in {None, value.dtype}:
        return value
    array = _make_array(value, dtype)
    if array.dtype.name not in DType.__members__:
        raise _explain_no_numbers(value, array.dtype)
    if dtype is not None and array.dtype.name != dtype.value:
        array = _convert_array(array, dtype)
    return Buffer.from_numpy(array.copy())


def _explain_no_numbers(value: Any, kind: np.dtype[Any]) -> GraphError:
    """Return the error for elements whose NumPy dtype is not a `DType`."""
    if isinstance(value, int):
        return GraphError(
            f"{reprlib.repr(value)} needs more than 64 bits",
            hint="use a float for larger numbers: `2.0**70`",
        )
    what = f"the NumPy dtype {kind}" if kind.kind != "O" else "Python objects"
    return GraphError(
        f"{type(value).__name__} is not a number or an array of numbers: its elements are "
        f"of {what}",
        hint="use numbers, nested lists of numbers, or arrays whose dtype is a DType",
    )


def _make_array(value: ConstantLike, dtype: DType | None) -> NDArray[Any]:
    """Return a value as an array; Python floats become float32 if no dtype is given."""
    import numpy as np

    from weightctl.weights.buffer import Buffer

    try:
        if isinstance(value, np.ndarray | np.generic):
            return np.asarray(cast("NDArray[Any]", value))
        if hasattr(value, "__dlpack__"):
            return Buffer.from_dlpack(cast("DLPackArray", value)).to_numpy()
        array: NDArray[Any] = np.array(
            index(value)
            if isinstance(value, SupportsIndex) and not isinstance(value, bool)
            else value
        )
    except (BufferError, EncodingError) as error:
        raise GraphError(
            str(error), hint="convert it to a dense array of a supported dtype first"
        ) from error
    except ValueError as error:
        raise GraphError(
            str(error), hint="all rows of a nested list must have the same length"
        ) from error
    is_python_float = dtype is None and array.dtype == np.float64
    return _convert_array(array, DType.float32) if is_python_float else array


def _convert_array(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Return an array in another dtype; raises `GraphError` if that loses more than rounding."""
    from weightctl.codecs.scalar import convert, numpy_dtype, overflow

    if not array.size:  # an empty list is of any dtype
        return array.astype(numpy_dtype(dtype))
    given = f"{array.item()}" if array.size == 1 else "numbers"
    given = f"{given} of {array.dtype} cannot be converted to {dtype.value}"
    if dtype is DType.bool:
        raise GraphError(given, hint="use a comparison, such as `x != 0`")
    if dtype.is_integer and array.dtype.kind not in "iub":
        raise GraphError(
            f"{given}: the result may have a fraction",
            hint="cast the other operand to a float dtype, or use an integer",
        )
    try:
        converted = convert(array, dtype)
    except EncodingError as error:
        raise GraphError(f"{given}: {error.message}") from error
    if overflow(array, converted):
        raise GraphError(
            f"{given}: the value is too large", hint="use a wider dtype, or `math.inf` for infinity"
        )
    return converted


def infer_constant(*, data: Buffer, device: DeviceRef) -> TensorType:
    """Return the type of the data."""
    return TensorType(data.dtype, data.shape, device)


def lower_constant(*, data: Buffer, device: DeviceRef) -> Tensor:
    """Return the data as a tensor on its device, without a copy on the CPU."""
    from torch.utils.dlpack import from_dlpack

    return from_dlpack(data).to(torch_device(device))


CONSTANT = Op("constant", infer_constant, lower_constant)


# A bound may be a negative integer, unlike a dimension.
_Bound: TypeAlias = "int | Dim"

# The smallest and the largest finite value of each dtype that operations compute with.
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
    device: DeviceLike = CPU,
) -> Value:
    """Return `start`, `start + step`, ... before `stop`, as Python's `range` does: [length].

    With named dimensions, `start` is assumed to be at most `stop`. Raises `GraphError` for a step
    of 0, for a dtype that operations do not compute with, and for values that the dtype cannot
    hold; if the values are not known yet, the run raises `EngineError`.
    """
    first, last = (0, start) if stop is None else (start, stop)
    with sizing("range"):
        begin, end, distance = _read_bound(first), _read_bound(last), _read_integer(step)
        kind = as_dtype(dtype)
    return apply(RANGE, start=begin, stop=end, step=distance, dtype=kind, device=device)


def arange(
    start: DimLike,
    stop: DimLike | None = None,
    step: int = 1,
    *,
    end: DimLike | None = None,
    dtype: DTypeLike = DType.int64,
    device: DeviceLike = CPU,
) -> Value:
    """Return the same as `range`, under the name that NumPy and torch use.

    `end` is torch's name for `stop`.
    """
    if end is not None and stop is not None:
        raise GraphError(
            "`stop` and `end` are the same argument, and both are given", hint="use one of them"
        )
    return range(start, end if stop is None else stop, step, dtype=dtype, device=device)


def infer_range(
    *, start: _Bound, stop: _Bound, step: int, dtype: DType, device: DeviceRef
) -> TensorType:
    """Return the type of the range."""
    if step == 0:
        raise GraphError("the step of a range cannot be 0", hint="the default step is 1")
    low, high = (start, stop) if step > 0 else (stop, start)
    made = TensorType(dtype, [_count_numbers(low, high, abs(step))], device)
    require_number(made)
    if isinstance(start, int) and isinstance(stop, int):
        beyond = _find_unheld(start, stop, step, dtype)
        if beyond is not None:
            raise GraphError(f"{dtype.value} cannot hold {beyond}", hint="use a wider dtype")
    return made


def lower_range(*, start: int, stop: int, step: int, dtype: DType, device: DeviceRef) -> Tensor:
    """Return the range, created on the device."""
    import torch

    beyond = _find_unheld(start, stop, step, dtype)
    if beyond is not None:
        raise EngineError(
            f"{dtype.value} cannot hold {beyond}", hint="use a wider dtype for the range"
        )
    # torch raises an error if the range is empty because of its direction; Python gives no
    # elements.
    end = max(start, stop) if step > 0 else min(start, stop)
    place, kind = torch_device(device), torch_dtype(dtype)
    return torch.arange(start, end, step, dtype=kind, device=place)


RANGE = Op("range", infer_range, lower_range)


def _read_bound(value: DimLike) -> _Bound:
    """Return a bound of a range as an integer if its size is known, otherwise as a `Dim`."""
    if isinstance(value, Dim | str):
        dim = Dim(value)
        return int(dim) if dim.is_static else dim
    return _read_integer(value)


def _read_integer(value: object) -> int:
    """Return an integer; raises `GraphError` if the value is not one."""
    if not isinstance(value, SupportsIndex):
        raise GraphError(
            f"{value!r} is not an integer",
            hint="for fractional steps, use arithmetic: `ops.arange(4).cast(DType.float32) * 0.25`",
        )
    return index(value)


def _find_unheld(start: int, stop: int, step: int, dtype: DType) -> int | None:
    """Return a value of the range that a dtype cannot hold, None if it holds all."""
    numbers = builtins.range(start, stop, step)
    low, high = _HOLDS[dtype]
    ends = (numbers[0], numbers[-1]) if numbers else ()
    return next((number for number in ends if not low <= number <= high), None)


def _count_numbers(low: _Bound, high: _Bound, step: int) -> Dim:
    """Return the number of elements of a range from `low` to `high`."""
    if isinstance(low, int) and isinstance(high, int):
        return Dim(max(0, -((low - high) // step)))
    try:
        # One of the two is a Dim, so the difference is a Dim.
        distance = cast("Dim", high - low)
    except ValueError:  # less than 0 for any sizes of the names
        return Dim(0)
    return (distance + (step - 1)) // step


def dims(value: DimLike | ShapeLike, *, device: DeviceLike = CPU) -> Value:
    """Return a dimension as an int64 scalar, or a shape as an int64 vector.

    Named dimensions get their sizes when the graph runs.
    """
    with sizing("dims"):
        known = Dim(value) if isinstance(value, Dim | str | SupportsIndex) else Shape(value)
    return apply(DIMS, dims=known, device=device)


def infer_dims(*, dims: Dim | Shape, device: DeviceRef) -> TensorType:
    """Return the type of an int64 scalar or vector."""
    return TensorType(DType.int64, (len(dims),) if isinstance(dims, Shape) else (), device)


def lower_dims(*, dims: int | tuple[int, ...], device: DeviceRef) -> Tensor:
    """Return the sizes as a tensor."""
    import torch

    return torch.tensor(dims, dtype=torch.int64, device=torch_device(device))


DIMS = Op("dims", infer_dims, lower_dims)

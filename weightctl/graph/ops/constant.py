"""Numbers that are known when the graph is built."""

from __future__ import annotations

import reprlib
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

from weightctl.device import CPU
from weightctl.dtype import DType, as_dtype
from weightctl.errors import EncodingError, GraphError
from weightctl.graph.scope import refusing
from weightctl.graph.types import TensorType
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike
    from weightctl.graph.value import Value
    from weightctl.weights.buffer import Buffer
    from weightctl.weights.dlpack import DLPackArray

    ConstantLike: TypeAlias = (
        float | SupportsIndex | Sequence[Any] | NDArray[Any] | Buffer | DLPackArray
    )

__all__ = ["constant", "infer", "lower"]


def constant(value: ConstantLike, dtype: DTypeLike | None = None, device: DeviceRef = CPU) -> Value:
    """Return the numbers of an array, a buffer, a nested list or a scalar, on a device.

    Arrays are copied; a `Buffer` is kept as it is. Arrays keep their dtype unless another is
    given; Python's numbers are bool, int64 or float32.
    The numbers move to the device when the graph runs. Raises `GraphError` where a number does
    not fit the dtype: one with a fraction in integers, one that is too large, any in bool.
    """
    with refusing("constant"):
        data = _buffer(value, None if dtype is None else as_dtype(dtype))
    return apply("constant", data=data, device=device)


def _buffer(value: ConstantLike, dtype: DType | None) -> Buffer:
    from weightctl.weights.buffer import Buffer

    if isinstance(value, Buffer) and dtype in {None, value.dtype}:
        return value
    array = _array(value, dtype)
    if array.dtype.name not in DType.__members__:
        raise _no_numbers(value, array.dtype)
    if dtype is not None and array.dtype.name != dtype.value:
        array = _convert_array(array, dtype)
    return Buffer.from_numpy(array.copy())


def _no_numbers(value: Any, kind: np.dtype[Any]) -> GraphError:
    if isinstance(value, int):
        return GraphError(
            f"{reprlib.repr(value)} takes more than 64 bits", hint="a float is larger: `2.0**70`"
        )
    what = f"NumPy's {kind}" if kind.kind != "O" else "Python's objects"
    return GraphError(
        f"{type(value).__name__} is no number, nor an array of numbers, but of {what}",
        hint="numbers, nested lists of them, and arrays whose dtype is a DType are",
    )


def _array(value: ConstantLike, dtype: DType | None) -> NDArray[Any]:
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
    except (BufferError, EncodingError, ValueError) as error:
        raise GraphError(str(error), hint="rows of a nested list are of one length") from error
    is_python_float = dtype is None and array.dtype == np.float64
    return _convert_array(array, DType.float32) if is_python_float else array


def _convert_array(array: NDArray[Any], dtype: DType) -> NDArray[Any]:
    from weightctl.codecs.scalar import convert, numpy_dtype, overflow

    if not array.size:  # an empty list is of any dtype
        return array.astype(numpy_dtype(dtype))
    given = f"{array.item()}" if array.size == 1 else "numbers"
    given = f"{given} of {array.dtype} cannot become {dtype.value}"
    if dtype is DType.bool:
        raise GraphError(given, hint="compare the tensor, such as `x != 0`")
    if dtype.is_integer and array.dtype.kind not in "iub":
        raise GraphError(
            f"{given}: it may have a fraction",
            hint="cast the tensor beside it to a float dtype, or give an integer",
        )
    try:
        converted = convert(array, dtype)
    except EncodingError as error:
        raise GraphError(f"{given}: {error.message}") from error
    if overflow(array, converted):
        raise GraphError(
            f"{given}: it is too large", hint="infinity is `math.inf`; or use a wider dtype"
        )
    return converted


def infer(*, data: Buffer, device: DeviceRef) -> TensorType:
    """Return the type of the data."""
    return TensorType(data.dtype, data.shape, device)


def lower(*, data: Buffer, device: DeviceRef) -> Tensor:
    """Return the data as a tensor on its device; on the CPU it is not copied."""
    from torch.utils.dlpack import from_dlpack

    from weightctl.graph.ops.torch_types import torch_device

    return from_dlpack(data).to(torch_device(device))

"""Conversion of arrays of any library to torch tensors, and of tensors to buffers."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, cast

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.engine.device_buffer import DeviceBuffer, wrap_host_tensor
from weightctl.errors import EngineError
from weightctl.graph.ops.lowering import dtype_of, torch_dtype
from weightctl.weights.buffer import Buffer
from weightctl.weights.data import WeightData
from weightctl.weights.dlpack import CPU as DLPACK_CPU
from weightctl.weights.dlpack import take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

    from weightctl.device import DeviceRef

__all__ = ["buffer_of", "describe_tensor", "make_result_buffer", "tensor_of"]

_SMALL = 1 << 20


def tensor_of(array: Any) -> Tensor:
    """Return an array as a tensor: from torch, NumPy, a `Buffer` or another DLPack object.

    Shares the memory of the array if it is contiguous and aligned; it must not be written to then.
    Raises `EngineError` if the value is not an array and for types that torch has none for.
    """
    import numpy as np
    import torch

    if isinstance(array, torch.Tensor):
        _require_plain(array)
        return array.detach().resolve_conj().resolve_neg()
    if isinstance(array, WeightData):
        array = array.to_buffer()
    if isinstance(array, Buffer):
        return _of_buffer(array)
    if isinstance(array, np.ndarray | np.generic):
        # NumPy calls the type of a scalar unknown; to look at a mask, subclasses stay.
        return _of_numpy(np.asanyarray(cast("Any", array)))
    if not hasattr(array, "__dlpack__"):
        raise EngineError(
            f"{type(array).__name__} is not an array",
            hint="use NumPy arrays, torch tensors, Buffers or other objects that support DLPack",
        )
    if array.__dlpack_device__()[0] != DLPACK_CPU[0]:
        # torch does not say what this takes.
        found: Tensor = cast("Any", torch).from_dlpack(array)
        return found
    try:
        return _of_numpy(take(array))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise EngineError(f"{type(array).__name__} cannot be read: {error}") from error


def _require_plain(tensor: Tensor) -> None:
    import torch

    dtype_of(tensor.dtype)
    layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if layout != str(torch.strided).removeprefix("torch."):
        raise EngineError(
            f"a {layout} tensor is not stored as one contiguous array",
            hint="convert it to a dense tensor with `to_dense()` or `to_padded_tensor(0.0)`",
        )
    if tensor.is_meta:
        raise EngineError("a tensor on the meta device has no data", hint="load its data first")


def _of_buffer(buffer: Buffer) -> Tensor:
    if isinstance(buffer, DeviceBuffer):
        return buffer.tensor
    return _of_memory(buffer.memory, buffer.dtype, buffer.shape)


def _of_numpy(array: NDArray[Any]) -> Tensor:
    import numpy as np

    if isinstance(array, np.ma.MaskedArray):
        raise EngineError(
            "the mask of a masked array would be lost", hint="use `filled()` to get a plain array"
        )
    if array.dtype.name not in DType.__members__:
        raise EngineError(
            f"no DType matches arrays of {array.dtype}", hint="convert it with `.astype`"
        )
    shape = array.shape
    native = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    return _of_memory(native.view(np.uint8).data, DType(array.dtype.name), shape)


def _of_memory(memory: memoryview, dtype: DType, shape: Sequence[int]) -> Tensor:
    import torch

    kind = torch_dtype(dtype)
    if not memory.nbytes:
        return torch.empty(tuple(shape), dtype=kind)
    source = _as_writable(memory) if memory.readonly else memory
    raw = torch.frombuffer(source, dtype=torch.uint8)
    if raw.data_ptr() % dtype.encoding.size:
        raw = raw.clone()
    return raw.view(kind).reshape(tuple(shape))


def _as_writable(memory: memoryview) -> Any:
    """Return the same memory as torch wants it: it has no tensors that nobody may write to."""
    import numpy as np

    array = np.frombuffer(memory, np.uint8)
    found = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    found.owner = array  # type: ignore[attr-defined]  # keeps it alive as long as a tensor is
    return found


def buffer_of(tensor: Tensor, device: DeviceRef = CPU) -> Buffer:
    """Return a buffer over a tensor's memory where that is; it is copied only to be contiguous.

    `device` is the processor that a graph has it on, which torch does not number.
    """
    tensor = tensor.contiguous()
    if tensor.device.type != "cpu":
        return DeviceBuffer(tensor)
    return wrap_host_tensor(tensor, device)


def make_result_buffer(tensor: Tensor, device: DeviceRef) -> Buffer:
    """Return a buffer of a result for whoever may keep it.

    A small one is copied: it lies between large ones that are free now, and would keep the
    allocator from using their place for the next.
    """
    made = buffer_of(tensor, device)
    if tensor.device.type != "cpu" or made.nbytes > _SMALL:
        return made
    return Buffer(memoryview(bytearray(made.memory)), made.dtype, made.shape, device)


def describe_tensor(tensor: Tensor) -> str:
    """Return a tensor's type for messages: `float32[2, 3]`, with any device but the CPU."""
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{dtype_of(tensor.dtype).value}{list(tensor.shape)}{where}"

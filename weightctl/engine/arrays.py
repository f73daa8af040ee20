"""Conversion of arrays of any library to torch tensors, and of tensors to buffers."""

from __future__ import annotations

import ctypes
from math import prod
from typing import TYPE_CHECKING, Any, cast

from weightctl.device import CPU, DeviceRef
from weightctl.dtype import DType
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

_SMALL = 1 << 20


class DeviceBuffer(Buffer):
    """A `Buffer` over a contiguous torch tensor on any device.

    DLPack exports it without a copy; `to_numpy()`, `memory`, `np.asarray` and pickle copy it to the
    CPU.
    """

    __slots__ = ("tensor",)

    # The tensor owns the bytes: there is no memory to wrap.
    def __init__(self, tensor: Tensor) -> None:  # pylint: disable=super-init-not-called
        self.tensor = tensor
        self.dtype = dtype_of(tensor.dtype)
        self.shape = tuple(tensor.shape)

    @property
    def device(self) -> DeviceRef:
        """The device that holds the bytes."""
        found = self.tensor.device
        return DeviceRef("cpu" if found.type == "cpu" else "gpu", found.index or 0)

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    @property
    def address(self) -> int:
        """The address of the first byte, in the memory of the device."""
        return self.tensor.data_ptr()

    @property
    def memory(self) -> memoryview:
        """A copy of the bytes on the CPU."""
        return self.to_host().memory

    def to_host(self) -> Buffer:
        """Return a copy on the CPU."""
        import torch

        return _wrap_host_tensor(self.tensor.to(torch.device("cpu"), copy=True))

    def to_numpy(self) -> NDArray[Any]:
        """Return the values as an array on the CPU."""
        return self.to_host().to_numpy()

    def __dlpack__(self, **options: Any) -> Any:
        # torch has no annotations for these options, and NumPy passes options of its own.
        return cast("Any", self.tensor).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = cast("Any", self.tensor).__dlpack_device__()
        return (int(kind), number)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.to_host().__reduce__()


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    import torch

    # A tensor of one element is contiguous with any stride, but `view` requires stride 1.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def _wrap_host_tensor(tensor: Tensor, device: DeviceRef = CPU) -> Buffer:
    """Return a buffer over the memory of a contiguous tensor on the CPU.

    `device` is the graph's device for the tensor: torch does not distinguish several CPUs.
    """
    shape = tuple(tensor.shape)
    memory = bytes_of(tensor) if prod(shape) else memoryview(bytearray())
    return Buffer(memory, dtype_of(tensor.dtype), shape, device)


def tensor_of(array: Any) -> Tensor:
    """Return an array as a tensor: from torch, NumPy, a `Buffer` or another DLPack object.

    The result shares the memory of a contiguous and aligned array, so do not write to it. Raises
    `EngineError` if the value is not an array or torch does not support its type.
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
        # `asanyarray` keeps subclasses, so that a masked array is detected; NumPy's stubs do not
        # know the type of a scalar.
        return _of_numpy(np.asanyarray(cast("Any", array)))
    if not hasattr(array, "__dlpack__"):
        raise EngineError(
            f"{type(array).__name__} is not an array",
            hint="use NumPy arrays, torch tensors, Buffers or other objects that support DLPack",
        )
    if array.__dlpack_device__()[0] != DLPACK_CPU[0]:
        # torch has no annotations for `from_dlpack`.
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
            f"no DType matches arrays of {array.dtype}", hint="convert the array with `.astype`"
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
    """Return writable access to read-only memory, since torch has no read-only tensors."""
    import numpy as np

    array = np.frombuffer(memory, np.uint8)
    found = (ctypes.c_uint8 * array.nbytes).from_address(array.ctypes.data)
    found.owner = array  # type: ignore[attr-defined]  # a tensor keeps the memory alive
    return found


def buffer_of(tensor: Tensor, device: DeviceRef = CPU) -> Buffer:
    """Return a buffer over a tensor's memory on its device; only a strided tensor is copied.

    `device` is the graph's device for the tensor: torch does not distinguish several CPUs.
    """
    tensor = tensor.contiguous()
    if tensor.device.type != "cpu":
        return DeviceBuffer(tensor)
    return _wrap_host_tensor(tensor, device)


def make_result_buffer(tensor: Tensor, device: DeviceRef) -> Buffer:
    """Return a buffer of a result that the caller may keep for long.

    A small result is copied: its memory lies between large values that have been freed, and would
    keep the allocator from reusing theirs.
    """
    made = buffer_of(tensor, device)
    if tensor.device.type != "cpu" or made.nbytes > _SMALL:
        return made
    return Buffer(memoryview(bytearray(made.memory)), made.dtype, made.shape, device)


def describe_tensor(tensor: Tensor) -> str:
    """Return a tensor's type for messages: `float32[2, 3]`, and its device if it is not the CPU."""
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
    return f"{dtype_of(tensor.dtype).value}{list(tensor.shape)}{where}"

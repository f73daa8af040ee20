"""Buffers over the memory of tensors of torch, on a graphics processor or the CPU."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, cast

from weightctl.device import CPU, DeviceRef
from weightctl.graph.ops.lowering import dtype_of
from weightctl.weights.buffer import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["DeviceBuffer", "bytes_of", "wrap_host_tensor"]


class DeviceBuffer(Buffer):
    """A `Buffer` of a contiguous torch tensor, wherever that is.

    DLPack hands it out in place; `to_numpy()`, `memory`, `np.asarray` and pickle copy it to the
    CPU.
    """

    __slots__ = ("tensor",)

    # The bytes are the tensor's, so that there is no memory to wrap.
    def __init__(self, tensor: Tensor) -> None:  # pylint: disable=super-init-not-called
        self.tensor = tensor
        self.dtype = dtype_of(tensor.dtype)
        self.shape = tuple(tensor.shape)

    @property
    def device(self) -> DeviceRef:
        """Where the bytes are."""
        found = self.tensor.device
        return DeviceRef("cpu" if found.type == "cpu" else "gpu", found.index or 0)

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self.tensor.nbytes

    @property
    def address(self) -> int:
        """Where the first byte is, in the memory of its device."""
        return self.tensor.data_ptr()

    @property
    def memory(self) -> memoryview:
        """A copy of the bytes on the CPU."""
        return self.to_host().memory

    def to_host(self) -> Buffer:
        """Return a copy on the CPU."""
        import torch

        return wrap_host_tensor(self.tensor.to(torch.device("cpu"), copy=True))

    def to_numpy(self) -> NDArray[Any]:
        """Return the numbers as an array on the CPU."""
        return self.to_host().to_numpy()

    def __dlpack__(self, **options: Any) -> Any:
        # torch does not say what these give, and NumPy asks with options of its own.
        return cast("Any", self.tensor).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = cast("Any", self.tensor).__dlpack_device__()
        return (int(kind), number)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.to_host().__reduce__()


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, as they lie there."""
    import torch

    # Of a single element any stride is contiguous, but `view` takes 1 only.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy().data


def wrap_host_tensor(tensor: Tensor, device: DeviceRef = CPU) -> Buffer:
    """Return a buffer over the memory of a contiguous tensor on the CPU.

    `device` is the processor that a graph has it on, which torch does not number.
    """
    shape = tuple(tensor.shape)
    memory = bytes_of(tensor) if prod(shape) else memoryview(bytearray())
    return Buffer(memory, dtype_of(tensor.dtype), shape, device)

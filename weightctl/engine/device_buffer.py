"""Numbers in the memory of a graphics processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from weightctl.device import DeviceRef
from weightctl.graph.ops.lowering import dtype_of
from weightctl.weights.buffer import Buffer

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["DeviceBuffer"]


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

        from weightctl.engine.arrays import buffer_of

        return buffer_of(self.tensor.to(torch.device("cpu"), copy=True))

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

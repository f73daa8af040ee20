"""Contiguous elements on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import ArgumentTypeError, EncodingError
from weightctl.weights.array_operators import ArrayMethods

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.device import DeviceRef
    from weightctl.weights.dlpack import DLPackArray


class Buffer(ArrayMethods):
    """Contiguous bytes in native order, with a dtype and a shape.

    A buffer is an array: operators, indices, `len` and NumPy functions use its elements. It prints
    as `Buffer([5, 10])`. Raises `EncodingError` if the number of bytes does not match the shape.
    """

    __slots__ = ("_device", "_memory", "dtype", "shape")

    def __init__(
        self, memory: memoryview, dtype: DType, shape: Sequence[int], device: DeviceRef = CPU
    ) -> None:
        expected = dtype.encoding.nbytes(tuple(shape))
        if memory.nbytes != expected:
            raise EncodingError(
                f"an array of shape {list(shape)} and dtype {dtype.value} needs {expected} "
                f"bytes, but {memory.nbytes} were given"
            )
        self._memory = memory.cast("B") if memory.format != "B" or memory.ndim != 1 else memory
        self._device = device
        self.dtype = dtype
        self.shape = tuple(shape)

    @classmethod
    def from_numpy(cls, array: NDArray[Any]) -> Buffer:
        """Wrap a NumPy array: without a copy if it is contiguous, writable and in native order.

        Raises `ArgumentTypeError` if the value is not a NumPy array, and `EncodingError` for masked
        arrays and for arrays whose type is not a `DType`.
        """
        import numpy as np  # not loaded by `ls`

        from weightctl.codecs.scalar import pack

        if isinstance(array, np.ma.MaskedArray):
            raise EncodingError(
                "the mask of a masked array would be lost",
                hint="use `filled()` to get a plain array",
            )
        # A caller's types are not checked.
        unchecked = cast("object", array)
        if not isinstance(unchecked, np.ndarray | np.generic):
            is_other = hasattr(unchecked, "__dlpack__")
            raise ArgumentTypeError(
                f"a NumPy array is expected, not {type(unchecked).__name__}",
                hint="use `from_dlpack` for arrays of other libraries"
                if is_other
                else "use `np.asarray` to make an array of a list or a number",
            )
        if array.dtype.name not in DType.__members__:
            raise EncodingError(f"no DType matches arrays of {array.dtype}")
        native = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        dtype = DType(native.dtype.name)
        return cls(pack(native.reshape(-1)).data, dtype, array.shape)

    @classmethod
    def from_dlpack(cls, array: DLPackArray) -> Buffer:
        """Wrap any array that supports DLPack: without a copy if it is contiguous and on the CPU.

        Gradients of torch tensors are dropped, and arrays on other devices are copied to the CPU.
        Raises `EncodingError` if the value is not an array, and `BufferError` if the array cannot
        be used.
        """
        if isinstance(array, Buffer):
            return array
        import numpy as np

        from weightctl.weights.dlpack import on_cpu, take

        # NumPy does not export read-only arrays and the types of `ml_dtypes` through DLPack.
        if isinstance(array, np.ndarray | np.generic):
            return cls.from_numpy(np.asanyarray(cast("Any", array)))
        given: Any = array
        if not hasattr(given, "__dlpack__"):
            raise EncodingError(
                f"{type(given).__name__} is not an array",
                hint="use a NumPy array, a torch tensor or another object that supports DLPack",
            )
        return cls.from_numpy(take(on_cpu(array)))

    @property
    def device(self) -> DeviceRef:
        """The device of the bytes, with the index that a graph uses for it."""
        return self._device

    @property
    def nbytes(self) -> int:
        """The number of bytes."""
        return self._memory.nbytes

    @property
    def address(self) -> int:
        """The memory address of the first byte; no byte is read."""
        import numpy as np

        return np.frombuffer(self._memory, np.uint8).ctypes.data

    @property
    def memory(self) -> memoryview:
        """The bytes themselves."""
        return self._memory

    def to_numpy(self) -> NDArray[Any]:
        """Return the elements as an array: a view, except for float4, which NumPy cannot pack."""
        import numpy as np

        from weightctl.codecs.scalar import unpack

        return unpack(np.frombuffer(self.memory, np.uint8), self.dtype).reshape(self.shape)

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        import numpy as np

        return np.array(self.to_numpy(), dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        from weightctl.weights.dlpack import export

        return export(self.memory, self.dtype, self.shape, options)

    def __dlpack_device__(self) -> tuple[int, int]:
        from weightctl.weights import dlpack

        return dlpack.CPU

    def __repr__(self) -> str:
        return f"Buffer({list(self.shape)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restore, (bytes(self._memory), self.dtype, self.shape))

    def _buffer(self) -> Buffer:
        return self

    def _sizes(self) -> tuple[int, ...]:
        return self.shape


def _restore(raw: bytes, dtype: DType, shape: tuple[int, ...]) -> Buffer:
    return Buffer(memoryview(bytearray(raw)), dtype, shape)

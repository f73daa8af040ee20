"""A tensor's bytes together with what they are."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, cast

from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import EncodingError, MissingTensorError
from weightctl.shape import Shape
from weightctl.weights.block_shapes import in_elements
from weightctl.weights.buffer import Buffer
from weightctl.weights.conversion import converted, require_convertible
from weightctl.weights.deferred import Absent, Deferred
from weightctl.weights.file_buffer import FileBuffer
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.shape import ShapeLike
    from weightctl.weights.dlpack import DLPackArray
    from weightctl.weights.source import Source

__all__ = ["WeightData"]


class WeightData:
    """The data of a tensor with its name, dtype and shape.

    A block-quantized tensor is bytes: dtype uint8, shape (rows, bytes per row), and
    `quantization_encoding` says of which blocks; `info` holds the logical side. Exports its
    numbers through DLPack without a copy.
    """

    __slots__ = ("data", "dtype", "info", "name", "quantization_encoding", "shape")

    def __init__(
        self,
        data: DLPackArray,
        name: str,
        dtype: DType,
        shape: ShapeLike,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        self.data = data
        self.name = name
        self.dtype = dtype
        self.shape = Shape(shape)
        self.quantization_encoding = quantization_encoding
        if quantization_encoding is None:
            self.info = TensorInfo(name, self.shape.sizes, dtype.encoding)
        else:
            encoding = quantization_encoding.encoding
            self.info = TensorInfo(name, in_elements(name, self.shape, encoding).sizes, encoding)

    @classmethod
    def stored(
        cls, info: TensorInfo, memory: memoryview, source: Source | None = None
    ) -> WeightData:
        """Wrap the bytes of a tensor as its file stores them, in native byte order.

        `source` is given where the memory is a mapping of what it reads by the tensor's name.
        Raises `EncodingError` for an encoding that the table lacks.
        """
        dtype, shape, _ = _as_bytes(info)
        if source is None:
            return cls.of(info, Buffer(memory, dtype, shape))
        return cls.of(info, FileBuffer(memory, dtype, shape, source, info.name))

    @classmethod
    def of(cls, info: TensorInfo, data: DLPackArray) -> WeightData:
        """Wrap the data of a tensor by its logical side: numbers, or blocks as rows of bytes.

        Raises `EncodingError` for an encoding that the table lacks.
        """
        made = cls(data, info.name, *_as_bytes(info))
        made.info = info
        return made

    @classmethod
    def declared(
        cls,
        name: str,
        dtype: DType,
        shape: ShapeLike,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> WeightData:
        """Describe a tensor that has no data yet; touching it raises `MissingTensorError`."""
        return cls(Absent(), name, dtype, shape, quantization_encoding)

    @classmethod
    def from_numpy(cls, arr: NDArray[Any], name: str) -> WeightData:
        """Wrap a NumPy array; dtype and shape are the array's."""
        buffer = Buffer.from_numpy(arr)
        return cls(buffer, name, buffer.dtype, buffer.shape)

    @classmethod
    def from_dlpack(cls, array: DLPackArray, name: str) -> WeightData:
        """Wrap any array that offers DLPack; dtype and shape are the array's."""
        buffer = Buffer.from_dlpack(array)
        return cls(buffer, name, buffer.dtype, buffer.shape)

    def renamed(self, name: str) -> WeightData:
        """Return the same data under another name."""
        made = WeightData(self.data, name, self.dtype, self.shape, self.quantization_encoding)
        made.info = self.info._replace(name=name)
        return made

    @property
    def is_declared(self) -> bool:
        """Whether this is only a description, whose data nobody has given yet."""
        return isinstance(self.data, Absent)

    def to_buffer(self) -> Buffer:
        """Turn the data into a `Buffer`, in place, and return it.

        Raises `EncodingError` where the data is not of the dtype and shape that it came with, and
        `MissingTensorError` where there is none.
        """
        if self.is_declared:
            raise MissingTensorError(
                f"`{self.name}` is only declared; it has no data yet",
                hint="open a checkpoint that has it, or make it of an array with `from_numpy`",
            )
        data = self.data
        buffer = data.to_buffer() if isinstance(data, Deferred) else Buffer.from_dlpack(data)
        if buffer.dtype is not self.dtype or buffer.shape != self.shape.sizes:
            raise EncodingError(
                f"`{self.name}` is said to be {self.dtype.value} {list(self.shape.sizes)}; its "
                f"data is {buffer.dtype.value} {list(buffer.shape)}"
            )
        self.data = buffer
        return buffer

    def view(self, start: int = 0, stop: int | None = None) -> memoryview:
        """Return the bytes from `start` to `stop`; no copy where the data is contiguous."""
        return self.to_buffer().memory[start:stop]

    def astype(self, dtype: DType) -> WeightData:
        """Return the data converted to another dtype; to its own, the data itself.

        Numbers are rounded once, to nearest even. What is too large for float16, bfloat16 or
        float8_e5m2 becomes an infinity; the other float8 types have none and hold it at their
        largest number. Quantized data is dequantized. Where there is no data yet, only the
        description changes. Raises `EncodingError` where there is no way from the one to the other.
        """
        if dtype is self.dtype:
            return self
        info = self.info._replace(encoding=dtype.encoding)
        if self.is_declared:
            require_convertible(self.info, dtype.encoding)
            return WeightData.of(info, self.data)
        return WeightData.stored(info, converted(self.info, self.view(), dtype.encoding))

    def to_numpy(self) -> NDArray[Any]:
        """Return the numbers, or the bytes of a quantized tensor, as an array."""
        return self.to_buffer().to_numpy()

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return self.to_buffer().__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        array = self.to_buffer() if self.is_declared else self.data
        return cast("Any", array).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __repr__(self) -> str:
        kind = self.quantization_encoding or self.dtype
        sizes: Sequence[int] = self.info.shape
        return f"WeightData({self.name!r}, {kind}, {list(sizes)})"


def _as_bytes(info: TensorInfo) -> tuple[DType, tuple[int, ...], QuantizationEncoding | None]:
    """Return dtype and shape of a tensor's data as it is stored, and of which blocks it is."""
    dtype, quantization = info.encoding.dtype, info.encoding.quantization
    if dtype is not None:
        return dtype, info.shape, None
    if quantization is None:
        raise EncodingError(
            f"`{info.name}` is of {info.encoding.name}, which weightctl does not know",
            hint="it can be listed, not interpreted; a newer version may know it",
        )
    rows = prod(info.shape[:-1])
    return DType.uint8, (rows, info.nbytes // rows if rows else 0), quantization

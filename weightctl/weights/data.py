"""A tensor's bytes together with what they are."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, cast

from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import EncodingError
from weightctl.shape import Shape
from weightctl.weights.buffer import Buffer
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.shape import ShapeLike
    from weightctl.weights.dlpack import DLPackArray

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
        sizes = self.shape.sizes
        if quantization_encoding is None:
            self.info = TensorInfo(name, sizes, dtype.encoding)
        else:
            encoding = quantization_encoding.encoding
            if not sizes or sizes[-1] % encoding.size:
                raise EncodingError(
                    f"`{name}` has rows of {sizes[-1:]} bytes, no whole {encoding} blocks",
                    hint="its shape should be (rows, bytes per row)",
                )
            row = sizes[-1] // encoding.size * encoding.block
            self.info = TensorInfo(name, (*sizes[:-1], row), encoding)

    @classmethod
    def stored(cls, info: TensorInfo, memory: memoryview) -> WeightData:
        """Wrap the bytes of a tensor as its file stores them, in native byte order.

        Raises `EncodingError` for an encoding that the table lacks.
        """
        quantization, dtype = info.encoding.quantization, info.encoding.dtype
        if dtype is not None:
            return cls(Buffer(memory, dtype, info.shape), info.name, dtype, info.shape)
        if quantization is None:
            raise EncodingError(
                f"`{info.name}` is of {info.encoding.name}, which weightctl does not know",
                hint="it can be listed, not interpreted; a newer version may know it",
            )
        rows = prod(info.shape[:-1])
        shape = (rows, memory.nbytes // rows if rows else 0)
        made = cls(Buffer(memory, DType.uint8, shape), info.name, DType.uint8, shape, quantization)
        made.info = info
        return made

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

    def to_buffer(self) -> Buffer:
        """Turn the data into a `Buffer`, in place, and return it.

        Raises `EncodingError` where the data is not of the dtype and shape that it came with.
        """
        buffer = Buffer.from_dlpack(self.data)
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
        largest number. Quantized data is dequantized. Raises `EncodingError` where there is no
        way from the one to the other.
        """
        import numpy as np  # `ls` loads no numpy

        from weightctl.codecs import transcode

        if dtype is self.dtype:
            return self
        self._require_convertible(dtype)
        raw = np.frombuffer(self.view(), np.uint8)
        source, target = self.info.encoding, dtype.encoding
        rows = raw.reshape(self._rows(), -1) if raw.size else raw.reshape(1, 0)
        converted = transcode(rows, source, target).raw
        memory = np.ascontiguousarray(converted).reshape(-1).data
        return WeightData(Buffer(memory, dtype, self.info.shape), self.name, dtype, self.info.shape)

    def _rows(self) -> int:
        return prod(self.info.shape[:-1]) if self.info.encoding.dtype is None else 1

    def _require_convertible(self, dtype: DType) -> None:
        source = self.info.encoding.dtype
        fractions = source is None or source.is_float
        is_complex = dtype.is_complex or (source is not None and source.is_complex)
        if is_complex or (fractions and not dtype.is_float):
            raise EncodingError(
                f"`{self.name}` cannot go from {self.info.encoding.name} to {dtype.value}",
                hint="only numbers without fractions become integers",
            )

    def to_numpy(self) -> NDArray[Any]:
        """Return the numbers, or the bytes of a quantized tensor, as an array."""
        return self.to_buffer().to_numpy()

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return self.to_buffer().__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        return cast("Any", self.data).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __repr__(self) -> str:
        kind = self.quantization_encoding or self.dtype
        sizes: Sequence[int] = self.info.shape
        return f"WeightData({self.name!r}, {kind}, {list(sizes)})"

"""A tensor's data with its description, and what it is read from."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Protocol, cast

from weightctl.dtype import DType, QuantizationEncoding, as_dtype, as_quantization
from weightctl.errors import ArgumentTypeError, EncodingError, MissingTensorError
from weightctl.shape import Shape, SizedShape
from weightctl.system.registry import load
from weightctl.weights.block_shapes import in_elements
from weightctl.weights.buffer import ArrayMethods, Buffer
from weightctl.weights.conversion import convert_bytes, drops_fractions, require_astype
from weightctl.weights.dlpack import CPU
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from weightctl.codecs.loss import Loss
    from weightctl.dtype import DTypeLike, Encoding
    from weightctl.shape import ShapeLike
    from weightctl.storage.base import FileRange, Reader
    from weightctl.weights.dlpack import DLPackArray
    from weightctl.weights.info import Header


class Source(Protocol):
    """A header, and access to the bytes that it describes, in native byte order."""

    @property
    def header(self) -> Header:
        """The header of the source."""
        ...

    @property
    def files(self) -> Sequence[Reader]:
        """The files, in the order of `Header.files`; empty if everything is in memory."""
        ...

    def data(self, name: str) -> WeightData:
        """Return a tensor's data; its bytes are read on first use."""
        ...

    def read_into(self, name: str, start: int, buffer: memoryview) -> Loss | None:
        """Fill `buffer` with a tensor's bytes from `start`; both ends are on block boundaries.

        Returns the rounding error of the values, if the source rounds them.
        """
        ...

    def file_range(self, name: str, /) -> FileRange | None:
        """The range of a file with the same bytes as `read_into` returns; None if there is none."""
        ...

    def refuse_change(self) -> None:
        """Raise `FormatError` if the bytes have changed, or may have changed."""
        ...


class FileBuffer(Buffer):
    """A `Buffer` over a mapping; it records the source and the name of its tensor.

    Until the memory is handed out (`is_shared`), it cannot have been changed, so the bytes can be
    read from the source instead of the mapping.
    """

    __slots__ = ("is_shared", "name", "source")

    def __init__(
        self, memory: memoryview, dtype: DType, shape: Sequence[int], source: Source, name: str
    ) -> None:
        super().__init__(memory, dtype, shape)
        self.source = source
        self.name = name
        self.is_shared = False

    @property
    def memory(self) -> memoryview:
        """The bytes themselves."""
        self.is_shared = True
        return self._memory


class Deferred:
    """A tensor of a source, read and converted to an encoding on first use."""

    __slots__ = ("_buffer", "_encoding", "_name", "_source")

    def __init__(self, source: Source, name: str, encoding: Encoding) -> None:
        self._source = source
        self._name = name
        self._encoding = encoding
        self._buffer: Buffer | None = None

    def to_buffer(self) -> Buffer:
        """Return the elements, or the bytes of blocks; each call returns the same `Buffer`.

        Raises `EncodingError` if the encoding cannot hold a value.
        """
        if self._buffer is None:
            self._buffer = self._make_buffer()
        return self._buffer

    def _make_buffer(self) -> Buffer:
        data = self._source.data(self._name)
        if data.info.encoding == self._encoding:
            return data.to_buffer()
        whole = self._encoding.dtype
        if whole is not None and drops_fractions(data.info.encoding, self._encoding):
            return data.astype(whole).to_buffer()
        memory = convert_bytes(data.info, data.view(), self._encoding)
        info = data.info._replace(encoding=self._encoding)
        return WeightData.stored(info, memory).to_buffer()

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return self.to_buffer().__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.to_buffer().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


class Assembled(Deferred):
    """A tensor that no file stores in this form; its bytes are assembled on first use.

    Its source provides it only through `read_into`.
    """

    __slots__ = ()

    def __init__(self, source: Source, name: str) -> None:
        super().__init__(source, name, source.header.tensors[name].encoding)

    def _make_buffer(self) -> Buffer:
        info = self._source.header.tensors[self._name]
        memory = memoryview(bytearray(info.nbytes))
        self._source.read_into(self._name, 0, memory)
        return WeightData.stored(info, memory).to_buffer()


class Absent:
    """The placeholder for the data of a declared tensor."""

    __slots__ = ()

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("this tensor was declared without data; load a checkpoint first")

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


class WeightData(ArrayMethods):
    """The data of a tensor with its name, dtype and shape.

    `WeightData` is an array: DLPack exports the elements without a copy, and `np.asarray`, indices,
    `len`, operators and functions are NumPy's.

    The data of a block-quantized tensor is bytes: dtype uint8, shape (rows, bytes per row), and
    `quantization_encoding` is the type of the blocks; `info` has the logical shape. DLPack exports
    the bytes, and `blocks` returns them. For NumPy, it is the dequantized elements, in float32, as
    for the node of the tensor.

    Raises `ArgumentTypeError` if `data` is not an array or `name` is not a string, and
    `EncodingError` if the array has another dtype or shape.
    """

    __slots__ = ("_dtype", "_quantization_encoding", "_shape", "data", "info")

    def __init__(
        self,
        data: DLPackArray,
        name: str,
        dtype: DTypeLike,
        shape: ShapeLike,
        quantization_encoding: QuantizationEncoding | str | None = None,
    ) -> None:
        _require_array(data, name)
        if quantization_encoding is not None:
            quantization_encoding = as_quantization(quantization_encoding)
        self.data = data
        self._dtype = as_dtype(dtype)
        self._shape = SizedShape(Shape(shape).sizes)
        self._quantization_encoding = quantization_encoding
        if quantization_encoding is None:
            self.info = TensorInfo(name, self._shape.sizes, self._dtype.encoding)
        else:
            encoding = quantization_encoding.encoding
            self.info = TensorInfo(name, in_elements(name, self._shape, encoding).sizes, encoding)
        self._require_fit()

    @property
    def name(self) -> str:
        """The name of the tensor; it can be set."""
        return self.info.name

    @name.setter
    def name(self, name: str) -> None:
        _require_name(name)
        self.info = self.info._replace(name=name)

    @property
    def dtype(self) -> DType:
        """The type of the elements; uint8 for blocks. `astype` converts it."""
        return self._dtype

    @property
    def shape(self) -> Shape:
        """The sizes as plain integers: of the elements, or (rows, bytes per row) for blocks."""
        return self._shape

    @property
    def quantization_encoding(self) -> QuantizationEncoding | None:
        """The encoding of the blocks; None for plain elements."""
        return self._quantization_encoding

    @classmethod
    def stored(
        cls, info: TensorInfo, memory: memoryview, source: Source | None = None
    ) -> WeightData:
        """Wrap the bytes of a tensor as its file stores them, in native byte order.

        `source` is given if the memory is a mapping of a file of this source. Raises
        `EncodingError` for an unsupported encoding.
        """
        dtype, shape, _ = _as_bytes(info)
        if source is None:
            return cls.of(info, Buffer(memory, dtype, shape))
        return cls.of(info, FileBuffer(memory, dtype, shape, source, info.name))

    @classmethod
    def of(cls, info: TensorInfo, data: DLPackArray) -> WeightData:
        """Wrap a tensor's data (elements, or blocks as rows of bytes) by its logical description.

        Raises `EncodingError` for an unsupported encoding.
        """
        made = cls(data, info.name, *_as_bytes(info))
        made.info = info
        return made

    @classmethod
    def declared(
        cls,
        name: str,
        dtype: DTypeLike,
        shape: ShapeLike,
        quantization_encoding: QuantizationEncoding | str | None = None,
    ) -> WeightData:
        """Describe a tensor without data; accessing the data raises `MissingTensorError`."""
        return cls(Absent(), name, dtype, shape, quantization_encoding)

    @classmethod
    def from_numpy(cls, arr: NDArray[Any], name: str) -> WeightData:
        """Wrap a NumPy array; dtype and shape are the array's.

        Raises `ArgumentTypeError` if the value is not a NumPy array; use `from_dlpack` for other
        arrays.
        """
        buffer = Buffer.from_numpy(arr)
        return cls(buffer, name, buffer.dtype, buffer.shape)

    @classmethod
    def from_dlpack(cls, array: DLPackArray, name: str) -> WeightData:
        """Wrap any array that supports DLPack; dtype and shape are the array's.

        `WeightData` keeps its own description under the new name. Gradients are dropped, and arrays
        on other devices are copied to the CPU.
        """
        if isinstance(array, WeightData):
            return array if array.name == name else array.with_name(name)
        buffer = Buffer.from_dlpack(array)
        return cls(buffer, name, buffer.dtype, buffer.shape)

    def with_name(self, name: str) -> WeightData:
        """Return the same data under another name."""
        made = WeightData(self.data, name, self.dtype, self.shape, self.quantization_encoding)
        made.info = self.info._replace(name=name)
        return made

    @property
    def is_declared(self) -> bool:
        """Whether this is only a description without data."""
        return isinstance(self.data, Absent)

    def to_buffer(self) -> Buffer:
        """Turn the data into a `Buffer`, in place, and return it.

        Raises `EncodingError` if the data does not have the declared dtype and shape, and
        `MissingTensorError` if the tensor was declared without data.
        """
        if self.is_declared:
            raise MissingTensorError(
                f"`{self.name}` was declared without data",
                hint="open a checkpoint that has the tensor, or create it from an array with "
                "`from_numpy`",
            )
        data = self.data
        buffer = data.to_buffer() if isinstance(data, Deferred) else Buffer.from_dlpack(data)
        if buffer.dtype is not self.dtype or buffer.shape != self.shape.sizes:
            raise self._unfit(buffer.dtype, buffer.shape)
        self.data = buffer
        return buffer

    def view(self, start: int = 0, stop: int | None = None) -> memoryview:
        """Return the bytes from `start` to `stop`; without a copy if the data is contiguous."""
        return self.to_buffer().memory[start:stop]

    def astype(self, dtype: DTypeLike) -> WeightData:
        """Return the data converted to another dtype; the same object if the dtype is the same.

        Values are rounded once, to nearest even. Values that are too large become infinity in
        float16, bfloat16 and float8_e5m2, and the largest value in the other float8 types, which
        have no infinity. Quantized data is dequantized. Floats lose their fraction when they become
        integers; as booleans, all values except 0 are true, as in NumPy. For a declared tensor,
        only the description changes. Raises `EncodingError` for a value that does not fit an
        integer, including NaN, and if the conversion is not supported.
        """
        dtype = as_dtype(dtype)
        if dtype is self.dtype:
            return self
        info = self.info._replace(encoding=dtype.encoding)
        if self.is_declared:
            require_astype(self.info, dtype.encoding)
            return WeightData.of(info, self.data)
        if drops_fractions(self.info.encoding, dtype.encoding):
            return self._as_whole(dtype)
        return WeightData.stored(info, convert_bytes(self.info, self.view(), dtype.encoding))

    def _as_whole(self, dtype: DType) -> WeightData:
        from weightctl.codecs.scalar import truncate

        # float64 can hold every float, and all decoded values of blocks.
        wide = self if self.dtype is DType.float64 else self.astype(DType.float64)
        try:
            numbers = truncate(wide.to_numpy(), dtype)
        except EncodingError as error:
            raise EncodingError(f"`{self.name}`: {error.message}", hint=error.hint) from error
        return WeightData.from_numpy(numbers, self.name)

    def _require_fit(self) -> None:
        """Raise `EncodingError` if the data has another dtype or shape than declared."""
        data: Any = self.data
        try:
            dtype, shape = DType(data.dtype), tuple(data.shape)
        except (AttributeError, TypeError, ValueError):
            return  # its description is not in a supported form; `to_buffer` checks it
        if dtype is not self.dtype or shape != self.shape.sizes:
            raise self._unfit(dtype, shape)

    def _unfit(self, dtype: DType, shape: Sequence[int]) -> EncodingError:
        return EncodingError(
            f"`{self.name}` is declared as {self.dtype.value} {list(self.shape.sizes)}, but "
            f"its data is {dtype.value} {list(shape)}",
            hint="declare the dtype and shape of the data; use `astype` to convert it afterwards",
        )

    def _sizes(self) -> tuple[int, ...]:
        return self.info.shape

    def _buffer(self) -> Buffer:
        is_plain = self.quantization_encoding is None
        return self.to_buffer() if is_plain else self.astype(DType.float32).to_buffer()

    def to_numpy(self) -> NDArray[Any]:
        """Return the elements as an array; those of a quantized tensor are dequantized."""
        return self._buffer().to_numpy()

    def to_torch(self) -> Any:
        """Return the elements as a tensor of torch; those of a quantized tensor are dequantized.

        Plain elements share memory with this object.
        """
        return load("torch").from_dlpack(self._buffer())

    @property
    def blocks(self) -> NDArray[np.uint8]:
        """The bytes of a quantized tensor, of shape (rows, bytes per row).

        Raises `EncodingError` if the tensor is not quantized.
        """
        if self.quantization_encoding is None:
            raise EncodingError(
                f"`{self.name}` is stored as {self.dtype.value}, not in blocks",
                hint="use `.to_numpy()` for its elements",
            )
        return self.to_buffer().to_numpy()

    def __array__(
        self, dtype: np.dtype[Any] | None = None, copy: bool | None = None
    ) -> NDArray[Any]:
        return self._buffer().__array__(dtype, copy)

    def __dlpack__(self, **options: Any) -> Any:
        # Data on another device stays there. On the CPU, the buffer also exports types that NumPy
        # does not have.
        is_here = self.is_declared or self.__dlpack_device__() == CPU
        array = self.to_buffer() if is_here else self.data
        return cast("Any", array).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()

    def __repr__(self) -> str:
        kind = self.quantization_encoding or self.dtype
        sizes: Sequence[int] = self.info.shape
        return f"WeightData({self.name!r}, {kind}, {list(sizes)})"


def _require_array(data: object, name: object) -> None:
    """Raise `ArgumentTypeError` if `data` is not an array or `name` is not a string."""
    _require_name(name)
    if not hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        raise ArgumentTypeError(
            f"the data of `{name}` is a {type(data).__name__}, which is not an array",
            hint="use `np.asarray` to make an array of a list or a number",
        )


def _require_name(name: object) -> None:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{name!r} is not a tensor name; use a string")


def dtype_of_stored(info: TensorInfo) -> DType | QuantizationEncoding:
    """Return the dtype of a tensor's elements, or the encoding of its blocks.

    Raises `EncodingError` for an unsupported encoding.
    """
    dtype, _, quantization = _as_bytes(info)
    return quantization or dtype


def _as_bytes(info: TensorInfo) -> tuple[DType, tuple[int, ...], QuantizationEncoding | None]:
    """Return the dtype and shape of a tensor's data as stored, and the encoding of its blocks."""
    dtype, quantization = info.encoding.dtype, info.encoding.quantization
    if dtype is not None:
        return dtype, info.shape, None
    if quantization is None:
        raise EncodingError(
            f"weightctl does not support {info.encoding.name}, the encoding of `{info.name}`",
            hint="the tensor can be listed but not read; a newer version of weightctl may "
            "support it",
        )
    rows = prod(info.shape[:-1])
    return DType.uint8, (rows, info.nbytes // rows if rows else 0), quantization

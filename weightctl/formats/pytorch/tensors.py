"""Locations of tensors' bytes, computed from the pickle and checked against the storages."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from weightctl.dtype import ENCODINGS, Encoding, encoding_by_id
from weightctl.formats.base import is_possible
from weightctl.formats.pickles.machine import UnsoundPickleError
from weightctl.formats.pickles.records import Blob
from weightctl.formats.pytorch.legacy import read_stream
from weightctl.formats.pytorch.records import (
    Array,
    Enclosed,
    Encoded,
    NumPyType,
    Storage,
    TensorRecord,
)
from weightctl.formats.pytorch.values import bytes_of
from weightctl.text.untyped import is_tuple
from weightctl.weights.info import Extent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.storage.base import ByteRange

    Locate = Callable[[Storage], tuple[int, int]]

_MAX_DIMENSIONS = 64  # NumPy's and torch's own limit
# NumPy's dtype codes in pickles.
NUMPY_ENCODINGS = {
    "b1": "BOOL", "i1": "I8", "u1": "U8", "i2": "I16", "u2": "U16", "i4": "I32", "u4": "U32",
    "i8": "I64", "u8": "U64", "f2": "F16", "f4": "F32", "f8": "F64", "c8": "C64", "c16": "C128",
    **{
        name: encoding.name for name in (
            "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
            "float8_e8m0fnu",
        ) if (encoding := encoding_by_id("pytorch", name))
    },
}  # fmt: skip
_INTEGERS = frozenset({int})
_LARGEST = 1 << 60


class UnsoundTensorError(ValueError):
    """The description of a tensor in a pickle is invalid."""


class _Layout(NamedTuple):
    """The number of elements of a tensor, the span of its elements, and whether it is contiguous.

    The span is the number of elements of the storage from the tensor's first to its last element.
    """

    size: int
    span: int
    is_whole: bool


class PlacedTensor(NamedTuple):
    """A tensor's shape and encoding, and the place of its bytes."""

    shape: tuple[int, ...]
    encoding: Encoding
    extent: Extent


def flat(storage: Storage) -> TensorRecord:
    """Return the tensor of a whole storage; its elements are bytes if the storage is untyped."""
    encoding, count = storage.encoding or ENCODINGS["U8"], storage.length
    if encoding.block > 1:
        encoding = ENCODINGS["U8"]
    return TensorRecord(storage, 0, (count,), (1,), encoding)


def place_tensor(tensor: TensorRecord, locate: Locate) -> PlacedTensor | None:
    """Return the place of a tensor; None if its type is not supported.

    Raises `UnsoundTensorError` if its storage does not contain it.
    """
    storage, encoding = tensor.storage, tensor.encoding
    if type(storage) is not Storage or encoding is None:
        return None
    shape, strides = tensor.shape, tensor.strides
    if not _is_sizes(shape) or not _is_sizes(strides) or len(shape) != len(strides):
        raise UnsoundTensorError("has an invalid shape or strides")
    if not _is_sizes((tensor.offset,)):
        raise UnsoundTensorError("has an invalid storage offset")
    layout = _layout(shape, strides)
    width, first = encoding.size, storage.start + tensor.offset
    start, nbytes = locate(storage)
    if encoding.name == "F4":
        # torch's shape counts pairs of values, which are a byte each.
        shape = (*shape[:-1], 2 * (shape[-1] if shape else 1))
    elif encoding.block > 1:
        # torch's shape counts the values, and such tensors are always contiguous.
        if not layout.is_whole or not encoding.fits(shape):
            return None
        layout = _Layout(encoding.nbytes(shape), encoding.nbytes(shape), is_whole=True)
    if layout.size and (first + layout.span) * width > nbytes:
        raise UnsoundTensorError(
            f"needs {(first + layout.span) * width} bytes of its storage, but the storage has "
            f"{nbytes}"
        )
    offset = start + first * width if layout.size else start
    steps = None if layout.is_whole else tuple(stride * width for stride in strides)
    return PlacedTensor(shape, encoding, Extent(0, offset, layout.size * width, steps))


def _is_sizes(sizes: Any) -> TypeGuard[tuple[int, ...]]:
    if (
        not is_tuple(sizes)
        or len(sizes) > _MAX_DIMENSIONS
        or not _INTEGERS.issuperset(map(type, sizes))
    ):
        return False
    return not sizes or (min(sizes) >= 0 and max(sizes) < _LARGEST)


# Many tensors have the same shape.
@lru_cache(1024)
def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> _Layout:
    if not is_possible(shape):
        raise UnsoundTensorError("has an invalid shape")
    span = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return _Layout(prod(shape), span, _is_contiguous(shape, strides))


def _is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    step = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != step:
            return 0 in shape
        step *= n
    return True


def place_array(
    array: Array, data: ByteRange, base: int, *, big_endian: bool
) -> PlacedTensor | None:
    """Return the place of a NumPy array; None if its elements are not numbers.

    `data` is the pickle, which begins at `base` in the file; `big_endian` is the byte order of the
    other tensors in it. Raises `UnsoundTensorError` if the array is invalid.
    """
    kind = array.dtype
    encoding = (
        ENCODINGS.get(NUMPY_ENCODINGS.get(kind.code, "")) if type(kind) is NumPyType else None
    )
    content = array.content
    # Text is only encoded if it is needed, because many arrays can share it.
    raw = None if encoding is None else bytes_of(content, data)
    if encoding is None or raw is None:
        return None
    shape = array.shape
    if not _is_sizes(shape) or not is_possible(shape):
        raise UnsoundTensorError("has an invalid shape")
    nbytes = encoding.nbytes(shape)
    if len(raw) != nbytes:
        raise UnsoundTensorError(f"needs {nbytes} bytes, but the pickle has {len(raw)}")
    strides = None
    if array.is_fortran and len(shape) > 1:
        strides = tuple(encoding.size * prod(shape[:axis]) for axis in range(len(shape)))
    is_swapped = (kind.order == ">") is not big_endian and encoding.size > 1
    if type(content) is Blob and not is_swapped:
        return PlacedTensor(shape, encoding, Extent(0, base + content.start, nbytes, strides))
    held = raw.read(0, nbytes)
    if is_swapped:
        held = _swap_bytes(held, encoding)
    return PlacedTensor(shape, encoding, Extent(0, base, nbytes, strides, held))


def _swap_bytes(raw: bytes, encoding: Encoding) -> bytes:
    """Return the bytes of elements in the other byte order."""
    # The real and the imaginary part of a complex number are swapped separately.
    width = encoding.size // 2 if encoding.name.startswith("C") else encoding.size
    made = bytearray(len(raw))
    for place in range(width):
        made[place::width] = raw[width - 1 - place :: width]
    return bytes(made)


class _Opened(NamedTuple):
    """A storage, the offset and length of its bytes, and the bytes that contain it."""

    storage: Storage
    place: tuple[int, int]
    memory: ByteRange
    is_held: bool


class Streams:
    """The storages that are embedded in a pickle as streams.

    Each stream is opened once, and its other objects are ignored. `data` is the pickle, which
    begins at `base` in the file; `big_endian` is the byte order of the file, while streams are
    always little-endian. Source: `__reduce__` of the storages in `torch/storage.py`.
    """

    def __init__(self, data: ByteRange, base: int, *, big_endian: bool) -> None:
        self._data, self._base, self._big_endian = data, base, big_endian
        self._opened: dict[object, _Opened | None] = {}

    def place(self, enclosed: Enclosed, tensor: TensorRecord | None = None) -> PlacedTensor | None:
        """Return the place of a tensor over a stream's storage, or of the whole storage.

        Bytes that are encoded or swapped are kept in memory. Returns None, or raises, in the same
        cases as `place_tensor`.
        """
        opened = self._open(enclosed)
        if opened is None:
            return None
        storage = opened.storage
        if tensor is None:
            tensor = flat(storage)
        encoding = tensor.encoding or storage.encoding
        placed = place_tensor(
            tensor._replace(storage=storage, encoding=encoding), lambda _: opened.place
        )
        if placed is None:
            return None
        extent, encoding = placed.extent, placed.encoding
        is_swapped = self._big_endian and encoding.size > 1
        if not opened.is_held and not is_swapped:
            return placed._replace(extent=extent._replace(offset=self._base + extent.offset))
        end = sum(opened.place) if extent.strides else extent.offset + extent.nbytes
        held = opened.memory.read(extent.offset, end - extent.offset)
        if is_swapped:
            held = _swap_bytes(held[: len(held) // encoding.size * encoding.size], encoding)
        return placed._replace(extent=extent._replace(offset=self._base, held=held))

    def _open(self, enclosed: Enclosed) -> _Opened | None:
        content = enclosed.content
        if type(content) not in {Blob, Encoded, str}:
            return None
        if content not in self._opened:
            try:
                self._opened[content] = self._read(content)
            except UnsoundPickleError as error:
                raise UnsoundTensorError(f"has an invalid storage: {error}") from error
        return self._opened[content]

    def _read(self, content: Blob | Encoded | str) -> _Opened | None:
        raw = bytes_of(content, self._data)
        if raw is None:
            return None
        stream = read_stream(raw)
        storage = stream.root
        if type(storage) is not Storage or storage.key not in stream.places:
            return None
        start, nbytes = stream.places[storage.key]
        if type(content) is Blob:
            place = (content.start + start, nbytes)
            return _Opened(storage, place, self._data, is_held=False)
        return _Opened(storage, (start, nbytes), raw, is_held=True)

"""The places of tensors' bytes, from the pickle, checked against their storages."""

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

    from weightctl.storage.byte_range import ByteRange

    Locate = Callable[[Storage], tuple[int, int]]

__all__ = ["PlacedTensor", "Streams", "UnsoundTensorError", "flat", "place_array", "place_tensor"]

_MAX_DIMENSIONS = 64  # NumPy's and torch's own limit
# NumPy's types as they are pickled.
_ARRAYS = {
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
    """What a pickle says of a tensor cannot be."""


class _Layout(NamedTuple):
    """The elements of a tensor, those from its first to its last, whether they are in a row."""

    size: int
    span: int
    is_whole: bool


class PlacedTensor(NamedTuple):
    """A tensor's shape and encoding, and where its bytes are."""

    shape: tuple[int, ...]
    encoding: Encoding
    extent: Extent


def flat(storage: Storage) -> TensorRecord:
    """Return the tensor of all that a storage holds; bytes, where it does not say of what."""
    encoding, count = storage.encoding or ENCODINGS["U8"], storage.length
    if encoding.block > 1:
        encoding = ENCODINGS["U8"]
    return TensorRecord(storage, 0, (count,), (1,), encoding)


def place_tensor(tensor: TensorRecord, locate: Locate) -> PlacedTensor | None:
    """Return where a tensor is, None for one of what is not known.

    Raises `UnsoundTensorError` if its storage does not hold it.
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
        # torch counts the pairs, each a byte.
        shape = (*shape[:-1], 2 * (shape[-1] if shape else 1))
    elif encoding.block > 1:
        # It counts the numbers, and has such tensors only whole.
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


# Many tensors have one shape.
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
    """Return where a NumPy array is, None if its elements are not numbers.

    `data` is the pickle, `base` where it starts in the file; `big_endian` is the byte order of the
    other tensors in it. Raises `UnsoundTensorError`.
    """
    kind = array.dtype
    encoding = ENCODINGS.get(_ARRAYS.get(kind.code, "")) if type(kind) is NumPyType else None
    content = array.content
    # A text becomes bytes only where it can be of use: many arrays may share one.
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
    """Return the bytes of numbers in the other byte order."""
    # The two halves of a complex number are swapped each by itself.
    width = encoding.size // 2 if encoding.name.startswith("C") else encoding.size
    made = bytearray(len(raw))
    for place in range(width):
        made[place::width] = raw[width - 1 - place :: width]
    return bytes(made)


class _Opened(NamedTuple):
    """A storage, where its bytes start and how many they are, and what holds them."""

    storage: Storage
    place: tuple[int, int]
    memory: ByteRange
    is_held: bool


class Streams:
    """The storages of a pickle that are streams of their own.

    Each is opened once, and what one holds besides its storage is not looked at. `data` is the
    pickle and `base` where it starts in the file; `big_endian` is the byte order of the file,
    where that of streams is always little. Source: `__reduce__` of the storages in
    `torch/storage.py`.
    """

    def __init__(self, data: ByteRange, base: int, *, big_endian: bool) -> None:
        self._data, self._base, self._big_endian = data, base, big_endian
        self._opened: dict[object, _Opened | None] = {}

    def place(self, enclosed: Enclosed, tensor: TensorRecord | None = None) -> PlacedTensor | None:
        """Return where a tensor over a stream's storage is, or all of the storage.

        Bytes that must be changed are kept in memory. It is None, or raises, where that of
        `place_tensor` is or does.
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

"""Storages of plain pickles: each is a stream of its own, as bytes in the pickle.

Source: `__reduce__` of the storages in `torch/storage.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.pickles.machine import UnsoundPickleError
from weightctl.formats.pickles.records import Blob
from weightctl.formats.pytorch.legacy import read_stream
from weightctl.formats.pytorch.records import Enclosed, Encoded, Storage, TensorRecord
from weightctl.formats.pytorch.tensors import (
    PlacedTensor,
    UnsoundTensorError,
    flat,
    place_tensor,
    swap_bytes,
)
from weightctl.formats.pytorch.values import bytes_of

if TYPE_CHECKING:
    from weightctl.storage.byte_range import ByteRange

__all__ = ["Streams"]


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
    where that of streams is always little.
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
            held = swap_bytes(held[: len(held) // encoding.size * encoding.size], encoding)
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

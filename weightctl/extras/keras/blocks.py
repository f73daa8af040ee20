"""The chunks of a dataset of HDF5, which can be compressed; each is read when it is used."""

from __future__ import annotations

import zlib
from functools import partial
from itertools import product
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.split import Cut
from weightctl.weights.byte_ranges import assemble, byte_part, byte_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from weightctl.split import Part
    from weightctl.storage.base import Reader
    from weightctl.weights.info import TensorInfo

GZIP, SHUFFLE = "gzip", "shuffle"
_DAMAGED = "the file is damaged: check that the download is complete"
# Decoded chunks that are kept, because the next read often needs the same ones.
_MOST_KEPT = 1 << 25

_Place = tuple[int, ...]


class BlockOfFile(NamedTuple):
    """Where a chunk is; a bit of `left_out` states that the filter of this number is not used."""

    offset: int
    nbytes: int
    left_out: int


class DatasetBlocks:
    """Reads a tensor from its chunks, which form a grid; chunks at the end of an axis are padded.

    `sizes` is the shape of a chunk, and `blocks` has each chunk by its place in the grid. Their
    offsets are relative to the first one.
    """

    def __init__(
        self,
        info: TensorInfo,
        sizes: tuple[int, ...],
        filters: tuple[str, ...],
        blocks: Mapping[_Place, BlockOfFile],
    ) -> None:
        self._info, self._sizes = info, sizes
        self._filters, self._blocks = filters, blocks
        self._nbytes = prod(sizes) * info.encoding.size
        self._kept: dict[_Place, bytes] = {}
        self._lock = Lock()

    def describe(self) -> tuple[_Place, tuple[str, ...], list[tuple[_Place, BlockOfFile]]]:
        """Return the shape of a chunk, the filters, and the place and range of each chunk."""
        return self._sizes, self._filters, [*self._blocks.items()]

    def read_into(self, file: Reader, offset: int, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with the tensor's bytes from `start` on; only its chunks are read.

        Raises `FormatError` if a chunk is damaged.
        """
        shape = byte_shape(self._info)
        row = prod(shape[1:])
        first = start // row // self._sizes[0]
        last = (start + buffer.nbytes - 1) // row // self._sizes[0]
        if len(self._sizes) == 1:
            width = self._info.encoding.size * self._sizes[0]
            first, last = start // width, (start + buffer.nbytes - 1) // width
        assemble(shape, [*self._parts(file, offset, first, last)], start, buffer)

    def _parts(
        self, file: Reader, offset: int, first: int, last: int
    ) -> Iterator[tuple[Part, Callable[[int, memoryview], object]]]:
        """Yield the chunks in rows of the grid, as parts of the bytes of the tensor."""
        counts = [
            -(-size // step) for size, step in zip(self._info.shape, self._sizes, strict=True)
        ]
        for place in product(range(first, last + 1), *map(range, counts[1:])):
            cuts = tuple(
                Cut(axis, ((at * step, min((at + 1) * step, size)),))
                for axis, (at, step, size) in enumerate(
                    zip(place, self._sizes, self._info.shape, strict=True)
                )
            )
            yield byte_part(self._info, cuts), partial(self._read_block, file, offset, place)

    def _read_block(
        self, file: Reader, offset: int, place: _Place, start: int, buffer: memoryview
    ) -> None:
        """Fill `buffer` with bytes of a chunk, without its padding."""
        block = self._blocks[place]
        is_whole = self._crop_sizes(place) == self._sizes
        if is_whole and not self._filters:
            if start + buffer.nbytes > block.nbytes:
                raise self._refuse(file, offset + block.offset, f"it has {block.nbytes} bytes")
            file.read_into(offset + block.offset + start, buffer)
            return
        content = self._kept.get(place)
        if content is None:
            content = self._decode(file, offset + block.offset, block)
            if not is_whole:
                content = self._crop(content, place)
            self._keep(place, content)
        buffer[:] = content[start : start + buffer.nbytes]

    def _keep(self, place: _Place, content: bytes) -> None:
        room = max(_MOST_KEPT // self._nbytes, 1)
        with self._lock:
            self._kept[place] = content
            if len(self._kept) > room:
                del self._kept[next(iter(self._kept))]

    def _crop_sizes(self, place: _Place) -> tuple[int, ...]:
        """Return the shape of a chunk without the padding after the end of the tensor."""
        return tuple(
            min(step, size - at * step)
            for at, step, size in zip(place, self._sizes, self._info.shape, strict=True)
        )

    def _crop(self, content: bytes, place: _Place) -> bytes:
        import numpy as np  # not loaded by `ls`

        whole = np.frombuffer(content, np.uint8).reshape(*self._sizes, -1)
        return whole[tuple(map(slice, self._crop_sizes(place)))].tobytes()

    def _decode(self, file: Reader, at: int, block: BlockOfFile) -> bytes:
        content = file.read(at, block.nbytes)
        for number, name in reversed([*enumerate(self._filters)]):
            if not block.left_out >> number & 1:
                content = self._inflate(content) if name == GZIP else self._unshuffle(content)
        if len(content) != self._nbytes:
            raise self._refuse(file, at, f"it has {len(content)} bytes when it is decoded")
        return content

    def _inflate(self, content: bytes) -> bytes:
        """Decompress a chunk; no more bytes than a chunk has, so that its memory is limited."""
        try:
            return zlib.decompressobj().decompress(content, self._nbytes + 1)
        except zlib.error:
            return b""

    def _unshuffle(self, content: bytes) -> bytes:
        import numpy as np

        width = self._info.encoding.size
        if len(content) % width:
            return b""
        return np.frombuffer(content, np.uint8).reshape(width, -1).T.tobytes()

    def _refuse(self, file: Reader, at: int, reason: str) -> FormatError:
        text = f"a chunk of `{self._info.name}` is invalid: {reason}, and {self._nbytes} are needed"
        return FormatError(file.path, at, text, hint=_DAMAGED)

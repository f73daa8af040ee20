"""What each thread does: it reads tensors of the source, and writes what ranks have of them."""

from __future__ import annotations

import hashlib
from math import prod
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.split import part_shape
from weightctl.system.threads import Memory
from weightctl.weights.boxes import boxes, byte_part, byte_shape, meetings, scatter
from weightctl.weights.steps.sliced import runs
from weightctl.write.shards.journal import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.weights.boxes import Box
    from weightctl.weights.source import Source
    from weightctl.write.shards.work import Content, Pass
    from weightctl.write.shards.writable import Writable

__all__ = ["Writing"]

# So many bytes are still in a cache when they are hashed and written; with fewer the threads wait
# for each other more often.
_PIECE = 1 << 20
_ZEROS = bytes(1 << 20)


class Writing:
    """Makes passes over a source into the files of the ranks; several threads may at once."""

    def __init__(self, source: Source, files: Sequence[Writable]) -> None:
        self._source = source
        self._tensors = source.header.tensors
        self._files = files
        self._memory = Memory()

    def make(self, each: Pass, told: Callable[[int], object]) -> list[Record]:
        """Make a pass; return what it has written, whether or not that is on the disk.

        `told` is called with the bytes of each piece, times the ranks that have it.
        """
        digests = [hashlib.sha256() for _ in each.contents]
        ends = [0] * len(each.contents)
        pieces = self._by_runs(each) if each.by_itself else self._by_boxes(each)
        for number, data in pieces:
            content = each.contents[number]
            digests[number].update(data)
            for rank, _, offset in content.places:
                self._files[rank].write(offset + ends[number], data)
            ends[number] += len(data)
            told(len(data) * len(content.places))
        for content, digest, end in zip(each.contents, digests, ends, strict=True):
            _refuse_other(content, end, self._count_expected(content))
            # They stand there already: the file has nothing else where nothing was written.
            for start in range(end, content.nbytes, len(_ZEROS)):
                digest.update(memoryview(_ZEROS)[: content.nbytes - start])
            told((content.nbytes - end) * len(content.places))
        return [
            Record(place.rank, place.name, digest.hexdigest())
            for content, digest in zip(each.contents, digests, strict=True)
            for place in content.places
        ]

    def _count_expected(self, content: Content) -> int:
        found = 0
        for name, part in content.pieces:
            info = self._tensors[name]
            found += prod(part_shape(byte_shape(info), byte_part(info, part)))
        return found

    def _by_runs(self, each: Pass) -> Iterator[tuple[int, memoryview]]:
        """Yield the pieces of the one content there is."""
        for name, part in each.contents[0].pieces:
            info, step = self._tensors[name], self._step(name)
            for start, nbytes in runs(info, part):
                stop = start + nbytes
                for at in range(start, stop, step):
                    held = self._memory.room("piece", min(step, stop - at))
                    self._source.read_into(name, at, held)
                    yield 0, held

    def _by_boxes(self, each: Pass) -> Iterator[tuple[int, memoryview]]:
        """Yield pieces with the number of the content that they go on with."""
        for number, name in enumerate(each.sources):
            info = self._tensors[name]
            shape = byte_shape(info)
            parts = [byte_part(info, content.pieces[number].part) for content in each.contents]
            for box in boxes(shape, self._step(name)):
                met = [
                    (of, found)
                    for of, part in enumerate(parts)
                    for found in meetings(shape, part, box)
                ]
                if not met:
                    continue
                start, nbytes = _range(shape, box)
                held = self._memory.room("box", nbytes)
                self._source.read_into(name, start, held)
                for of, found in met:
                    if found.is_contiguous:
                        yield of, held[found.start : found.start + found.nbytes]
                        continue
                    own = self._memory.room("piece", found.nbytes)
                    scatter(shape, box, held, found, own)
                    yield of, own

    def _step(self, name: str) -> int:
        """Return how many bytes of a tensor are read at a time: whole blocks."""
        encoding = self._tensors[name].encoding
        # A change of byte order needs them; where blocks are unknown there is none.
        block = encoding.size if encoding.is_known else 1
        return max(_PIECE // block, 1) * block


def _range(shape: Sequence[int], box: Box) -> tuple[int, int]:
    """Return where the bytes of a box start, and how many there are."""
    index = 0
    for at, size in zip(box.place, shape, strict=False):
        index = index * size + at
    axis = len(box.place)
    inner = prod(shape[axis + 1 :])
    return (index * shape[axis] + box.start) * inner, (box.stop - box.start) * inner


def _refuse_other(content: Content, end: int, expected: int) -> None:
    if end != expected or end > content.nbytes:
        raise ConversionError(
            f"`{content.places[0].name}` came out as {end} bytes, where {expected} belong",
            hint="this is a fault of weightctl; please report it",
        )

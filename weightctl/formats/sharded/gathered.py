"""Whole tensors of a sharded checkpoint, read from the files of its ranks."""

from __future__ import annotations

from copy import copy
from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.base import LEVELS_KEY
from weightctl.split import part_shape
from weightctl.storage.base import FileRange
from weightctl.weights.byte_ranges import assemble, byte_part, byte_shape
from weightctl.weights.data import Assembled
from weightctl.weights.info import Extent, Header
from weightctl.weights.source import FileSource

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from weightctl.formats.sharded.records import Manifest
    from weightctl.split import Part
    from weightctl.storage.base import Reader
    from weightctl.weights.data import WeightData
    from weightctl.weights.info import TensorInfo


class _Portion(NamedTuple):
    """A part of a tensor, and the shard that contains its bytes from `offset` on."""

    part: Part
    shard: str
    offset: int


class GatheredSource:
    """A source of whole tensors, which are stored as shards in the files of ranks.

    `manifest` is the manifest of the set, and `ranks` are the headers of its files. `shards` is a
    source of the shards in the files, by `shard_key`.
    """

    def __init__(
        self,
        manifest: Manifest,
        listing: str,
        ranks: Sequence[Header],
        files: Sequence[Reader],
    ) -> None:
        self.manifest = manifest
        self.ranks = tuple(ranks)
        self._files = tuple(files)
        self.shards = FileSource(_shards(self.ranks), self._files)
        self._portions = _portions(manifest)
        header = self.ranks[0]._replace(
            files=self.shards.header.files,
            tensors=manifest.tensors,
            extents={name: self._extent(info) for name, info in manifest.tensors.items()},
            aliases=manifest.aliases,
            listing=listing,
            notes=tuple(dict.fromkeys(note for header in self.ranks for note in header.notes)),
            shardings=manifest.shardings,
        )
        if LEVELS_KEY in header.metadata:
            from weightctl.formats.pytorch.nesting import with_leaves

            header = with_leaves(header)
        self._header = header

    @property
    def header(self) -> Header:
        """The header of the whole checkpoint; the extent of a tensor is that of its first part."""
        return self._header

    @property
    def files(self) -> tuple[Reader, ...]:
        """The open files of all ranks."""
        return self.shards.files

    def view_for_ranks(self, ranks: Collection[int]) -> GatheredSource:
        """Return the same source for some ranks, which prefers the files of these ranks."""
        seen = copy(self)
        seen._portions = _portions(self.manifest, ranks)  # noqa: SLF001  # of its own class
        return seen

    def data(self, name: str) -> WeightData:
        """Return a tensor's data: a mapping if a file has the whole tensor, else read on use."""
        from weightctl.weights.data import WeightData

        info, span = self._header.tensors[name], self.file_range(name)
        if span is None:
            return WeightData.of(info, Assembled(self, name))
        return WeightData.stored(info, span.file.private(span.offset, span.nbytes), self)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        """Fill `buffer` with bytes from the parts; only the requested bytes are read.

        If different parts overlap, the bytes of each part are read.
        """
        info, portions = self._header.tensors[name], self._portions[name]
        # Where parts overlap, the bytes of the first one are kept.
        parts = [
            (byte_part(info, each.part), partial(self._read_portion, each))
            for each in reversed(portions)
        ]
        assemble(byte_shape(info), parts, start, buffer, info.encoding.size)

    def _read_portion(self, portion: _Portion, start: int, buffer: memoryview) -> None:
        self.shards.read_into(portion.shard, portion.offset + start, buffer)

    def file_range(self, name: str, /) -> FileRange | None:
        """Return the range of a file with the whole tensor; None if no rank has all of it."""
        first = self._portions[name][0]
        span = None if first.part else self.shards.file_range(first.shard)
        if span is None:
            return None
        return FileRange(span.file, span.offset + first.offset, self._header.tensors[name].nbytes)

    def refuse_change(self) -> None:
        """Raise `FormatError` if a rank's file was changed after it was opened."""
        self.shards.refuse_change()

    def _extent(self, info: TensorInfo) -> Extent:
        first = self._portions[info.name][0]
        file, offset, *_ = self.shards.header.extents[first.shard]
        return Extent(file, offset + first.offset, info.nbytes)


def shard_key(rank: int, name: str) -> str:
    """Return the name, in the source of all shards, of a tensor of a rank's file."""
    return f"{rank}/{name}"


def _shards(ranks: Sequence[Header]) -> Header:
    """Return one header for all files, with every tensor of each file."""
    return Header(
        format=ranks[0].format,
        files=tuple(header.files[0] for header in ranks),
        tensors={
            shard_key(rank, name): info
            for rank, header in enumerate(ranks)
            for name, info in header.tensors.items()
        },
        extents={
            shard_key(rank, name): Extent(rank, extent.offset, extent.nbytes)
            for rank, header in enumerate(ranks)
            for name, extent in header.extents.items()
        },
    )


def _portions(manifest: Manifest, first: Collection[int] = ()) -> dict[str, tuple[_Portion, ...]]:
    """Return the different parts of each tensor, and the shards that contain them.

    If several ranks have the same part, the first one is used, and ranks in `first` come before
    others. After a whole tensor, no other part is needed.
    """
    found: dict[str, dict[Part, _Portion]] = {name: {} for name in manifest.tensors}
    for rank in dict.fromkeys((*first, *range(len(manifest.files)))):
        for shard in manifest.files[rank].shards:
            key, offset = shard_key(rank, shard.info.name), 0
            for source, part in shard.pieces:
                known = found[source]
                if part not in known and () not in known:
                    known[part] = _Portion(part, key, offset)
                if len(shard.pieces) > 1:
                    offset += _nbytes(manifest.tensors[source], part)
    return {name: tuple(by_part.values()) for name, by_part in found.items()}


def _nbytes(info: TensorInfo, part: Part) -> int:
    return prod(part_shape(byte_shape(info), byte_part(info, part)))

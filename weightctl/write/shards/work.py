"""What is read together: the tensors of all ranks, as passes over those of the source."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.weights.boxes import byte_part, byte_shape

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.formats.sharded.record import Shard, SourceShard
    from weightctl.weights.info import Header, TensorInfo

__all__ = ["Content", "Pass", "RankOffset", "passes"]

# Where bytes that follow one another are fewer, ranks that have what is between them read together.
_LEAST_RUN = 1 << 16
# What takes so long is begun first, so that no thread is left alone with it in the end.
_LARGE = 1 << 26


class RankOffset(NamedTuple):
    """Where a tensor of a rank stands in the rank's file."""

    rank: int
    name: str
    offset: int


class Content(NamedTuple):
    """Bytes that tensors of ranks have: pieces of the source one after the other, then zeros."""

    pieces: tuple[SourceShard, ...]
    nbytes: int
    places: tuple[RankOffset, ...]


class Pass(NamedTuple):
    """Contents that are made while these tensors of the source are read once.

    `by_itself` says that it is a single one, of which long runs of bytes are read one by one.
    """

    sources: tuple[str, ...]
    contents: tuple[Content, ...]
    by_itself: bool

    @property
    def nbytes(self) -> int:
        """The bytes that are made."""
        return sum(content.nbytes for content in self.contents)


def passes(
    header: Header,
    ranks: Sequence[Sequence[Shard]],
    layouts: Sequence[Layout],
    done: Collection[tuple[int, str]],
) -> list[Pass]:
    """Return the passes that make all tensors but those that are done, by rank and name.

    What several ranks have alike is made once.
    """
    places: dict[tuple[tuple[SourceShard, ...], int], list[RankOffset]] = {}
    for rank, (shards, layout) in enumerate(zip(ranks, layouts, strict=True)):
        offsets = {
            info.name: offset for info, offset in zip(layout.tensors, layout.offsets, strict=True)
        }
        for info, pieces, *_ in shards:
            if (rank, info.name) not in done:
                place = RankOffset(rank, info.name, offsets[info.name])
                places.setdefault((pieces, info.nbytes), []).append(place)
    found: list[Pass] = []
    together: dict[tuple[str, ...], list[Content]] = {}
    for (pieces, nbytes), at in places.items():
        content = Content(pieces, nbytes, tuple(at))
        sources = tuple(piece.source for piece in pieces)
        if all(_is_long(header.tensors, piece) for piece in pieces):
            found.append(Pass(sources, (content,), by_itself=True))
        else:
            together.setdefault(sources, []).append(content)
    found += [Pass(sources, tuple(of), by_itself=False) for sources, of in together.items()]
    return sorted(found, key=lambda each: _turn(header, each))


def _turn(header: Header, each: Pass) -> tuple[int, tuple[int, int], int]:
    """Return by what passes are put in order: that of the files, which disks like best."""
    extents = [header.extents[name] for name in each.sources]
    first = min(((extent.file, extent.offset) for extent in extents), default=(0, 0))
    return -(each.nbytes // _LARGE), first, each.contents[0].places[0].rank


def _is_long(tensors: Mapping[str, TensorInfo], piece: SourceShard) -> bool:
    """Whether the bytes of a piece follow one another for long, or are all that there are."""
    if not piece.part:
        return True
    info = tensors[piece.source]
    shape, part = byte_shape(info), byte_part(info, piece.part)
    axis, ranges = max(part)
    inner = prod(shape[axis + 1 :])
    # Of a tensor without elements there are no ranges.
    shortest = min((stop - start for start, stop in ranges), default=0)
    return shortest * inner >= _LEAST_RUN

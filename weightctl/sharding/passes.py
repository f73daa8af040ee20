"""Plans the passes over a source that make the contents of the ranks' files."""

from __future__ import annotations

from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from weightctl.system.processes import without_collection
from weightctl.weights.info import TensorInfo
from weightctl.weights.steps.sliced import shortest_run

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from weightctl.formats.base import Layout
    from weightctl.formats.sharded.records import SourceShard
    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Part

# If the byte ranges of a shard are shorter than this, the shards of several ranks are made in one
# pass, which reads the whole tensor.
_LEAST_RUN = 1 << 16
# Passes of at least this number of bytes start first, so that all threads end at about the same
# time.
_LARGE = 1 << 26
# Contents from the same tensors are made in one pass if they have at most this number of bytes.
_JOINED = 1 << 24


class RankOffset(NamedTuple):
    """The offset of a tensor in a rank's file."""

    rank: int
    name: str
    offset: int


class Content(NamedTuple):
    """Bytes that one or several ranks have as a tensor, at these places.

    They consist of shards of the source, in order, followed by zeros up to `nbytes`.
    """

    pieces: tuple[SourceShard, ...]
    nbytes: int
    places: tuple[RankOffset, ...]


class Pass(NamedTuple):
    """Contents that are made while some tensors of the source are read once.

    `members` are the shards that get the contents, as a flat sequence of ranks and numbers in the
    ranks' files: rank, number, rank, number and so on. `nbytes` is the size of the contents, and
    `written` the number of bytes written to all files. `by_itself` is set for contents with long
    byte ranges, which are read separately. There may be a hundred thousand passes, so their
    contents are not part of them: `RankPlan.list_contents` lists them when they are needed.
    """

    sources: tuple[str, ...]
    members: tuple[int, ...]
    nbytes: int
    written: int
    by_itself: bool


class _Content(NamedTuple):
    """The members that get the same bytes, as in `Pass`, and the number of bytes."""

    members: tuple[int, ...]
    nbytes: int


class RankPlan:
    """The shards of all ranks, with their places in the ranks' files."""

    def __init__(self, plan: ShardPlan, layouts: Sequence[Layout]) -> None:
        self._header = plan.source.header
        self._ranks = plan.ranks
        self._layouts = layouts
        self._long: dict[tuple[tuple[int, ...], str, Part], bool] = {}

    @cached_property
    def _offsets(self) -> list[Mapping[str, int]]:
        """The offsets of the tensors of each rank by name; many ranks have the same layout."""
        made: dict[int, Mapping[str, int]] = {}
        for layout in self._layouts:
            if id(layout) not in made:
                names = (info.name for info in layout.tensors)
                made[id(layout)] = dict(zip(names, layout.offsets, strict=True))
        return [made[id(layout)] for layout in self._layouts]

    def find_place(self, rank: int, number: int) -> RankOffset:
        """Return the place of tensor `number` in the file of a rank."""
        name = self._ranks[rank][number].info.name
        return RankOffset(rank, name, self._offsets[rank][name])

    def list_contents(self, each: Pass) -> list[Content]:
        """Return the contents that a pass makes."""
        found: list[Content] = []
        for members, nbytes in self._list_distinct(each.members):
            places = [self.find_place(*member) for member in _pair(members)]
            pieces = self._ranks[members[0]][members[1]].pieces
            found.append(Content(pieces, nbytes, tuple(places)))
        return found

    def _list_distinct(self, members: Sequence[int]) -> list[_Content]:
        """Group the shards that have the same content."""
        found: dict[tuple[tuple[SourceShard, ...], int], list[int]] = {}
        for rank, number in _pair(members):
            info, pieces, *_ = self._ranks[rank][number]
            found.setdefault((pieces, info.nbytes), []).extend((rank, number))
        return [_Content(tuple(of), nbytes) for (_, nbytes), of in found.items()]

    @without_collection()
    def list_passes(self, done: Collection[tuple[int, str]]) -> list[Pass]:
        """Return the passes that make all tensors except those in `done`, pairs of rank and name.

        Content that several ranks have is made once.
        """
        groups: dict[tuple[str, ...], list[int]] = {}
        for rank, shards in enumerate(self._ranks):
            for number, shard in enumerate(shards):
                if done and (rank, shard.info.name) in done:
                    continue
                sources = tuple([piece.source for piece in shard.pieces])
                groups.setdefault(sources, []).extend((rank, number))
        found: list[Pass] = []
        for sources, members in groups.items():
            contents = self._list_distinct(members)
            long = [each for each in contents if self._is_long(each)]
            found += [_make_pass(sources, joined, by_itself=True) for joined in _join_small(long)]
            if len(long) < len(contents):
                rest = [each for each in contents if not self._is_long(each)]
                found.append(_make_pass(sources, rest, by_itself=False))
        return sorted(found, key=self._turn)

    def _is_long(self, content: _Content) -> bool:
        """Whether all pieces of a content have long byte ranges, or are whole tensors."""
        rank, number, *_ = content.members
        for name, part in self._ranks[rank][number].pieces:
            if part:
                _, shape, encoding = self._header.tensors[name]
                # A model has few kinds of tensors, each in many layers.
                kind = shape, encoding.name, part
                if kind not in self._long:
                    run = shortest_run(TensorInfo("", shape, encoding), part)
                    self._long[kind] = run >= _LEAST_RUN
                if not self._long[kind]:
                    return False
        return True

    def _turn(self, each: Pass) -> tuple[int, tuple[int, int], int]:
        """Return the sort key of a pass: long ones first, then in file order."""
        extents = [self._header.extents[name] for name in each.sources]
        first = min(((extent.file, extent.offset) for extent in extents), default=(0, 0))
        return -(each.nbytes // _LARGE), first, each.members[0]


def _pair(members: Sequence[int]) -> Iterator[tuple[int, int]]:
    return zip(members[::2], members[1::2], strict=True)


def _make_pass(sources: tuple[str, ...], contents: Sequence[_Content], *, by_itself: bool) -> Pass:
    members = tuple(chain.from_iterable(each.members for each in contents))
    nbytes = sum(each.nbytes for each in contents)
    written = sum(each.nbytes * (len(each.members) // 2) for each in contents)
    return Pass(sources, members, nbytes, written, by_itself)


def _join_small(contents: Sequence[_Content]) -> Iterator[list[_Content]]:
    """Yield the contents of each pass; small contents are joined to have fewer passes."""
    joined: list[_Content] = []
    size = 0
    for content in contents:
        if joined and size + content.nbytes > _JOINED:
            yield joined
            joined, size = [], 0
        joined.append(content)
        size += content.nbytes
    if joined:
        yield joined

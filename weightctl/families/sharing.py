"""Per-rank ranges of axes that a group of weights shares."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.split import head_ranges, unit_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.families.family import Extent
    from weightctl.split import Heads, Range

__all__ = [
    "OF_HEADS",
    "Shared",
    "SharedAxis",
    "SharedRun",
    "list_runs",
    "ranges_of_rank",
    "share_extents",
]

# The extents that are divided by heads, in whole heads: those of each query head, and of each KV
# head, whose values may have another size than its keys.
_OF_QUERIES = ("queries", "plain_keys", "values", "each_head")
_OF_KEYS = ("keys", "key_values")
OF_HEADS: frozenset[Extent] = frozenset({*_OF_QUERIES, *_OF_KEYS})

_OF_VALUES = ("values", "key_values")

# The elements of an extent that each rank gets, counted from where a run of it begins.
Shared: TypeAlias = "Mapping[Extent, Sequence[Range]]"


class SharedRun(NamedTuple):
    """Elements of an axis that are divided together, and what they are."""

    extent: Extent
    start: int
    stop: int


class SharedAxis(NamedTuple):
    """The axis of a weight that is cut: its runs, and how many elements stay together."""

    runs: Sequence[SharedRun]
    block: int


def list_runs(extents: Sequence[Extent], size: int, heads: Heads) -> tuple[SharedRun, ...]:
    """Return the runs of an axis of `size` elements along which these extents lie.

    Those of heads are as long as the heads say, so that the last run may end elsewhere.
    """
    found: list[SharedRun] = []
    start = 0
    for extent in extents:
        length = size // extents.count(extent)
        if extent in OF_HEADS:
            length = _count_heads(extent, heads) * _size_of_head(extent, heads)
        found.append(SharedRun(extent, start, start + length))
        start += length
    return tuple(found)


def share_extents(axes: Iterable[SharedAxis], heads: Heads, ranks: int) -> Shared | None:
    """Return which elements of each extent every rank gets.

    No block of any axis is broken. Axes without heads have one extent, of one length. None if not
    every rank can have something.
    """
    blocks: dict[Extent, int] = {}
    length = 0
    for axis in axes:
        for extent, start, stop in axis.runs:
            blocks[extent] = lcm(blocks.get(extent, 1), axis.block)
            length = stop - start
    if blocks.keys() & OF_HEADS:
        return _share_heads(blocks, heads, ranks)
    ((extent, block),) = blocks.items()
    ranges = unit_ranges(length, block, ranks)
    return None if ranges is None else {extent: ranges}


def _share_heads(blocks: Mapping[Extent, int], heads: Heads, ranks: int) -> Shared | None:
    """Return the elements of each extent that every rank gets, of some heads in whole blocks."""

    def step(extent: Extent) -> int:
        size = _size_of_head(extent, heads)
        return lcm(blocks.get(extent, 1), size) // size

    of_queries = lcm(*(step(extent) for extent in _OF_QUERIES if extent in blocks))
    of_keys = lcm(step("keys"), *(step(extent) for extent in _OF_KEYS if extent in blocks))
    shared = head_ranges(heads.queries, heads.keys, ranks, step=of_queries, kv_step=of_keys)
    if shared is None:
        return None
    found: dict[Extent, list[Range]] = {}
    for extent in {"queries", "keys", *blocks}:
        size = _size_of_head(extent, heads)
        own = [keys if extent in _OF_KEYS else queries for queries, keys in shared]
        found[extent] = [(first * size, last * size) for first, last in own]
    return found


def _count_heads(extent: Extent, heads: Heads) -> int:
    return heads.keys if extent in _OF_KEYS else heads.queries


def _size_of_head(extent: Extent, heads: Heads) -> int:
    """Return how many elements of an extent a head has."""
    sizes = {"plain_keys": heads.plain, "each_head": 1}
    return sizes.get(extent, heads.value if extent in _OF_VALUES else heads.size)


def ranges_of_rank(runs: Iterable[SharedRun], shared: Shared, rank: int) -> list[Range]:
    """Return the ranges of an axis that a rank gets."""
    return [
        (run.start + start, run.start + stop)
        for run in runs
        for start, stop in (shared[run.extent][rank],)
    ]

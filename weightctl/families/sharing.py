"""Per-rank ranges of axes that a group of weights shares."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.split import unit_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.families.family import Extent
    from weightctl.split import Heads, Range

__all__ = [
    "Shared",
    "SharedAxis",
    "SharedRun",
    "list_runs",
    "ranges_of_rank",
    "share_extents",
]

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
        if extent == "queries":
            length = heads.queries * heads.size
        elif extent == "keys":
            length = heads.keys * heads.size
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
    if blocks.keys() & {"queries", "keys"}:
        block, key_block = (blocks.get(extent, 1) for extent in ("queries", "keys"))
        shared = heads.ranges(ranks, block=block, key_block=key_block)
        if shared is None:
            return None
        return {"queries": [own for own, _ in shared], "keys": [own for _, own in shared]}
    ((extent, block),) = blocks.items()
    ranges = unit_ranges(length, block, ranks)
    return None if ranges is None else {extent: ranges}


def ranges_of_rank(runs: Iterable[SharedRun], shared: Shared, rank: int) -> list[Range]:
    """Return the ranges of an axis that a rank gets."""
    return [
        (run.start + start, run.start + stop)
        for run in runs
        for start, stop in (shared[run.extent][rank],)
    ]

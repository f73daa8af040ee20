"""What of the axes of weights that are computed with together each rank gets."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.errors import ShardingError
from weightctl.split import counts_that_work, head_ranges, ranks_that_work, unit_ranges
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.families.parts import Extent
    from weightctl.sharding.placing import PlacedWeight, SharedRun
    from weightctl.split import Range

__all__ = ["HeadCounts", "Shared", "share_among_ranks"]

# The elements of a run that each rank gets, counted from where the run begins.
Shared: TypeAlias = "Mapping[Extent, Sequence[Range]]"


class HeadCounts(NamedTuple):
    """The heads of a model's attention, and how many numbers each has."""

    queries: int
    keys: int
    size: int


def share_among_ranks(group: Sequence[PlacedWeight], heads: HeadCounts, ranks: int) -> Shared:
    """Share out what runs along the axes of weights that are computed with together.

    Raises `ShardingError` that names one of them, where not every rank can have something, or
    blocks would be broken.
    """
    if ranks == 1:
        return {run.extent: [(0, run.stop - run.start)] for place in group for run in place.runs}
    for place in group:
        _refuse_broken(place, ranks)
    extent = group[0].runs[0].extent
    if extent in {"queries", "keys"}:
        return _of_heads(group, heads, ranks)
    return {extent: _of_units(group, ranks)}


def _refuse_broken(place: PlacedWeight, ranks: int) -> None:
    """Raise `ShardingError` for a weight that no number of ranks can share."""
    weight = place.weight
    if weight.refusal:
        raise _cannot_cut(place, ranks, weight.refusal, "--plan FILE can replicate it")
    block = weight.blocks[place.axis]
    if any(run.start % block for run in place.runs):
        told = f"it has several matrices, which begin within blocks of {block}"
        raise _cannot_cut(place, ranks, told, "--plan FILE can replicate it")


def _of_heads(group: Sequence[PlacedWeight], heads: HeadCounts, ranks: int) -> Shared:
    query, key, size = heads
    steps: dict[Extent, int] = {"queries": 1, "keys": 1}
    for run, block in _runs(group):
        steps[run.extent] = lcm(steps[run.extent], lcm(block, size) // size)

    def find_ranges(count: int) -> list[tuple[Range, Range]] | None:
        return head_ranges(query, key, count, step=steps["queries"], kv_step=steps["keys"])

    ranges = find_ranges(ranks)
    if ranges is None:
        place = group[0]
        told = f"there are {query} heads of {size}"
        told += f", which share {key} of keys and values" if key != query else ""
        if head_ranges(query, key, ranks) is not None:
            place = max(group, key=_block)
            told += f", in blocks of {_block(place)}"
        raise _cannot_cut(place, ranks, told, ranks_that_work(counts_that_work(find_ranges, query)))
    return {
        "queries": [(first * size, last * size) for (first, last), _ in ranges],
        "keys": [(first * size, last * size) for _, (first, last) in ranges],
    }


def _of_units(group: Sequence[PlacedWeight], ranks: int) -> list[Range]:
    sizes = {run.stop - run.start for run, _ in _runs(group)}
    if len(sizes) > 1:
        told = f"it is computed with others, whose sizes are {', '.join(map(str, sorted(sizes)))}"
        raise _cannot_cut(group[0], ranks, told, "is the config that of this checkpoint?")
    size, unit = sizes.pop(), lcm(*(block for _, block in _runs(group)))
    ranges = unit_ranges(size, unit, ranks)
    if ranges is None:
        units = -(-size // unit)
        are = pluralize(units, "block") + f" of {unit}" if unit > 1 else "too few"
        works = ranks_that_work(range(1, units + 1))
        raise _cannot_cut(max(group, key=_block), ranks, f"{size} elements are {are}", works)
    return ranges


def _runs(group: Sequence[PlacedWeight]) -> Iterator[tuple[SharedRun, int]]:
    """Yield all runs, each with the size of the blocks that it must not break."""
    for place in group:
        block = _block(place)
        for run in place.runs:
            yield run, block


def _block(place: PlacedWeight) -> int:
    return place.weight.blocks[place.axis]


def _cannot_cut(place: PlacedWeight, ranks: int, told: str, hint: str) -> ShardingError:
    weight = place.weight
    return ShardingError(
        f"`{weight.name}` of shape {list(weight.shape)} cannot be cut along axis {place.axis} "
        f"for {ranks} ranks: {told}",
        hint=hint,
    )

"""How the weights of a layer are cut for several ranks, those that compute together alike."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.errors import ShardingError
from weightctl.graph.sharding import ShardingStrategy
from weightctl.split import (
    Sharding,
    counts_that_work,
    head_ranges,
    part_along,
    ranks_that_work,
    unit_ranges,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.graph.weight import Weight
    from weightctl.split import Range

    Strategies: TypeAlias = Mapping[Weight, ShardingStrategy]
    # Of each rank what it has of an axis.
    Ranges: TypeAlias = Sequence[Sequence[Range]]

__all__ = [
    "AttentionHeads",
    "CutAxis",
    "cut_along",
    "head_cuts",
    "replicate_weights",
    "segment_sizes",
    "unit_cuts",
]


class CutAxis(NamedTuple):
    """An axis of a weight that is cut."""

    weight: Weight
    axis: int

    @property
    def size(self) -> int:
        """How many elements there are along it."""
        return int(self.weight.original_dtype_and_shape[1][self.axis])

    @property
    def block(self) -> int:
        """How many elements along it stay together."""
        dtype, shape = self.weight.original_dtype_and_shape
        quantization = self.weight.quantization_encoding
        encoding = dtype.encoding if quantization is None else quantization.encoding
        return encoding.block if self.axis == len(shape) - 1 else 1

    @property
    def description(self) -> str:
        """What errors call it."""
        shape = self.weight.original_dtype_and_shape[1]
        return f"`{self.weight.name}` of shape {shape.text}"


class AttentionHeads(NamedTuple):
    """The numbers of heads of an attention, and the length of each."""

    queries: int
    keys: int
    length: int

    def __str__(self) -> str:
        grouped = f", which share {self.keys} of keys and values"
        return f"{self.queries} heads of {self.length}{grouped * (self.keys != self.queries)}"


def head_cuts(
    heads: AttentionHeads, ranks: int, queries: Sequence[CutAxis], keys: Sequence[CutAxis]
) -> list[tuple[Range, Range]]:
    """Return what each rank has of queries, and of keys and values: ranges of their numbers.

    `queries` are all axes along which there are the numbers of queries, `keys` those of keys and
    values; no block of them is broken. Raises `ShardingError` that names a weight of queries
    where that cannot be, and how many ranks there may be.
    """
    length = heads.length
    block = lcm(*(side.block for side in queries))
    step = lcm(block, length) // length
    kv_step = lcm(*(side.block for side in keys), length) // length

    def find_ranges(count: int) -> list[tuple[Range, Range]] | None:
        return head_ranges(heads.queries, heads.keys, count, step=step, kv_step=kv_step)

    shared = find_ranges(ranks)
    if shared is None:
        blocks = f", which are cut in blocks of {block}" if block > 1 else ""
        works = counts_that_work(find_ranges, heads.queries)
        raise _cannot_cut(_coarsest(queries), ranks, f"there are {heads}{blocks}", works)
    return [
        ((first * length, last * length), (kv * length, kv_last * length))
        for (first, last), (kv, kv_last) in shared
    ]


def unit_cuts(ranks: int, *sides: CutAxis) -> list[Range]:
    """Return what each rank has of axes of the same numbers; no block of any is broken.

    Raises `ShardingError` that names the one of the longest where they are fewer than ranks.
    """
    first, unit = _coarsest(sides), lcm(*(side.block for side in sides))
    shared = unit_ranges(first.size, unit, ranks)
    if shared is None:
        units = -(-first.size // unit)
        blocks = f"{units} blocks of {unit}" if unit > 1 else f"{units} elements"
        told = f"along axis {first.axis} there are {blocks}"
        raise _cannot_cut(first, ranks, told, list(range(1, units + 1)))
    return shared


def cut_along(side: CutAxis, ranges: Ranges) -> ShardingStrategy:
    """Return the strategy that gives each rank some ranges of an axis."""
    name = {0: "rowwise", 1: "columnwise"}[side.axis]
    parts = tuple(part_along(side.axis, side.size, each) for each in ranges)
    return ShardingStrategy.given(Sharding(name, parts))


def replicate_weights(ranks: int, *weights: Weight | None) -> dict[Weight, ShardingStrategy]:
    """Return the strategies of weights that all ranks have whole, of those that are there."""
    strategy = ShardingStrategy.replicate(ranks)
    return {weight: strategy for weight in weights if weight is not None}


def segment_sizes(side: CutAxis, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return what a shard has of each of the segments that its whole has along an axis."""
    ranges = next((cut.ranges for cut in side.weight.part or () if cut.axis == side.axis), None)
    if ranges is None:
        return tuple(sizes)
    found: list[int] = []
    start = 0
    for size in sizes:
        stop = start + size
        met = (min(last, stop) - max(first, start) for first, last in ranges)
        found.append(sum(max(count, 0) for count in met))
        start = stop
    return tuple(found)


def _coarsest(sides: Sequence[CutAxis]) -> CutAxis:
    """Return the axis that has the longest blocks, of several such the first."""
    return max(sides, key=lambda side: side.block)


def _cannot_cut(side: CutAxis, ranks: int, told: str, works: Sequence[int]) -> ShardingError:
    return ShardingError(
        f"{side.description} cannot be cut for {ranks} ranks: {told}",
        hint=ranks_that_work(works),
    )

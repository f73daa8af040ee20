"""Sharding of layers' weights across ranks, by the roles of the layers."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from weightctl.errors import ShardingError
from weightctl.families.modules import Role, role
from weightctl.families.rank_ranges import (
    OF_HEADS,
    SharedAxis,
    list_runs,
    ranges_of_rank,
    share_extents,
)
from weightctl.families.usual_names import LINES
from weightctl.graph.sharding import ShardingStrategy
from weightctl.split import Heads, Sharding, counts_that_work, part_along, ranks_that_work

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.graph.graph import Weight
    from weightctl.split import Range

    # For each rank, its ranges of an axis.
    Ranges: TypeAlias = Sequence[Sequence[Range]]

# How ranks divide layers outside of a family, by the names of `LINES`.
ROLES: Mapping[str, Role] = {name: role(line, "weight") for name, line in LINES.items()}
# For layers without heads.
_NO_HEADS = Heads(1, 1, 1)


class CutAxis(NamedTuple):
    """An axis of a weight along which it is cut."""

    weight: Weight
    axis: int

    @property
    def size(self) -> int:
        """The number of elements along the axis."""
        return int(self.weight.original_dtype_and_shape[1][self.axis])

    @property
    def block(self) -> int:
        """The number of elements along the axis that stay together."""
        dtype, shape = self.weight.original_dtype_and_shape
        quantization = self.weight.quantization_encoding
        encoding = dtype.encoding if quantization is None else quantization.encoding
        return encoding.block if self.axis == len(shape) - 1 else 1

    @property
    def description(self) -> str:
        """The name and shape of the weight, for errors."""
        shape = self.weight.original_dtype_and_shape[1]
        return f"`{self.weight.name}` of shape {shape.text}"


class MatrixLayer(Protocol):
    """A layer with a matrix that can be cut along its outputs or its inputs."""

    @property
    def axes(self) -> tuple[CutAxis, CutAxis]:
        """The axes of the matrix for its outputs and for its inputs."""
        ...

    def cut(self, axis: int, ranges: Ranges) -> dict[Weight, ShardingStrategy]:
        """Return the weights' strategies if ranks get these outputs (`axis` 0) or inputs (1)."""
        ...


def cut_parts(
    parts: Mapping[str, MatrixLayer], ranks: int, heads: Heads = _NO_HEADS
) -> dict[Weight, ShardingStrategy]:
    """Return the strategies for layers that compute together, given by their names in `ROLES`.

    Raises `ShardingError` as `share_parts` does.
    """
    shared = share_parts(parts, ranks, heads)
    cuts: dict[Weight, ShardingStrategy] = {}
    for name, layer in parts.items():
        cuts |= layer.cut(ROLES[name].axis, shared[name])
    return cuts


def share_parts(
    parts: Mapping[str, MatrixLayer], ranks: int, heads: Heads = _NO_HEADS
) -> dict[str, Ranges]:
    """Return the ranges of each layer's cut axis that each rank gets; no block is split.

    Raises `ShardingError` that names one of the weights, and the numbers of ranks that work, if not
    every rank can get a part.
    """
    sides = {name: layer.axes[ROLES[name].axis] for name, layer in parts.items()}
    runs = {name: list_runs(ROLES[name].extents, side.size, heads) for name, side in sides.items()}
    axes = [SharedAxis(runs[name], side.block) for name, side in sides.items()]
    shared = share_extents(axes, heads, ranks)
    if shared is None:
        queries = [
            sides[name] for name in parts if any(run.extent in OF_HEADS for run in runs[name])
        ]
        if queries:
            works = counts_that_work(lambda count: share_extents(axes, heads, count), heads.queries)
            raise _too_few_heads(queries, heads, ranks, works)
        run = axes[0].runs[0]
        raise _too_few_units([*sides.values()], run.stop - run.start, ranks)
    return {
        name: [ranges_of_rank(own, shared, rank) for rank in range(ranks)]
        for name, own in runs.items()
    }


def _too_few_heads(
    queries: Sequence[CutAxis], heads: Heads, ranks: int, works: Sequence[int]
) -> ShardingError:
    block = lcm(*(side.block for side in queries))
    blocks = f", which are split in blocks of {block} elements" if block > 1 else ""
    return _cannot_cut(_coarsest(queries), ranks, f"the model has {heads}{blocks}", works)


def _too_few_units(sides: Sequence[CutAxis], size: int, ranks: int) -> ShardingError:
    first, unit = _coarsest(sides), lcm(*(side.block for side in sides))
    units = -(-size // unit)
    blocks = f"{units} blocks of {unit} elements" if unit > 1 else f"{units} elements"
    reason = f"axis {first.axis} has only {blocks}"
    return _cannot_cut(first, ranks, reason, list(range(1, units + 1)))


def cut_along(side: CutAxis, ranges: Ranges) -> ShardingStrategy:
    """Return the strategy that gives each rank these ranges of an axis."""
    name = {0: "rowwise", 1: "columnwise"}[side.axis]
    parts = tuple(part_along(side.axis, side.size, each) for each in ranges)
    return ShardingStrategy.given(Sharding(name, parts))


def replicate_weights(ranks: int, *weights: Weight | None) -> dict[Weight, ShardingStrategy]:
    """Return strategies that give every rank the whole of each weight; None is skipped."""
    strategy = ShardingStrategy.replicate(ranks)
    return {weight: strategy for weight in weights if weight is not None}


def segment_sizes(side: CutAxis, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of a shard's parts of each segment along an axis of the whole weight."""
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


def own_segment(side: CutAxis, start: int, stop: int) -> Range | None:
    """Return which elements of a segment a shard has, from the start of the segment on.

    The segment is the range from `start` to `stop` of the axis. None for a whole weight.
    """
    ranges = next((cut.ranges for cut in side.weight.part or () if cut.axis == side.axis), None)
    if ranges is None:
        return None
    inside = [
        (max(first, start), min(last, stop))
        for first, last in ranges
        if first < stop and last > start
    ]
    return inside[0][0] - start, inside[-1][1] - start


def own_range(side: CutAxis) -> Range | None:
    """Return which elements of an axis a shard has, None for a whole weight.

    They are those of heads, which follow one another.
    """
    ranges = next((cut.ranges for cut in side.weight.part or () if cut.axis == side.axis), None)
    return None if ranges is None else (ranges[0][0], ranges[-1][1])


def _coarsest(sides: Sequence[CutAxis]) -> CutAxis:
    """Return the axis with the longest blocks; the first if there are several."""
    return max(sides, key=lambda side: side.block)


def _cannot_cut(side: CutAxis, ranks: int, reason: str, works: Sequence[int]) -> ShardingError:
    return ShardingError(
        f"{side.description} cannot be split across {ranks} ranks: {reason}",
        hint=ranks_that_work(works),
    )

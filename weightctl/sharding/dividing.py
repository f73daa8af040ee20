"""Divides a group of weights among ranks, or explains why it cannot be divided."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from weightctl.errors import ShardingError, TensorSplitError
from weightctl.families.rank_ranges import OF_HEADS, SharedAxis, share_extents
from weightctl.split import counts_that_work, ranks_that_work
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families.rank_ranges import Shared
    from weightctl.sharding.placing import PlacedWeight
    from weightctl.split import Heads


def share_among_ranks(group: Sequence[PlacedWeight], ranks: int) -> Shared:
    """Return the ranges of each rank for a group of weights that are divided in the same way.

    Raises `ShardingError`, which names one of the weights, if a rank would get nothing, or if a
    block would be split.
    """
    if ranks == 1:
        return {run.extent: [(0, run.stop - run.start)] for place in group for run in place.runs}
    for place in group:
        _refuse_broken(place, ranks)
    is_of_heads = group[0].runs[0].extent in OF_HEADS
    if not is_of_heads:
        _refuse_unlike(group, ranks)
    heads = group[0].heads
    axes = [SharedAxis(place.runs, _block(place)) for place in group]
    shared = share_extents(axes, heads, ranks)
    if shared is not None:
        return shared
    if is_of_heads:
        works = counts_that_work(lambda count: share_extents(axes, heads, count), heads.queries)
        raise _too_few_heads(group, heads, ranks, works)
    raise _too_few_units(group, ranks)


def _refuse_broken(place: PlacedWeight, ranks: int) -> None:
    """Raise `ShardingError` if a weight cannot be split for any number of ranks."""
    weight = place.weight
    if weight.refusal:
        raise _cannot_cut(
            place,
            ranks,
            weight.refusal,
            "to replicate it, use a plan file: --plan FILE (rules=FILE in Python)",
        )
    block = weight.blocks[place.axis]
    if any(run.start % block for run in place.runs):
        reason = (
            "it consists of several matrices, and not all of them start at a multiple of the block "
            f"size, {block} elements"
        )
        raise _cannot_cut(
            place,
            ranks,
            reason,
            "to replicate it, use a plan file: --plan FILE (rules=FILE in Python)",
        )


def _refuse_unlike(group: Sequence[PlacedWeight], ranks: int) -> None:
    """Raise `ShardingError` if ranges that are divided in the same way differ in size."""
    sizes = {run.stop - run.start for place in group for run in place.runs}
    if len(sizes) > 1:
        listed = ", ".join(map(str, sorted(sizes)))
        reason = f"it is split together with weights of other sizes: {listed}"
        raise _cannot_cut(
            group[0], ranks, reason, "check that the config belongs to this checkpoint"
        )


def _too_few_heads(
    group: Sequence[PlacedWeight], heads: Heads, ranks: int, works: Sequence[int]
) -> ShardingError:
    place, reason = group[0], f"the model has {heads}"
    if heads.ranges(ranks) is not None:
        place = max(group, key=_block)
        reason += f", and the weight has blocks of {_block(place)} elements"
    return _cannot_cut(place, ranks, reason, ranks_that_work(works))


def _too_few_units(group: Sequence[PlacedWeight], ranks: int) -> ShardingError:
    first, unit = group[0].runs[0], lcm(*map(_block, group))
    size = first.stop - first.start
    units = -(-size // unit)
    are = pluralize(units, "block") + f" of {unit} elements" if unit > 1 else "too few"
    works = ranks_that_work(range(1, units + 1))
    return _cannot_cut(max(group, key=_block), ranks, f"{size} elements are {are}", works)


def _block(place: PlacedWeight) -> int:
    """Return the number of elements of the model that stay together along the axis."""
    block, heads = place.weight.blocks[place.axis], place.heads
    if place.order and block > 1 and heads.value % block:
        # The heads of a key head are apart, so that each of their parts needs whole blocks.
        return block * (heads.queries // heads.keys)
    return block


def _cannot_cut(place: PlacedWeight, ranks: int, reason: str, hint: str) -> ShardingError:
    weight = place.weight
    return TensorSplitError(weight.name, tuple(weight.shape), place.axis, ranks, reason, hint=hint)

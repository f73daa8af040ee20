"""Cuts the weights of a model for the ranks of a grid: by heads, units, experts and layers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ShardingError
from weightctl.families.rank_ranges import ranges_of_rank
from weightctl.sharding.dividing import share_among_ranks
from weightctl.sharding.footprints import own_part
from weightctl.split import Sharding, part_along, shares
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.families.rank_ranges import Shared
    from weightctl.schemes.cutting import Along
    from weightctl.sharding.footprints import WeightFootprint
    from weightctl.sharding.placing import PlacedWeight
    from weightctl.split import Grid, Part, Range

_EXPERTS = "expert_parallel"


class CutModel(NamedTuple):
    """The properties of a model that determine how it is sharded.

    `places` has the weights by name, and `layers` is the number of layers. `experts` is the number
    of experts per layer, None if unknown.
    """

    places: Mapping[str, PlacedWeight]
    layers: int
    experts: int | None = 0


def refuse(model: CutModel, grid: Grid) -> None:
    """Raise `ShardingError` for an invalid grid, or one with more groups than experts or layers."""
    if min(grid) < 1:
        shown = " x ".join(map(str, grid))
        raise ShardingError(
            f"{shown} are not valid numbers of ranks",
            hint="each number of ranks must be at least 1",
        )
    if model.experts is not None and grid.ep > max(model.experts, 1):
        experts = f"{model.experts} experts in each layer" if model.experts else "no experts"
        hint = (
            f"use --ep (ep in Python) up to {model.experts}"
            if model.experts
            else ("leave out --ep (ep in Python)")
        )
        raise ShardingError(
            f"the model has {experts}, which cannot be divided among {grid.ep} groups", hint=hint
        )
    if grid.pp > max(model.layers, 1):
        raise ShardingError(
            f"the model has {pluralize(model.layers, 'layer')}, which cannot be divided among "
            f"{grid.pp} stages",
            hint=f"use --pp (pp in Python) up to {max(model.layers, 1)}",
        )


def groups(places: Iterable[PlacedWeight]) -> list[list[PlacedWeight]]:
    """Group the weights that are cut: weights of one group are divided in the same way.

    Raises `ShardingError` if a weight's shape does not fit the model.
    """
    found: dict[str, list[PlacedWeight]] = {}
    for place in places:
        if place.misfit is not None:
            raise place.misfit
        if place.runs:
            found.setdefault(place.group, []).append(place)
    return list(found.values())


def signature(group: Sequence[PlacedWeight]) -> object:
    """Return a key that groups share if they are divided in the same way.

    Most layers and experts have the same key.
    """
    return tuple(
        (place.runs, place.axis, place.weight.blocks, bool(place.weight.refusal), place.heads)
        for place in group
    )


def cut(model: CutModel, grid: Grid) -> dict[str, Sharding]:
    """Return the sharding of each weight of a model, by name.

    Raises `ShardingError` if a weight cannot be split.
    """
    ranges: dict[str, Shared] = {}
    unlike: dict[object, Shared] = {}
    for group in groups(model.places.values()):
        kind = signature(group)
        if kind not in unlike:
            unlike[kind] = share_among_ranks(group, grid.tp)
        ranges[group[0].group] = unlike[kind]
    owners = shares(model.experts or 0, grid.ep)
    nothing: Shared = {}
    found: dict[str, Sharding] = {}
    made: dict[object, Sharding] = {}
    for name, place in model.places.items():
        own = ranges.get(place.group, nothing)
        experts = _of_experts(place, owners)
        length = place.weight.shape[place.axis] if place.runs else 0
        runs = (place.runs, place.order)
        alike = (id(own), place.strategy, place.axis, runs, length, experts, place.layers)
        if alike not in made:
            made[alike] = _sharding(place, own, experts, model, grid)
        found[name] = made[alike]
    return found


def _sharding(
    place: PlacedWeight, ranges: Shared, experts: Sequence[Part | None], model: CutModel, grid: Grid
) -> Sharding:
    alike = [_of_runs(place, ranges, number) for number in range(grid.tp)]
    parts: list[Part | None] = []
    for rank in range(grid.ranks):
        number, group, _ = grid.place(rank)
        first = experts[group]
        parts.append(None if first is None else (*first, *alike[number]))
    strategies = [_EXPERTS] if grid.ep > 1 and place.experts else []
    strategies += [place.strategy] if any(alike) else []
    sharding = Sharding(", ".join(strategies) or "replicate", tuple(parts))
    return keep_in_stages(sharding, place.layers, model.layers, grid)


def _of_experts(place: PlacedWeight, owners: Sequence[Range]) -> tuple[Part | None, ...]:
    """Return the part of a weight's experts for each expert parallel group; None for no experts."""
    if place.experts is None:
        return ((),) * len(owners)
    if place.is_stacked:
        count = place.weight.shape[0]
        return tuple(part_along(0, count, [owned]) for owned in owners)
    return tuple(() if first <= place.experts[0] < last else None for first, last in owners)


def _of_runs(place: PlacedWeight, ranges: Shared, number: int) -> Part:
    if not place.runs:
        return ()
    own = ranges_of_rank(place.runs, ranges, number)
    if place.order:
        own = _ranges_in_order(place.order, own)
    return part_along(place.axis, place.weight.shape[place.axis], own)


def _ranges_in_order(order: Sequence[int], own: Sequence[Range]) -> list[Range]:
    """Return the ranges of places in an axis whose elements are in the ranges `own`.

    `order` has the element at each place of the axis.
    """
    found: list[Range] = []
    for place, element in enumerate(order):
        if not any(start <= element < stop for start, stop in own):
            continue
        if found and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1)
        else:
            found.append((place, place + 1))
    return found


def keep_in_stages(
    sharding: Sharding, layers: Sequence[int] | None, count: int, grid: Grid
) -> Sharding:
    """Remove the parts of a tensor from pipeline stages that do not need it.

    Each stage has a range of the `count` layers. `layers` are the layers that need the tensor; None
    means that all stages need it.
    """
    if layers is None or grid.pp == 1:
        return sharding
    stages = {
        stage
        for stage, (first, last) in enumerate(shares(count, grid.pp))
        if any(first <= layer < last for layer in layers)
    }
    parts = (
        part if grid.place(rank)[2] in stages else None for rank, part in enumerate(sharding.parts)
    )
    return sharding._replace(parts=tuple(parts))


def cut_stored_tensors(weight: WeightFootprint, sharding: Sharding) -> dict[str, Sharding]:
    """Return the sharding of each tensor in which a weight is stored, by name.

    `sharding` is the sharding of the weight. Raises `ShardingError` if its tensors cannot be split.
    """
    if weight.refusal and any(sharding.parts):
        raise ShardingError(
            f"`{weight.name}` of shape {list(weight.shape)} cannot be split: {weight.refusal}",
            hint="to replicate it, use a plan file: --plan FILE (rules=FILE in Python)",
        )
    return {
        footprint.info.name: _of_tensor(footprint.along, footprint.info.shape, sharding)
        for footprint in weight.footprints
    }


@lru_cache(maxsize=256)  # a model has few kinds of tensors, each in many layers
def _of_tensor(
    along: tuple[Along | None, ...], shape: tuple[int, ...], sharding: Sharding
) -> Sharding:
    """Return the sharding of a stored tensor, given the sharding of its weight."""
    own = {part: own_part(along, shape, part) for part in sharding.parts if part is not None}
    parts = tuple(None if part is None else own[part] for part in sharding.parts)
    strategy = sharding.strategy
    if any(sharding.parts) and not any(parts):
        strategy = _EXPERTS if strategy.startswith(_EXPERTS) else "replicate"
    return Sharding(strategy, parts)

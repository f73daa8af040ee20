"""Determines the layers of the weights of a known family, and the axis along which they are cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ShardingError
from weightctl.families.modules import count_heads, role
from weightctl.families.names import split_layer_number
from weightctl.families.per_layer import layers_reading
from weightctl.families.rank_ranges import OF_HEADS, list_runs
from weightctl.split import Heads
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.families.modules import Role, TensorNames
    from weightctl.families.rank_ranges import Extent, SharedRun
    from weightctl.sharding.footprints import WeightFootprint
    from weightctl.split import Range

_LAYER, _EXPERTS = "{}", "experts"


class PlacedWeight(NamedTuple):
    """A weight of a model, how it is cut, and the layers that need it.

    `runs` are the ranges of the axis `axis` that are divided among ranks, and `strategy` is the
    name of the way to cut. `layers` are the layers that need the weight; None if all do. `experts`
    is the range of its experts, None if it has none; if `is_stacked` is set, the first axis is that
    of the experts. If `order` is not empty, it has the position in the model of each element of the
    axis, and `runs` count positions in the model. Weights of the same `group` are divided in the
    same way. `heads` are those of the weight's layer. `misfit` is the error if the weight cannot be
    cut as the model requires.
    """

    weight: WeightFootprint
    strategy: str = "replicate"
    axis: int = 0
    runs: tuple[SharedRun, ...] = ()
    layers: tuple[int, ...] | None = None
    experts: Range | None = None
    is_stacked: bool = False
    order: tuple[int, ...] = ()
    group: str = ""
    heads: Heads = Heads(1, 1, 1)
    misfit: ShardingError | None = None


def place_weights(
    checkpoint: RecognizedModel, weights: Mapping[str, WeightFootprint]
) -> dict[str, PlacedWeight]:
    """Return each weight with its place; weights that are not part of the model are not cut."""
    aliases = header_of(checkpoint.tree).aliases
    members: dict[str, list[TensorNames]] = {}
    for names in _names(checkpoint):
        if (stored := checkpoint.stored.get(names.module)) is not None:
            members.setdefault(stored, []).append(names)
    found: dict[str, PlacedWeight] = {}
    for stored, each in members.items():
        name = aliases.get(stored, stored)
        place = _place_weight(checkpoint, weights[name], each)
        found[name] = _join_places(found[name], place) if name in found else place
    count = checkpoint.config.layers
    stems = {_plain(checkpoint, each).partition(_LAYER)[0] for each in _templates(checkpoint)}
    return {
        name: found.get(name)
        or PlacedWeight(weight, layers=_layer_of(checkpoint, name, stems, count))
        for name, weight in weights.items()
    }


def _layer_of(
    checkpoint: RecognizedModel, name: str, stems: set[str], count: int
) -> tuple[int, ...] | None:
    """Return the layer of a tensor that is not part of the model, judging by its name.

    `stems` are the beginnings of the model's names of tensors in layers. Other names, such as those
    of a vision encoder, have numbers of other layers; the result is then None.
    """
    plain = _plain(checkpoint, name)
    number, rest = split_layer_number(plain)
    stem = plain.removesuffix(f"{number}.{rest}")
    return (number,) if number is not None and number < count and stem in stems else None


def _templates(checkpoint: RecognizedModel) -> Iterator[str]:
    """Yield the name templates of tensors in layers, in the checkpoint's naming convention."""
    for line in checkpoint.family.names:
        name = line.gguf if checkpoint.convention == "gguf" else line.hugging_face
        if name is not None and _LAYER in name:
            yield name


def _plain(checkpoint: RecognizedModel, name: str) -> str:
    return checkpoint.family.plain(name) if checkpoint.convention == "hugging_face" else name


def _names(checkpoint: RecognizedModel) -> Iterator[TensorNames]:
    """Yield the tensors of the model, including those that are copies of other tensors."""
    yield from checkpoint.family.tensors(checkpoint.config)
    yield from checkpoint.family.copies(checkpoint.config)


def _place_weight(
    checkpoint: RecognizedModel, weight: WeightFootprint, members: Sequence[TensorNames]
) -> PlacedWeight:
    """Return the place of a weight, which consists of the tensors `members` of the model."""
    first = members[0]
    roles = _roles(members)
    fusion = first.fusions.get(checkpoint.convention)
    own = 2 if first.kind == "weight" else 1
    is_stacked = first.line.is_of_experts and len(weight.shape) == own + 1
    experts = None
    if first.line.is_of_experts and first.line.count == _EXPERTS:
        experts = first.expert, max(each.expert for each in members) + 1
    axis = roles[0].axis
    change = first.change
    is_gguf = checkpoint.convention == "gguf"
    if change is not None and change.is_turned and not is_gguf:
        axis ^= 1
    is_outputs_first = checkpoint.stored.get(first.module) in checkpoint.outputs_first
    if fusion is not None and fusion.is_transposed(first.kind) and not is_outputs_first:
        axis ^= 1
    extents: list[Extent] = [extent for each in roles for extent in each.extents]
    if change is not None and change.gguf_extents and is_gguf:
        extents, axis = [*change.gguf_extents], 0
    if change is not None and change.axes is not None:
        axis += next((place for place, size in enumerate(weight.shape) if size != 1), 0)
    heads = count_heads(checkpoint.config, first.layer, tuple(extents))
    runs = _runs(weight, extents, axis + is_stacked, heads)
    misfit = None
    if isinstance(runs, ShardingError):
        misfit, runs = runs, ()
    return PlacedWeight(
        weight=weight,
        strategy=_strategy(roles, axis),
        axis=axis + is_stacked,
        runs=runs,
        layers=_layers(checkpoint, first, roles[0]),
        experts=experts,
        is_stacked=is_stacked,
        order=_order(checkpoint, first) if runs else (),
        group=_group(first, experts if is_stacked else None),
        heads=heads,
        misfit=misfit,
    )


def _order(checkpoint: RecognizedModel, names: TensorNames) -> tuple[int, ...]:
    """Return the position in the model of each element of the axis along which a weight is cut.

    The result is empty if the elements are in the model's order.
    """
    fusion, change = names.fusions.get(checkpoint.convention), names.change
    if fusion is not None and fusion.order is not None:
        return tuple(fusion.order(checkpoint.config))
    if change is None or change.order is None or change.runs_as == checkpoint.convention:
        return ()
    return tuple(change.order(checkpoint.config))


def _roles(members: Sequence[TensorNames]) -> list[Role]:
    """Return the roles of the tensors in a weight, in order; all experts share one role."""
    lines = {each.line.module: role(each.line, each.kind) for each in members}
    return list(lines.values())


def _strategy(roles: Sequence[Role], axis: int) -> str:
    """Return the name of the strategy by which a weight with these roles is cut."""
    if len(roles) == 3:
        return "stacked_qkv"
    found = roles[0]
    if len(roles) == 2:
        if found.extents == ("plain_keys",):
            return "stacked_kv"
        return "gate_up" if OF_HEADS.isdisjoint(found.extents) else "segmented"
    if axis != found.axis and len(found.extents) == 1:
        return "columnwise" if axis else "rowwise"
    return found.strategy


def _group(names: TensorNames, experts: Range | None) -> str:
    """Return the name of the group of weights that are divided in the same way."""
    stem = names.module.removesuffix(f".{names.kind}")
    if _LAYER not in names.line.module:
        return stem
    return stem.rpartition(".")[0] if experts is None else f"layers.{names.layer}.mlp.experts"


def _layers(checkpoint: RecognizedModel, names: TensorNames, found: Role) -> tuple[int, ...] | None:
    """Return the layers that need a weight; None if all do.

    A weight outside the layers is needed by the first or the last layer's stage, or by both. Layers
    for multi-token prediction are in the stage of the last layer. Weights of keys that several
    layers share are needed by all of these layers.
    """
    if found.all_layers:
        return None
    lines = checkpoint.family.names
    last = checkpoint.config.layers - 1
    if _LAYER in names.line.module:
        return tuple(min(layer, last) for layer in layers_reading(checkpoint.config, names))
    inside = next(place for place, line in enumerate(lines) if _LAYER in line.module)
    if lines.index(names.line) > inside:
        return (last,)
    fields = checkpoint.fields
    is_of_mtp = fields.get("mtp_layers", 0) > 0 and not fields.get("mtp_embedding")
    is_in_last = fields.get("tied", False) or is_of_mtp
    return (0, last) if names.line.module == "embedding" and is_in_last else (0,)


def _runs(
    weight: WeightFootprint, extents: Sequence[Extent], axis: int, heads: Heads
) -> tuple[SharedRun, ...] | ShardingError:
    """Return the ranges of an axis, of the sizes in the config, or an error if they do not fit."""
    if not extents:
        return ()
    if axis >= len(weight.shape):
        return _cannot_match_shape(weight, axis, "elements are expected")
    size = weight.shape[axis]
    runs = list_runs(extents, size, heads)
    if runs[-1].stop != size:
        return _cannot_match_shape(weight, axis, f"{runs[-1].stop} elements are expected")
    return runs


def _cannot_match_shape(weight: WeightFootprint, axis: int, expected: str) -> ShardingError:
    return ShardingError(
        f"`{weight.name}` has shape {list(weight.shape)}, but {expected} along axis {axis}",
        hint="check that the config belongs to this checkpoint",
    )


def _join_places(one: PlacedWeight, other: PlacedWeight) -> PlacedWeight:
    """Return the place of a tensor that has two names in the model."""
    misfit = one.misfit or other.misfit
    if one.runs != other.runs or one.axis != other.axis:
        misfit = misfit or ShardingError(
            f"`{one.weight.name}` is used in two places of the model, which are split differently",
            hint="to define how it is split, use --plan FILE (rules=FILE in Python)",
        )
    layers = None
    if one.layers is not None and other.layers is not None:
        layers = tuple(dict.fromkeys((*one.layers, *other.layers)))
    return one._replace(layers=layers, misfit=misfit)

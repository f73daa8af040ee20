"""Plans the sharding of a checkpoint by the user's rules and by those of the model family."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from weightctl.errors import ConversionError, ShardingError
from weightctl.formats import FORMATS, find_format
from weightctl.sharding.cutting import cut, cut_stored_tensors, keep_in_stages, refuse
from weightctl.sharding.footprints import plain
from weightctl.sharding.plan import ShardPlan, ranks_of
from weightctl.sharding.properties import gather_knowledge
from weightctl.split import Sharding, Whole
from weightctl.system.phases import begin_phase
from weightctl.system.processes import without_collection
from weightctl.text.wording import pluralize
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.sharding.footprints import WeightFootprint
    from weightctl.sharding.properties import CheckpointKnowledge
    from weightctl.split import Grid
    from weightctl.weights.tree import Checkpoint

RANKS, VLLM = LAYOUTS = ("ranks", "vllm")


class CutRulesLike(Protocol):
    """Rules of the user for cutting tensors."""

    def sharding(self, whole: Whole, grid: Grid) -> Sharding | None:
        """Return the sharding of a tensor for all ranks; None if no rule matches."""
        ...

    def notes(self, names: Iterable[str]) -> Sequence[str]:
        """Return notes for the user on how the rules match these tensors."""
        ...


@without_collection()
def shard_plan(
    weights: Checkpoint,
    grid: Grid,
    *,
    rules: CutRulesLike | None = None,
    layout: str = RANKS,
    format_name: str | None = None,
) -> ShardPlan:
    """Return the plan for sharding a checkpoint among the ranks of a grid.

    A weight is cut by the first of these that exists: a rule for its name, rules for the tensors
    that store it, the rules of the model family. All tensors of a weight are cut together. Only
    small tensors that define shapes are read. The default format is GGUF for a GGUF checkpoint, and
    safetensors otherwise.

    Raises `ShardingError` if a tensor cannot be split, `ArchitectureError` if there are no rules
    and the model family is not supported, and `ConversionError` if the format is not supported.
    """
    begin_phase("planning the shards")
    if layout not in LAYOUTS:
        raise ShardingError(
            f"`{layout}` is not a supported layout", hint=f"use {' or '.join(LAYOUTS)}"
        )
    if format_name is not None and format_name not in FORMATS:
        find_format(format_name)
        raise ConversionError(
            f"shards cannot be written as {format_name}",
            hint=f"use one of these formats: {', '.join(FORMATS)}",
        )
    if layout == VLLM and rules is not None:
        raise ShardingError(
            "the vLLM layout is fixed and does not use a plan file",
            hint='leave out --plan (rules in Python), or use --layout ranks (layout="ranks" in '
            "Python)",
        )
    found = gather_knowledge(weights, is_ruled=rules is not None)
    refuse(found.model, grid)
    source = source_of(weights)
    header = source.header
    plan = ShardPlan(
        source=source,
        format=format_name or ("gguf" if header.format == "gguf" else "safetensors"),
        layout=layout,
        grid=grid,
        shardings={},
        ranks=(),
        metadata=header.metadata,
        tied=header.aliases,
        notes=found.notes,
    )
    if layout == VLLM and found.checkpoint is not None:
        from weightctl.sharding.vllm import vllm_plan

        return vllm_plan(plan, found.checkpoint)
    made, notes = shardings(found, grid, rules)
    # The plan has the tensors in the order of the source.
    in_order = {name: made[name] for name in header.tensors}
    return replace(
        plan,
        shardings=in_order,
        ranks=ranks_of(source, in_order, grid),
        notes=(*plan.notes, *notes),
    )


def shardings(
    found: CheckpointKnowledge, grid: Grid, rules: CutRulesLike | None
) -> tuple[dict[str, Sharding], list[str]]:
    """Return the sharding of each stored tensor, by name, and notes for the user."""
    ruled = {} if rules is None else _apply_rules(found, grid, rules)
    model = found.model
    rest = {name: place for name, place in model.places.items() if name not in ruled}
    made = dict(ruled)
    if rest:
        for name, sharding in cut(model._replace(places=rest), grid).items():
            made[name] = cut_stored_tensors(found.weights[name], sharding)
    notes: list[str] = []
    if rules is not None:
        notes += rules.notes(_list_rule_names(found))
    if rules is not None and rest:
        notes.append(_describe_rest(len(rest), found))
    return {name: each for tensors in made.values() for name, each in tensors.items()}, notes


def _describe_rest(count: int, found: CheckpointKnowledge) -> str:
    weights = pluralize(count, "weight")
    match, are = ("matches", "it is") if count == 1 else ("match", "they are")
    how = (
        "not split"
        if found.checkpoint is None
        else f"split as usual for {found.checkpoint.family.name}"
    )
    return f"{weights} {match} no pattern of the plan file: {are} {how}"


def _apply_rules(
    found: CheckpointKnowledge, grid: Grid, rules: CutRulesLike
) -> dict[str, dict[str, Sharding]]:
    """Return, for each weight that a rule matches, the shardings of its stored tensors."""
    made: dict[str, dict[str, Sharding]] = {}
    for name, weight in found.weights.items():
        sharding = rules.sharding(Whole(name, weight.shape, weight.blocks), grid)
        if sharding is not None:
            made[name] = cut_stored_tensors(weight, sharding)
        elif (own := _of_tensors(weight, grid, rules)) is not None:
            made[name] = own
    model = found.model
    return {
        name: {
            stored: keep_in_stages(sharding, model.places[name].layers, model.layers, grid)
            for stored, sharding in tensors.items()
        }
        for name, tensors in made.items()
    }


def _list_rule_names(found: CheckpointKnowledge) -> Iterator[str]:
    """Yield all names that rules can match: names of weights and of their stored tensors."""
    for name, weight in found.weights.items():
        yield name
        yield from (each.info.name for each in weight.footprints if each.info.name != name)


def _of_tensors(
    weight: WeightFootprint, grid: Grid, rules: CutRulesLike
) -> dict[str, Sharding] | None:
    """Return the shardings of a weight's stored tensors by rules for these tensors.

    Tensors without a rule are replicated. Return None if no rule matches any of them.
    """
    found: dict[str, Sharding | None] = {}
    for footprint in weight.footprints:
        info = footprint.info
        own = plain(info)
        found[info.name] = None
        if info.name != weight.name:
            found[info.name] = rules.sharding(Whole(info.name, info.shape, own.blocks), grid)
    if not any(found.values()):
        return None
    whole = Sharding("replicate", ((),) * grid.ranks)
    return {name: sharding or whole for name, sharding in found.items()}

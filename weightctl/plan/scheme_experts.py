"""Experts that share one tensor, for schemes that store them together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from weightctl.system.registry import load
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.steps.numbers import AsFloat32
from weightctl.weights.steps.rows import StackedEntry
from weightctl.weights.steps.stacked import Stacked
from weightctl.weights.steps.transposed import Transposed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.plan.plan import Item, Plan
    from weightctl.plan.scheme_decisions import Decision
    from weightctl.plan.scheme_names import SchemeRecipe
    from weightctl.schemes.written import WrittenScheme
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.source import Source


def holds_experts(plan: Plan, item: Item) -> bool:
    """Whether a tensor has the matrices of several experts."""
    if len(item.info.shape) != 3:
        return False
    found = plan.describe() if plan.describe is not None else None
    name = item.info.name
    return "experts" in name or bool(found and "_exps" in found.names.get(name, ""))


def choose_variant(recipe: SchemeRecipe, settings: Mapping[str, Any]) -> SchemeRecipe:
    """Return a recipe with the variant of its scheme for a model with this config."""
    scheme, options = recipe.choice
    record = scheme.variants.get(str(settings.get("model_type")))
    if record is None:
        return recipe
    made = recipe.choice._replace(scheme=cast("WrittenScheme", load(record)), options=options)
    lines = tuple((each, made if to == recipe.choice else to) for each, to in recipe.lines)
    return recipe._replace(choice=made, lines=lines)


def exchange_experts(plan: Plan, decisions: Sequence[Decision]) -> tuple[Plan, list[Decision]]:
    """Return a plan, and decisions, in which quantized experts have outputs as rows.

    Its source has further tensors for these.
    """
    tensors: dict[str, ReadableTensor] = {}
    made: list[Decision] = []
    for each in decisions:
        item = each.item
        if each.is_quantized:
            name = f"{item.source.name} (outputs as rows)"
            upright = tensors[name] = _exchange_axes(plan.source, item.source.name, name)
            info = item.info._replace(shape=upright.info.shape)
            stored = upright.info._replace(name=name)
            item = replace(item, info=info, source=stored, origin=upright.origin)
        made.append(each._replace(item=item))
    header = plan.source.header
    for name in header.tensors:
        tensors[name] = StoredTensor(plan.source, name)
    source = Derived(plan.source, tensors, header.metadata, header.aliases)
    return replace(plan, source=source), made


def _exchange_axes(source: Source, name: str, new_name: str) -> ReadableTensor:
    """Return a tensor of shape (n, r, c) of a source as one of shape (n, c, r).

    If a step transposed each matrix, its input is taken: blocks are not decoded, and those of a
    scheme are taken in place of their values. Raises `ConversionError` for stored blocks, which
    cannot be transposed.
    """
    from weightctl.schemes.decoding.scaled_blocks import find_swapped_blocks

    whole: ReadableTensor = StoredTensor(source, name)
    blocks = find_swapped_blocks(whole)
    if blocks is not None:
        return blocks
    entries: Sequence[ReadableTensor]
    made = source.find_derived(name) if isinstance(source, Derived) else None
    if made is None or not isinstance(made.step, Stacked) or made.step.axis:
        entries = [
            DerivedTensor(new_name, StackedEntry(place), [whole])
            for place in range(whole.info.shape[0])
        ]
    else:
        entries = made.inputs
    upright = [_exchange(entry, new_name) for entry in entries]
    return DerivedTensor(new_name, Stacked("experts", len(upright)), upright)


def _exchange(matrix: ReadableTensor, name: str) -> ReadableTensor:
    if not isinstance(matrix, DerivedTensor) or not isinstance(matrix.step, Transposed):
        return DerivedTensor(name, Transposed(), [matrix])
    (rows,) = matrix.inputs
    if isinstance(rows, DerivedTensor) and isinstance(rows.step, AsFloat32):
        (rows,) = rows.inputs
    return rows

"""Decisions on how the tensors of a plan are stored in a scheme, and notes that describe them."""

from __future__ import annotations

from math import nan
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.families.names import joined_name
from weightctl.text.wording import pluralize
from weightctl.weights.derived import StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.dtype import Encoding
    from weightctl.plan.plan import Item, Plan
    from weightctl.plan.scheme_names import SchemeRecipe
    from weightctl.schemes.arrays.trees import ScaledBlocks
    from weightctl.schemes.scheme import SchemeChoice, WrittenScheme

# The encoding of scales in blocks of GGUF.
HALF = ENCODINGS["F16"]


class Decision(NamedTuple):
    """What happens to a tensor: it is stored in a scheme, or in an encoding.

    `choice` is the scheme that was chosen for it, also if that cannot store it. `refusal` is the
    reason why it cannot. With `is_exact`, the scheme stores its blocks without changing a value.
    `scaled` is the weight as NVFP4, with the scale of the whole weight that the scheme stores with
    it.
    """

    item: Item
    is_quantized: bool
    encoding: Encoding
    line: str = ""
    refusal: str = ""
    is_exact: bool = False
    scaled: ScaledBlocks | None = None
    choice: SchemeChoice | None = None

    @property
    def quantized_as(self) -> SchemeChoice:
        """The scheme of a tensor that is quantized."""
        if self.choice is None:
            raise ValueError(f"`{self.item.info.name}` is not quantized")
        return self.choice

    @property
    def shared_name(self) -> str:
        """The name under which weights share a scale; else the name of the weight."""
        name = self.item.info.name
        return joined_name(name) if self.quantized_as.scheme.shares_peak else name

    @property
    def is_repacked(self) -> bool:
        """Whether the codes and the scales of blocks are taken, and no value is rounded again."""
        return self.is_exact or self.scaled is not None


def find_exact(plan: Plan, decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions with those marked that need no rounding.

    If weights that engines join share a scale, none of them is exact unless all are. Blocks with a
    scale of the whole weight are taken if all these weights have the same scale; they are exact if
    the scheme uses that scale in the same way, or if this changes no value.
    """
    from weightctl.schemes.arrays.blocks import can_repack

    rounded: set[str] = set()
    scaled: dict[str, tuple[ScaledBlocks, bool]] = {}
    for each in decisions:
        info = each.item.info
        if each.is_quantized:
            stored = StoredTensor(plan.source, each.item.source.name)
            scheme, options = each.quantized_as
            found = _find_scaled(scheme, stored)
            if found is not None:
                scaled[info.name] = found
            if not can_repack(stored, scheme.encode(info.shape, options, HALF).rounding):
                rounded.add(each.shared_name)
    shared: dict[str, set[float]] = {}
    for each in decisions:
        if each.is_quantized:
            made = scaled.get(each.item.info.name)
            value = nan if made is None else float(made[0].whole.values[0])
            shared.setdefault(each.shared_name, set()).add(value)

    def mark(each: Decision) -> Decision:
        name = each.item.info.name
        if not each.is_quantized or each.shared_name not in rounded:
            return each._replace(is_exact=each.is_quantized)
        if name not in scaled or len(shared[each.shared_name]) > 1:
            return each
        return each._replace(scaled=scaled[name][0], is_exact=scaled[name][1])

    return list(map(mark, decisions))


def _find_scaled(scheme: WrittenScheme, stored: StoredTensor) -> tuple[ScaledBlocks, bool] | None:
    """Return a weight as NVFP4 with a scale that divides those of blocks, and whether it is exact.

    Returns None if the scheme has other blocks, or if the weight is not computed from such blocks.
    """
    if scheme.encode_with is None or stored.info.encoding.name != "F32":
        return None
    from weightctl.schemes.arrays.trees import find_scaled_blocks
    from weightctl.schemes.arrays.values import ScaleUse

    found = find_scaled_blocks(stored)
    if found is None or found.whole.values.size != 1:
        return None
    whole, is_exact = found.whole.put_to(ScaleUse.DIVIDES)
    return found._replace(whole=whole), is_exact


def describe_decisions(recipe: SchemeRecipe, decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield notes on the scheme, and on weights that are not stored in it."""
    used = {str(each.choice): each.quantized_as for each in decisions if each.is_quantized}
    yield from dict.fromkeys(each.scheme.note for each in used.values() if each.scheme.note)
    names = [each.item.info.name for each in decisions]
    for pattern, _ in recipe.lines:
        if not any(map(pattern.search, names)):
            yield f"{recipe.path}: no tensor's name matches `{pattern.pattern}`"
    refused = [each for each in decisions if each.refusal]
    if refused:
        first = refused[0]
        yield (
            f"{pluralize(len(refused), 'weight')} cannot be stored as {first.choice} and keep "
            f"their type, for example `{first.item.info.name}`: {first.refusal}"
        )
    yield from _describe_halves(decisions)


def _describe_halves(decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield notes if the weights that engines join are not all stored in one scheme."""
    states: dict[str, set[str]] = {}
    for each in decisions:
        joined = joined_name(each.item.info.name)
        if joined != each.item.info.name:
            kind = str(each.choice) if each.is_quantized else ""
            states.setdefault(joined, set()).add(kind)
    mixed = {name: found for name, found in states.items() if len(found) > 1}
    halves = [name for name, found in mixed.items() if "" in found]
    if halves:
        yield (
            "engines join some weights of a layer, but only some of these are quantized (for "
            f"example `{halves[0]}`): vLLM does not load the output"
        )
    others = [name for name in mixed if name not in halves]
    if others:
        yield (
            "engines join some weights of a layer, but these have different types (for example "
            f"`{others[0]}`): vLLM does not load the output"
        )

"""Decisions on how the tensors of a plan are stored in a scheme, and notes that describe them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.families.names import joined_name
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.dtype import Encoding
    from weightctl.plan.plan import Item
    from weightctl.plan.scheme_names import SchemeRecipe

__all__ = ["Decision", "describe_decisions", "shared_name"]


class Decision(NamedTuple):
    """What happens to a tensor: it is stored in the scheme, or in an encoding.

    `refusal` is the reason why the scheme cannot store it, if it was to. With `is_exact`, the
    scheme stores its blocks without changing a value.
    """

    item: Item
    is_quantized: bool
    encoding: Encoding
    line: str = ""
    refusal: str = ""
    is_exact: bool = False


def shared_name(recipe: SchemeRecipe, name: str) -> str:
    """Return the name under which weights share a scale; else the name of the weight."""
    return joined_name(name) if recipe.choice.scheme.shares_peak else name


def describe_decisions(recipe: SchemeRecipe, decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield notes on the scheme, and on weights that are not stored in it."""
    scheme = recipe.choice.scheme
    if scheme.note:
        yield scheme.note
    names = [each.item.info.name for each in decisions]
    for pattern, _ in recipe.lines:
        if not any(map(pattern.search, names)):
            yield f"{recipe.path}: no tensor's name matches `{pattern.pattern}`"
    refused = [each for each in decisions if each.refusal]
    if refused:
        first = refused[0]
        yield (
            f"{pluralize(len(refused), 'weight')} cannot be stored as {recipe.choice} and keep "
            f"their type, for example `{first.item.info.name}`: {first.refusal}"
        )
    yield from _describe_halves(decisions)


def _describe_halves(decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield a note if only some of the weights that engines join are quantized."""
    states: dict[str, set[bool]] = {}
    for each in decisions:
        joined = joined_name(each.item.info.name)
        if joined != each.item.info.name:
            states.setdefault(joined, set()).add(each.is_quantized)
    mixed = [name for name, found in states.items() if len(found) > 1]
    if mixed:
        yield (
            "engines join some weights of a layer, but only some of these are quantized (for "
            f"example `{mixed[0]}`): vLLM does not load the output"
        )

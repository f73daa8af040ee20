"""The search for scales of the weights that a scheme stores, with an importance matrix or without.

Importance matrices have llama.cpp's names, and one entry for all experts of a layer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.formats.open.index import few

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.formats.imatrix import Importance
    from weightctl.plan.plan import Item, Plan
    from weightctl.plan.scheme_decisions import Decision
    from weightctl.schemes.encoding import ScaleSearch

_EXPERT = re.compile(r"\.experts\.(\d+)\.")


class SchemeSearch(NamedTuple):
    """A search for the scales of all weights; `importance` weights the errors of columns."""

    importance: Importance | None = None

    @classmethod
    def choose(cls, importance: Importance | None, *, search: bool) -> SchemeSearch | None:
        """Return the search that a user asks for: an importance matrix implies one."""
        return cls(importance) if search or importance is not None else None


def find_searches(
    plan: Plan, decisions: Sequence[Decision], search: SchemeSearch | None
) -> tuple[dict[str, ScaleSearch], list[str]]:
    """Return the searches for the weights that are rounded, by name, and notes on them.

    Raises `ConversionError` if no weight has an entry in the importance matrix, or if an entry does
    not have the size of its weight.
    """
    if search is None:
        return {}, []
    from weightctl.schemes.encoding import ScaleSearch

    rounded = [each.item for each in decisions if each.is_quantized and not each.is_exact]
    made = {item.info.name: ScaleSearch(item.info.row) for item in rounded}
    if search.importance is not None:
        made |= _find_importance(plan, rounded, search.importance)
    return made, list(_describe(search, made))


def _find_importance(
    plan: Plan, items: Sequence[Item], importance: Importance
) -> dict[str, ScaleSearch]:
    """Return searches for the weights that have an entry, by the names of the weights."""
    described = plan.describe() if plan.describe is not None else None
    names = dict[str, str]() if described is None else described.names
    found: dict[str, ScaleSearch] = {}
    for item in items:
        entry = _find_entry(item, importance, names)
        if entry is not None:
            found[item.info.name] = entry
    if items and not found:
        raise ConversionError(
            f"{importance.path} has no entry for any weight: its first entry is "
            f"`{next(iter(importance.values), '')}`, but the first weight is "
            f"`{items[0].info.name}`",
            hint="use the importance matrix of this model; to search without one, use --search "
            "(search=True in Python) instead of --imatrix",
        )
    return found


def _find_entry(item: Item, importance: Importance, names: Mapping[str, str]) -> ScaleSearch | None:
    stored = item.stored.name
    from weightctl.schemes.encoding import ScaleSearch

    for name in (item.info.name, names.get(item.info.name), names.get(stored), stored):
        values = importance.values.get(name or "")
        if values is None:
            continue
        columns = item.info.row
        expert = _EXPERT.search(item.info.name)
        matrix = int(expert[1]) if expert and values.size != columns else 0
        count, rest = divmod(values.size, columns)
        if rest or matrix >= count or (count > 1 and not expert):
            raise ConversionError(
                f"`{item.info.name}` has {columns} columns, but {importance.path} has "
                f"{values.size} values for it",
                hint="the importance matrix belongs to another model; use one that was made with "
                "this model",
            )
        return ScaleSearch(columns, values.reshape(count, columns), matrix)
    return None


def _describe(search: SchemeSearch, made: Mapping[str, ScaleSearch]) -> Iterator[str]:
    """Yield notes if the search has no effect, or does not use the importance of all weights."""
    if not made:
        given = "--search" if search.importance is None else "--imatrix"
        yield f"{given} changes nothing: no weight is rounded"
    without = [name for name, each in made.items() if each.importance is None]
    if search.importance is not None and without:
        yield (
            f"{len(without)} of {len(made)} weights have no entry in {search.importance.path}, "
            f"and their columns are equally important: {few(without)}"
        )

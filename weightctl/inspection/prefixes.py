"""Pairs the names of two checkpoints if one has a prefix, such as `module.`, in all names."""

from __future__ import annotations

from collections import Counter
from glob import escape
from typing import TYPE_CHECKING

from weightctl.errors import WeightctlError
from weightctl.inspection.contents import Contents
from weightctl.plan.rename import rename_all
from weightctl.text.wording import join_names
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from weightctl.inspection.comparison import Comparison, Difference

# The number of names in which a prefix is looked for.
_SAMPLED = 20
_MOST_NAMED = 4


def find_prefix(first: Contents, second: Contents) -> tuple[int, str] | None:
    """Return the checkpoint (0 or 1) that has a prefix before the other's names, and the prefix.

    Without it, at least half of the smaller checkpoint's names are also in the other, and all names
    are still different. Returns None if no prefix does this. Raises `WeightctlError` if several do.
    """
    headers = [header_of(each.weights) for each in (first, second)]
    names = [{*header.tensors, *header.aliases} for header in headers]
    if 2 * len(names[0] & names[1]) >= min(map(len, names)):
        return None
    for side, other in ((1, 0), (0, 1)):
        sample = sorted(names[other])[:: max(1, len(names[other]) // _SAMPLED)]
        found = Counter(
            each.removesuffix(name)
            for name in sample
            for each in names[side]
            if each.endswith(f".{name}")
        )
        best = [prefix for prefix, count in found.items() if count == max(found.values())]
        if len(best) > 1:
            raise WeightctlError(
                f"the names of {'AB'[other]} fit several prefixes in {'AB'[side]}: "
                f"{join_names([f'`{each}`' for each in sorted(best)], _MOST_NAMED)}",
                hint=f"rename the tensors of {'AB'[other]} first: `weightctl convert "
                f"{'AB'[other]} OUT --rename '^={min(best)}'`",
            )
        for prefix in best:
            shared = sum(f"{prefix}{name}" in names[side] for name in names[other])
            without = {name.removeprefix(prefix) for name in names[side]}
            if 2 * shared >= min(map(len, names)) and len(without) == len(names[side]):
                return side, prefix
    return None


def drop_prefix(contents: Contents, prefix: str) -> Contents:
    """Return the listed tensors with names that do not have a prefix."""
    header = header_of(contents.weights)
    names = {name: name.removeprefix(prefix) for name in (*header.tensors, *header.aliases)}
    renamed = rename_all(contents.weights, names)
    if len(contents.entries) == contents.count:
        return Contents(renamed)
    listed = [*contents.entries, *contents.tensors, *contents.aliases]
    return Contents(renamed, [escape(name.removeprefix(prefix)) for name in listed])


def restore_prefix(
    comparison: Comparison, contents: Contents, side: int, prefix: str
) -> Comparison:
    """Return a comparison with the names that the checkpoint itself has."""
    header = header_of(contents.weights)
    names = {name.removeprefix(prefix): name for name in (*header.aliases, *header.tensors)}
    names |= {name.removeprefix(prefix): name for name in contents.entries}

    def restore(difference: Difference) -> Difference:
        name, second_name = difference.name, difference.second_name
        is_of_second = difference.first is None
        if side == 1:
            second_name = names.get(second_name, second_name) if second_name else second_name
            return difference._replace(
                name=names.get(name, name) if is_of_second else name, second_name=second_name
            )
        return difference if is_of_second else difference._replace(name=names.get(name, name))

    restored = map(restore, comparison.differences.values())
    how = f"{comparison.how or 'by names'}, without the prefix `{prefix}` of {'AB'[side]}"
    return comparison._replace(differences={each.name: each for each in restored}, how=how)

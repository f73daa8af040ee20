"""One problem for many that differ in the numbers of layers and experts alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.verify.problem import first_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.verify.problem import Problem

__all__ = ["together"]

# So many alike are still told one by one.
_FEW = 3
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def together(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems, with one for all that differ in the numbers of layers and experts alone.

    Where more than `MOST_NAMED` are left the last says how many are not named.
    """
    alike: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        kind = (_NUMBER.sub("N", f"{problem.where}: {problem.text}"), str(problem.cause))
        alike.setdefault(kind, []).append(problem)
    made: list[Problem] = []
    for same in alike.values():
        made += same if len(same) <= _FEW else [_folded(same)]
    return tuple(first_of(made, "{} more problems of these kinds are not named"))


def _folded(same: list[Problem]) -> Problem:
    first, last = same[0], same[-1]
    text = f"{first.text}, and so are {len(same) - 1} more like it, up to `{last.where}`"
    return replace(first, text=text)

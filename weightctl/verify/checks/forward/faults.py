"""Problems with layers that differ from the reference, and what is to blame."""

from __future__ import annotations

from collections import Counter
from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

from weightctl.text.folding import group_alike
from weightctl.text.wording import join_names, percent, pluralize
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.compare.explaining import explain_each
from weightctl.verify.results import MOST_NAMED, Explanation, Problem, keep_first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.checks.forward.blame import Blame
    from weightctl.verify.checks.forward.walk import ComparedPart
    from weightctl.verify.compare.pairs import Pair, Pairing

__all__ = ["Faults"]

# The number of layers for which tensors to blame are searched; for further layers only those found
# before are tried.
_MOST_SEARCHED = 4
# With more tensors of one cause than this, the whole layer is the problem.
_FEW = 4
_AGREES = "of the reference, it agrees"


class _Fault(NamedTuple):
    """A tensor that is to blame for a difference, or a layer if no tensor is found."""

    part: ComparedPart
    where: str
    kind: str
    text: str
    cause: Explanation | None


class Faults:
    """The layers that differ by more than their encodings explain, with their causes."""

    def __init__(self, blame: Blame, pairing: Pairing) -> None:
        self._blame, self._pairing = blame, pairing
        self._faults: list[_Fault] = []
        self._searched: Counter[str] = Counter()
        self._before: list[str] = []

    def add(self, part: ComparedPart) -> None:
        """Find out what is to blame for a layer's difference."""
        cause = self._blame.of_config(part)
        if cause is not None:
            self._faults.append(
                _Fault(part, part.name, _name_kind(part), _say_distance(part), cause)
            )
            return
        guilty: list[Pair] = []
        is_searched = self._searched[_name_kind(part)] < _MOST_SEARCHED
        if self._before or is_searched:
            self._searched[_name_kind(part)] += 1
            guilty = self._blame.of_tensors(part, self._before, is_searched=is_searched)
        if not guilty:
            self._faults.append(
                _Fault(part, part.name, _name_kind(part), _say_distance(part), None)
            )
            return
        self._before = [pair.part for pair in guilty]
        causes = explain_each(guilty, self._pairing)
        if len(guilty) > _FEW and len(set(causes)) == 1:
            text = f"{_say_distance(part)}; with {len(guilty)} tensors replaced by those {_AGREES}"
            self._faults.append(_Fault(part, part.name, _name_kind(part), text, causes[0]))
            return
        replaced = (
            "this tensor replaced by that"
            if len(guilty) == 1
            else f"this and {pluralize(len(guilty) - 1, 'other tensor')} replaced by those"
        )
        text = f"the output of {part.name} {_say_distance(part)}; with {replaced} {_AGREES}"
        for pair, cause in zip(guilty, causes, strict=True):
            self._faults.append(_Fault(part, pair.name, pair.part, text, cause))

    def problems(self) -> Sequence[Problem]:
        """Return the problems in the order of the layers; similar ones are joined."""
        made = [_fold(same) for same in group_alike(self._faults, _kind_of)]
        return keep_first(made, "{} more parts that differ are not listed")


def _name_kind(part: ComparedPart) -> str:
    return part.name.split(".")[0]


def _say_distance(part: ComparedPart) -> str:
    found, expected = part.found.all, part.expected.all
    if not isfinite(found):
        return "has NaN or infinite values where the reference does not"
    off = f"differs from the reference by {percent(found)}"
    if expected > 0:
        return f"{off} ({percent(expected)} is expected for its encodings)"
    return f"{off} (0 is expected)"


def _kind_of(fault: _Fault) -> tuple[str, Explanation | None, bool]:
    """Return the properties by which faults are joined into one problem."""
    cause = None if fault.cause is None else CAUSES.get(fault.cause.name)
    return (
        "" if cause is not None and cause.of_the_file else fault.kind,
        fault.cause,
        isfinite(fault.part.found.all),
    )


def _fold(same: list[_Fault]) -> Problem:
    first, text = same[0], same[0].text
    others = list(dict.fromkeys(each.part.name for each in same))[1:]
    if others:
        text += f"; the same is true of {join_names(others, MOST_NAMED)}"
    return Problem(where=first.where, text=text, cause=first.cause)

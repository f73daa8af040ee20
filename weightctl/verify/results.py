"""Problems with their probable causes, the results of checks, and the report of all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weightctl.text.wording import pluralize
from weightctl.verify.compare.causes import CAUSES
from weightctl.verify.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["MOST_NAMED", "Explanation", "Problem", "Report", "Result", "keep_first"]

# Of thousands that are alike nobody reads more; a file may claim any number of them.
MOST_NAMED = 20

_Kind = TypeVar("_Kind", bound=Figures)


class Explanation(NamedTuple):
    """A cause as it is met: its name in the table of causes, and a sentence about this problem."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong, or that differs where differences are listed and not judged.

    `where` is a tensor or a key as the checkpoint calls it, a block of the model (`layers.3`) or a
    file; empty where it is the whole. `text` says what is wrong with that, and `cause` what
    probably caused it, where that is known; `hint` says what to do where the error does that was
    raised. `check` is the name of the check that found it, empty as long as that runs.
    """

    where: str
    text: str
    cause: Explanation | None = None
    hint: str = ""
    check: str = ""

    @property
    def is_headline(self) -> bool:
        """Whether this is about both checkpoints as a whole."""
        cause = CAUSES.get(self.cause.name) if self.cause else None
        return cause is not None and cause.of_both and not self.where

    @property
    def statement(self) -> str:
        """What is wrong, without the name of where that is, for where it stands before it."""
        rest = self.text.removeprefix(self.where)
        is_named = self.where and rest != self.text and rest[:1] in {":", ","}
        return rest[1:].lstrip() if is_named else self.text

    def __str__(self) -> str:
        cause = f" ({self.cause.text})" if self.cause else ""
        return f"{self.where}: {self.statement}{cause}" if self.where else f"{self.text}{cause}"


def keep_first(problems: Sequence[Problem], others: str, where: str = "") -> Sequence[Problem]:
    """Return problems as they are, or the first of them and how many more there are.

    `others` says that, with `{}` where the number belongs, and `where` is where they are together.
    """
    left = len(problems) - MOST_NAMED
    if left <= 0:
        return problems
    return [*problems[:MOST_NAMED], Problem(where=where, text=others.format(left))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check found: every problem, what it measured, and what a person should know of it.

    `differences` are from the reference, where they are listed and not judged; there are no
    problems then. `skipped` says why it did not run, empty where it did.
    """

    problems: tuple[Problem, ...] = ()
    differences: tuple[Problem, ...] = ()
    figures: Figures | None = None
    notes: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def summary(self) -> str:
        """What was measured, or why nothing was, in a line; empty where there is nothing to say."""
        if self.skipped or self.figures is None:
            return self.skipped
        return self.figures.summarize()

    @property
    def verdict(self) -> str:
        """The outcome of the check: `3 problems`, `1 difference`, `skipped`, `partly`, `fine`."""
        if self.problems:
            return pluralize(len(self.problems), "problem")
        if self.differences:
            return pluralize(len(self.differences), "difference")
        if self.skipped:
            return "skipped"
        return "partly" if self.figures is not None and self.figures.is_partial else "fine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of the checks of a checkpoint, by their names, in the order they ran.

    `path` and `reference` are the checkpoints, and `description` says in few words what the first
    one is. `seconds` is how long each check took. A `comparison` lists differences, and judges
    none.
    """

    path: str
    reference: str | None
    description: str
    results: dict[str, Result]
    seconds: dict[str, float]
    comparison: bool = False

    @property
    def problems(self) -> list[Problem]:
        """All that is wrong, in the order of the checks."""
        return [problem for result in self.results.values() for problem in result.problems]

    @property
    def differences(self) -> list[Problem]:
        """All differences of a comparison, in the order of the checks."""
        return [each for result in self.results.values() for each in result.differences]

    @property
    def headline(self) -> Problem | None:
        """The finding about both checkpoints as a whole, which comes first; None without one."""
        found = (*self.problems, *self.differences)
        return next((each for each in found if each.is_headline), None)

    @property
    def notes(self) -> list[str]:
        """What a person should know, each once."""
        notes = [note for result in self.results.values() for note in result.notes]
        return list(dict.fromkeys(notes))

    def figures(self, kind: type[_Kind]) -> _Kind | None:
        """Return what was measured of a kind, None where no check did."""
        found = (result.figures for result in self.results.values())
        return next((each for each in found if isinstance(each, kind)), None)

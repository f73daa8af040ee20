"""Problems with their probable causes, the results of checks, and the report of all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from weightctl.system.registry import load
from weightctl.text.rows import Tabular
from weightctl.text.wording import pluralize
from weightctl.verify.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence


# A damaged file may cause thousands of similar problems; only the first ones are listed.
MOST_NAMED = 20
# Up to this many problems with one cause are listed one by one; more of them are one problem.
LISTED_APART = 3

# The style of a report in a notebook.
_FRAME = "width:100%;height:40em;border:0"

_Kind = TypeVar("_Kind", bound=Figures)


class Explanation(NamedTuple):
    """The likely cause of a problem: its name in the table of causes, and a sentence."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem of a checkpoint, or a difference where differences are only listed.

    `where` is the name of a tensor or key in the checkpoint, a part of the model (`layers.3`), or a
    file; it is empty for the checkpoint as a whole. `text` says what is wrong, and `cause` is the
    likely cause, None if unknown. `hint` is the hint of the error that was raised, if any. `check`
    is the name of the check that found the problem; it is empty while the check runs.
    """

    check: str = ""
    where: str
    text: str
    hint: str = ""
    cause: Explanation | None = None

    @property
    def is_headline(self) -> bool:
        """Whether this is about both checkpoints as a whole."""
        from weightctl.verify.compare.causes import is_of_both  # the table is read then

        return not self.where and self.cause is not None and is_of_both(self.cause.name)

    @property
    def statement(self) -> str:
        """The text without `where`, for output that shows `where` before it."""
        rest = self.text.removeprefix(self.where)
        is_named = self.where and rest != self.text and rest[:1] in {":", ","}
        return rest[1:].lstrip() if is_named else self.text

    def __str__(self) -> str:
        cause = f" ({self.cause.text})" if self.cause else ""
        return f"{self.where}: {self.statement}{cause}" if self.where else f"{self.text}{cause}"


def keep_first(problems: Sequence[Problem], others: str, where: str = "") -> Sequence[Problem]:
    """Return the first `MOST_NAMED` problems, and one problem that counts the others, if any.

    `others` is the text of the last problem, with `{}` in place of the number, and `where` is its
    place.
    """
    left = len(problems) - MOST_NAMED
    if left <= 0:
        return problems
    return [*problems[:MOST_NAMED], Problem(where=where, text=others.format(left))]


@dataclass(slots=True)
class Findings:
    """Problems of one kind, and notes on what is unusual but does not break the model."""

    problems: list[Problem] = field(default_factory=list[Problem])
    notes: list[str] = field(default_factory=list[str])

    def add(self, where: str, text: str, cause: Explanation | None = None) -> None:
        self.problems.append(Problem(where=where, text=text, cause=cause))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a check: problems, figures and notes.

    If differences from the reference are only listed, they are in `differences`, and `problems` is
    empty. `skipped` says why the check did not run; it is empty if the check ran.
    """

    problems: tuple[Problem, ...] = ()
    differences: tuple[Problem, ...] = ()
    figures: Figures | None = None
    notes: tuple[str, ...] = ()
    skipped: str = ""

    @property
    def summary(self) -> str:
        """What was measured, or why the check was skipped, in one line."""
        if self.skipped or self.figures is None:
            return self.skipped
        return self.figures.summarize()

    @property
    def verdict(self) -> str:
        """The outcome of the check: `3 problems`, `1 difference`, `skipped`, `partial`, `ok`."""
        if self.problems:
            return pluralize(len(self.problems), "problem")
        if self.differences:
            return pluralize(len(self.differences), "difference")
        if self.skipped:
            return "skipped"
        return "partial" if self.figures is not None and self.figures.is_partial else "ok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Tabular):
    """The results of the checks of a checkpoint, by name, in the order in which they ran.

    `path` is the checkpoint, which `description` describes briefly, and `reference` the path of the
    reference, if any. `seconds` is the time that each check took. A `comparison` lists differences
    and does not judge them.
    """

    path: str
    reference: str | None
    description: str
    results: dict[str, Result]
    seconds: dict[str, float]
    comparison: bool = False

    @property
    def problems(self) -> list[Problem]:
        """All problems, in the order of the checks."""
        return [problem for result in self.results.values() for problem in result.problems]

    @property
    def differences(self) -> list[Problem]:
        """All differences of a comparison, in the order of the checks."""
        return [each for result in self.results.values() for each in result.differences]

    @property
    def headline(self) -> Problem | None:
        """The first finding about both checkpoints as a whole; None if there is none."""
        found = (*self.problems, *self.differences)
        return next((each for each in found if each.is_headline), None)

    @property
    def notes(self) -> list[str]:
        """All notes, without duplicates."""
        notes = [note for result in self.results.values() for note in result.notes]
        return list(dict.fromkeys(notes))

    def _records(self) -> Sequence[Problem]:
        return self.problems

    def _repr_html_(self) -> str:
        from weightctl.text.page.markup import element  # only for notebooks

        page: str = load("weightctl.verify.report.html:render_page")(self)
        return element("iframe", srcdoc=page, sandbox="allow-scripts", style=_FRAME)

    def figures(self, kind: type[_Kind]) -> _Kind | None:
        """Return the figures of a kind; None if no check measured them."""
        found = (result.figures for result in self.results.values())
        return next((each for each in found if isinstance(each, kind)), None)

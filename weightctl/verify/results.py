"""What came of verifying a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from weightctl.verify.figures import (
    FiniteFigures,
    ForwardFigures,
    MetadataFigures,
    NamesFigures,
    StructureFigures,
    ValuesFigures,
)

if TYPE_CHECKING:
    from weightctl.verify.problem import Problem

__all__ = ["Figures", "Report", "Result"]

Figures: TypeAlias = (
    StructureFigures
    | FiniteFigures
    | NamesFigures
    | MetadataFigures
    | ValuesFigures
    | ForwardFigures
)

_Kind = TypeVar("_Kind", bound=Figures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a check found: every problem, what it measured, and what a person should know of it.

    `skipped` says why it did not run, empty where it did.
    """

    problems: tuple[Problem, ...] = ()
    figures: Figures | None = None
    notes: tuple[str, ...] = ()
    skipped: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The results of the checks of a checkpoint, by their names, in the order they ran.

    `path` and `reference` are the checkpoints, and `description` says in few words what the first
    one is. `seconds` is how long each check took.
    """

    path: str
    reference: str | None
    description: str
    results: dict[str, Result]
    seconds: dict[str, float]

    @property
    def problems(self) -> list[Problem]:
        """All that is wrong, in the order of the checks."""
        return [problem for result in self.results.values() for problem in result.problems]

    @property
    def notes(self) -> list[str]:
        """What a person should know, each once."""
        told = [note for result in self.results.values() for note in result.notes]
        return list(dict.fromkeys(told))

    def figures(self, kind: type[_Kind]) -> _Kind | None:
        """Return what was measured of a kind, None where no check did."""
        found = (result.figures for result in self.results.values())
        return next((each for each in found if isinstance(each, kind)), None)

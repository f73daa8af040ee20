"""Advice on what to do about problems of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify import CHECKS
from weightctl.verify.compare.causes import CAUSES

if TYPE_CHECKING:
    from weightctl.verify.results import Problem, Report

__all__ = ["COMPARE", "list_remedies"]

# What to do without a reference, where nothing that was found gives a remedy.
COMPARE = (
    "compare with a checkpoint that is known to be good: `--against ORIGINAL` finds the wrong "
    "tensor, and often the cause"
)


def list_remedies(report: Report) -> list[str]:
    """Return the remedies, each once, in the order of the problems."""
    advice = [each for each in dict.fromkeys(map(_choose_remedy, report.problems)) if each]
    # For a model that does not work without a known reason.
    if report.reference is None and not advice and any(not each.hint for each in report.problems):
        advice.append(COMPARE)
    return advice


def _choose_remedy(problem: Problem) -> str:
    """Return the remedy of a problem's cause, or that of its check, or an empty text."""
    if problem.cause is not None:
        return CAUSES[problem.cause.name].remedy if problem.cause.name in CAUSES else ""
    return CHECKS[problem.check].remedy if problem.check in CHECKS and not problem.hint else ""

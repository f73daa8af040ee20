"""A report as JSON: what `schemas/verify.json` in the package describes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from weightctl.untyped import is_sequence
from weightctl.verify.figures import Divergence
from weightctl.verify.report.remedies import remedies
from weightctl.weights.metadata import as_json

if TYPE_CHECKING:
    from weightctl.verify.results import Problem, Report, Result

__all__ = ["document", "page"]


def page(report: Report) -> str:
    """Return a report as an indented JSON document, in ASCII."""
    return json.dumps(document(report), indent=2, allow_nan=False) + "\n"


def document(report: Report) -> dict[str, Any]:
    """Return a report as what JSON can hold.

    What was measured has the names of `figures.py`. What is unknown is null, and numbers that are
    not finite are the strings `inf`, `-inf` and `nan`.
    """
    return {
        "path": report.path,
        "reference": report.reference,
        "description": report.description or None,
        "ok": not report.problems,
        "checks": {
            name: _check(result, report.seconds[name]) for name, result in report.results.items()
        },
        "problems": [_problem(problem) for problem in report.problems],
        "next": remedies(report),
    }


def _check(result: Result, seconds: float) -> dict[str, Any]:
    return {
        "ran": not result.skipped,
        "skipped": result.skipped or None,
        "seconds": seconds,
        "problems": len(result.problems),
        "notes": list(result.notes),
        "figures": _plain(result.figures),
    }


def _problem(problem: Problem) -> dict[str, Any]:
    cause = problem.cause
    return {
        "check": problem.check,
        "where": problem.where or None,
        "text": problem.text,
        "hint": problem.hint or None,
        "cause": {"name": cause.name, "text": cause.text} if cause else None,
    }


def _plain(figure: Any) -> Any:
    """Return what was measured, of whatever kind, as JSON has it."""
    if is_dataclass(figure):
        found = {field.name: _plain(getattr(figure, field.name)) for field in fields(figure)}
        if isinstance(figure, Divergence):
            found["histogram"] = [
                {"below": as_json(below), "positions": count} for below, count in figure.histogram
            ]
        return found
    if isinstance(figure, Mapping):
        named = cast("Mapping[str, Any]", figure)
        return {name: _plain(each) for name, each in named.items()}
    if is_sequence(figure):
        return [_plain(each) for each in figure]
    return None if figure == "" else as_json(figure)

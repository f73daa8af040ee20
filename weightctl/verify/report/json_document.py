"""Renders a report as JSON, according to `schemas/verify.json` in the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from weightctl.text.untyped import is_sequence
from weightctl.verify.figures import Divergence
from weightctl.verify.report import list_remedies
from weightctl.weights.metadata import as_json

if TYPE_CHECKING:
    from weightctl.verify.results import Problem, Report, Result


def render_page(report: Report) -> str:
    """Return a report as an indented JSON document, in ASCII."""
    return json.dumps(make_document(report), indent=2, allow_nan=False) + "\n"


def make_document(report: Report) -> dict[str, Any]:
    """Return a report as JSON-compatible objects.

    The names of figures are those of the dataclasses in `figures.py`. Unknown values are null, and
    values that are not finite are the strings `inf`, `-inf` and `nan`.
    """
    return {
        "path": report.path,
        "reference": report.reference,
        "description": report.description or None,
        "ok": not report.problems and not report.differences,
        "comparison": report.comparison,
        "checks": {
            name: _check(result, report.seconds[name]) for name, result in report.results.items()
        },
        "problems": [_make_problem(problem) for problem in report.problems],
        "differences": [_make_problem(each) for each in report.differences],
        "next": list_remedies(report),
    }


def _check(result: Result, seconds: float) -> dict[str, Any]:
    return {
        "ran": not result.skipped,
        "skipped": result.skipped or None,
        "seconds": seconds,
        "problems": len(result.problems),
        "differences": len(result.differences),
        "notes": list(result.notes),
        "figures": _make_plain(result.figures),
    }


def _make_problem(problem: Problem) -> dict[str, Any]:
    cause = problem.cause
    return {
        "check": problem.check,
        "where": problem.where or None,
        "text": problem.text,
        "hint": problem.hint or None,
        "cause": {"name": cause.name, "text": cause.text} if cause else None,
    }


def _make_plain(figure: Any) -> Any:
    """Return a figure of any type as JSON-compatible objects."""
    if is_dataclass(figure):
        found = {field.name: _make_plain(getattr(figure, field.name)) for field in fields(figure)}
        if isinstance(figure, Divergence):
            found["histogram"] = [
                {"below": as_json(below), "positions": count} for below, count in figure.histogram
            ]
        return found
    if isinstance(figure, Mapping):
        named = cast("Mapping[str, Any]", figure)
        return {name: _make_plain(each) for name, each in named.items()}
    if is_sequence(figure):
        return [_make_plain(each) for each in figure]
    return None if figure == "" else as_json(figure)

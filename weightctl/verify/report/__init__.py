"""Writes the report of a verification to files, as HTML or Markdown, or as JSON for scripts."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import OutputError
from weightctl.system.files import fold_path
from weightctl.system.registry import load
from weightctl.text.documents import to_document
from weightctl.verify.checks import CHECKS
from weightctl.verify.compare.causes import CAUSES
from weightctl.write.targets import (
    check_place,
    is_stream,
    open_stream,
    refuse_inputs,
    refuse_what_is_there,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from weightctl.verify.results import Problem, Report, Result


__all__ = ["COMPARE", "REPORTS", "check_targets", "list_remedies", "write"]


# The remedy if there is no reference, and neither causes nor checks have a remedy.
COMPARE = (
    "compare with a checkpoint that is known to be good: `--against ORIGINAL` finds the wrong "
    "tensor, and often the cause"
)


def list_remedies(report: Report) -> list[str]:
    """Return the remedies without duplicates, in the order of the problems."""
    advice = [each for each in dict.fromkeys(map(_choose_remedy, report.problems)) if each]
    # The model does not work, and the reason is unknown.
    if report.reference is None and not advice and any(not each.hint for each in report.problems):
        advice.append(COMPARE)
    return advice


def _choose_remedy(problem: Problem) -> str:
    """Return the remedy of a problem's cause, or of its check if the cause is unknown.

    The text is empty if there is no remedy, or if the problem has a hint of its own.
    """
    if problem.cause is not None and not problem.hint:
        return CAUSES[problem.cause.name].remedy if problem.cause.name in CAUSES else ""
    return CHECKS[problem.check].remedy if problem.check in CHECKS and not problem.hint else ""


# Suffixes of paths, each with the function that renders the text: `(report: Report) -> str`.
REPORTS: dict[str, str] = {
    ".html": "weightctl.verify.report.html:render_page",
    ".md": "weightctl.verify.report.markdown:render_page",
    ".json": "weightctl.verify.report:render_json",
}


def check_targets(paths: Sequence[str], inputs: Iterable[str] = (), *, force: bool = False) -> None:
    """Raise `OutputError` if a report cannot or must not be written; call this before any work.

    A path is refused if `REPORTS` does not list its suffix, if it is given twice, if it is one of
    the files `inputs` or a directory, if its directory does not exist, or if the file exists and
    `force` is not set.
    """
    read = list(inputs)
    for path in paths:
        _ = _find_renderer(path)
        if is_stream(path):
            continue
        real = os.path.realpath(path)
        if [*map(fold_path, paths)].count(fold_path(path)) > 1:
            raise OutputError(f"{path} is given twice", hint="give each report a different path")
        if os.path.isdir(real):
            raise OutputError(
                f"{path} is a directory", hint="use the path of a file for the report"
            )
        refuse_inputs(real, read)
        refuse_what_is_there([real], force=force)
        check_place(os.path.dirname(real), path, 0)


def write(paths: Sequence[str], report: Report, *, force: bool = False) -> None:
    """Write a report to files, each in the format of its suffix.

    Either all files appear, complete, or none do; pipes are written directly. Raises `OutputError`
    if writing fails, if `REPORTS` does not list a suffix, or if a file exists and `force` is not
    set.
    """
    from weightctl.write.partial import write_files

    made = [(path, _find_renderer(path)(report).encode()) for path in paths]
    real = [os.path.realpath(path) for path in paths if not is_stream(path)]
    refuse_what_is_there(real, force=force)
    files = {os.path.realpath(path): raw for path, raw in made if not is_stream(path)}
    write_files(files, force=force)
    for path, raw in made:
        if is_stream(path):
            with open_stream(path) as stream:
                stream.write(raw)


def _find_renderer(path: str) -> Callable[[Report], str]:
    suffix = os.path.splitext(path)[1].lower()
    if suffix not in REPORTS:
        raise OutputError(
            f"{path}: the report format is not supported; the suffix must be one of "
            f"{', '.join(REPORTS)}",
            hint="for an HTML page with charts, use a name such as report.html",
        )
    maker: Callable[[Report], str] = load(REPORTS[suffix])
    return maker


# The report as JSON, according to `schemas/verify.json` in the package.


def render_json(report: Report) -> str:
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
        "problems": to_document(report.problems),
        "differences": to_document(report.differences),
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
        "figures": to_document(result.figures, str),
    }

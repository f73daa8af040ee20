"""Reports that are kept: what verifying a checkpoint found, in a file for people or for scripts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.system.registry import load
from weightctl.write.targets import check_place, is_stream, refuse_inputs, refuse_what_is_there

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from weightctl.verify.results import Report

__all__ = ["REPORTS", "check_targets", "write"]

# What a path ends in, and what makes the text of such a file: `(report: Report) -> str`.
REPORTS: dict[str, str] = {
    ".html": "weightctl.verify.report.html:render_page",
    ".md": "weightctl.verify.report.markdown:render_page",
    ".json": "weightctl.verify.report.json_document:render_page",
}


def check_targets(paths: Sequence[str], inputs: Iterable[str] = (), *, force: bool = False) -> None:
    """Refuse, before anything is computed, reports that could not or must not be written.

    `inputs` are files that are read. Raises `OutputError` for a suffix that is none of `REPORTS`,
    an input, a place that is not there, and without `force` for a file that is.
    """
    read = list(inputs)
    for path in paths:
        _ = _find_renderer(path)
        if is_stream(path):
            continue
        real = os.path.realpath(path)
        if [os.path.realpath(other) for other in paths].count(real) > 1:
            raise OutputError(f"{path} is given twice", hint="give each report a different path")
        if os.path.isdir(real):
            raise OutputError(
                f"{path} is a directory", hint="use the path of a file for the report"
            )
        refuse_inputs(real, read)
        refuse_what_is_there([real], force=force)
        check_place(os.path.dirname(real), path, 0)


def write(paths: Sequence[str], report: Report, *, force: bool = False) -> None:
    """Keep a report in files, each in the form that its suffix asks for.

    They appear whole, and all of them or none; a pipe is written at once. Raises `OutputError`
    where that cannot be, for a suffix that is none of `REPORTS`, and without `force` for a file
    that is there.
    """
    from weightctl.write.partial import write_files
    from weightctl.write.save import open_stream

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

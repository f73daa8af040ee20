"""Writes findings as SARIF 2.1.0, for code scanners: `ls --scan --sarif` and `check --sarif`.

Source: the OASIS standard "Static Analysis Results Interchange Format (SARIF) Version 2.1.0".
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import weightctl
from weightctl.cli.report import write_report
from weightctl.errors import OutputError
from weightctl.storage.location import is_remote
from weightctl.text.wording import printable
from weightctl.write.targets import check_new_file, is_stream, stream_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def check_sarif(
    path: str, scanned: Iterable[str], consulted: Mapping[str, str], *, force: bool
) -> None:
    """Raise `OutputError` if the report cannot be written or would replace an input.

    Call this before the scan. `scanned` are the files that will be scanned; `consulted` maps
    further inputs to their roles.
    """
    if is_stream(path):
        if stream_name(path) == "stdout":
            raise OutputError(
                "--sarif cannot write to stdout, where the findings are printed",
                hint="use the path of a file for --sarif",
            )
        return
    check_new_file(path, "--sarif", scanned, consulted, force=force)


def write_sarif(
    path: str,
    rules: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    errors: Sequence[str] = (),
    *,
    exit_code: int,
    force: bool,
) -> None:
    """Write a report to a file or a pipe; raises `OutputError` if that fails.

    `errors` are the reasons why paths were not read.
    """
    invocation: dict[str, Any] = {
        "executionSuccessful": not errors,
        "exitCode": exit_code,
        "toolExecutionNotifications": [
            {"level": "error", "message": {"text": printable(each)}} for each in errors
        ],
    }
    driver = {"name": "weightctl", "version": weightctl.__version__, "rules": rules}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    write_report(path, log, force=force)


def make_rule(name: str, level: str, text: str, details: str = "") -> dict[str, Any]:
    """Return a rule, with its level for findings that state none."""
    full = {"fullDescription": {"text": details}} if details else {}
    return {
        "id": name,
        "shortDescription": {"text": text},
        "defaultConfiguration": {"level": level},
        **full,
    }


def make_result(rule: tuple[int, str, str], text: str, location: dict[str, Any]) -> dict[str, Any]:
    """Return the result for a finding; `rule` is its number, name and level."""
    number, name, level = rule
    return {
        "ruleId": name,
        "ruleIndex": number,
        "level": level,
        "message": {"text": text},
        "locations": [location],
    }


def make_location(path: str, inside: str) -> dict[str, Any]:
    """Return a file, and the name of what is meant inside it, if any."""
    physical = {"artifactLocation": {"uri": _uri(path)}}
    logical = [{"fullyQualifiedName": printable(inside)}] if inside else []
    return {"physicalLocation": physical, **({"logicalLocations": logical} if logical else {})}


def _uri(path: str) -> str:
    """Return a path or URL as a URI; the URI of a relative path is relative."""
    if is_remote(path):
        return quote(path, safe=":/@%")
    quoted = quote(os.fsencode(path))
    if os.path.isabs(path):
        return f"file://{quoted}"
    # Without `./`, a colon in the first segment would mark the segment as a URI scheme.
    return f"./{quoted}" if ":" in path.partition("/")[0] else quoted

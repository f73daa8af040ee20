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
from weightctl.formats.scanning import Severity
from weightctl.storage.location import is_remote
from weightctl.text.wording import printable
from weightctl.write.targets import check_new_file, is_stream, stream_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.check.findings import RuleFinding
    from weightctl.cli.findings import ScanFinding

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
# The SARIF rules of findings: whether it is code outside of pickles, and the severity; then the
# rule's name, level and description.
_RULES: dict[tuple[bool, Severity | None], tuple[str, str, str]] = {
    (False, Severity.DANGEROUS): (
        "dangerous-global",
        "error",
        "A pickle names a global that can run code, change files or reach a network.",
    ),
    (False, Severity.UNKNOWN): (
        "unknown-global",
        "warning",
        "A pickle names a global that is not in the list of known globals.",
    ),
    (False, None): (
        "unread-pickle",
        "error",
        "A part of a file cannot be judged, so it may name a dangerous global.",
    ),
    (True, Severity.DANGEROUS): (
        "dangerous-code",
        "error",
        "A program that loads the file runs code that is recognized as harmful.",
    ),
    (True, Severity.UNKNOWN): (
        "unknown-code",
        "warning",
        "A program that loads the file runs or imports code, which weightctl does not judge.",
    ),
}
_ORDER = [*_RULES]


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
    findings: Sequence[ScanFinding],
    errors: Sequence[str],
    *,
    exit_code: int,
    force: bool,
) -> None:
    """Write the report of a scan to a file or a pipe; raises `OutputError` if that fails."""
    write_report(path, make_sarif(findings, errors, exit_code=exit_code), force=force)


def make_sarif(
    findings: Sequence[ScanFinding], errors: Sequence[str], *, exit_code: int
) -> dict[str, Any]:
    """Return a SARIF log with a result for each finding, except known globals.

    `errors` are the reasons why paths were not read.
    """
    rules = [_rule(name, level, text) for name, level, text in _RULES.values()]
    results = [_result(each) for each in findings if each.severity is not Severity.KNOWN]
    return _make_log(rules, results, errors, exit_code)


def _rule(name: str, level: str, text: str) -> dict[str, Any]:
    return {
        "id": name,
        "shortDescription": {"text": text},
        "defaultConfiguration": {"level": level},
    }


def _make_log(
    rules: Sequence[Mapping[str, Any]],
    results: Sequence[Mapping[str, Any]],
    errors: Sequence[str],
    exit_code: int,
) -> dict[str, Any]:
    invocation: dict[str, Any] = {
        "executionSuccessful": not errors,
        "exitCode": exit_code,
        "toolExecutionNotifications": [
            {"level": "error", "message": {"text": printable(each)}} for each in errors
        ],
    }
    driver = {"name": "weightctl", "version": weightctl.__version__, "rules": rules}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def write_rule_sarif(
    path: str, findings: Sequence[RuleFinding], *, exit_code: int, force: bool
) -> None:
    """Write the findings of `check` to a file or a pipe; raises `OutputError` if that fails."""
    from weightctl.check.rules import RULES  # only for `check`

    order = [*RULES]
    rules = [
        _rule(name, rule.level.value, f"{rule.about[:1].upper()}{rule.about[1:]}.")
        | {"fullDescription": {"text": f"{rule.details[:1].upper()}{rule.details[1:]}."}}
        for name, rule in RULES.items()
    ]
    results: list[dict[str, Any]] = []
    for finding in findings:
        shown = printable(finding.text)
        physical = {"artifactLocation": {"uri": _uri(finding.path)}}
        location: dict[str, Any] = {"physicalLocation": physical}
        if finding.where:
            location["logicalLocations"] = [{"fullyQualifiedName": printable(finding.where)}]
        results.append(
            {
                "ruleId": finding.rule,
                "ruleIndex": order.index(finding.rule),
                "level": RULES[finding.rule].level.value,
                "message": {"text": f"{printable(finding.where)} {shown}".strip()},
                "locations": [location],
            }
        )
    write_report(path, _make_log(rules, results, (), exit_code), force=force)


def _result(finding: ScanFinding) -> dict[str, Any]:
    rule, level, _ = _RULES[finding.is_code, finding.severity]
    member = printable(finding.member)
    where = f"byte {finding.offset}" + (f" of {member}" if member else "")
    shown = printable(finding.text)
    if finding.severity is None:
        text = f"cannot be judged: {shown}"
    else:
        text = shown if finding.is_code else f"a pickle names {shown}"
    physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(finding.path)}}
    location: dict[str, Any] = {"physicalLocation": physical}
    if member:
        # The offset may count unpacked bytes, which are not a region of the file.
        location["logicalLocations"] = [{"fullyQualifiedName": member}]
    else:
        physical["region"] = {"byteOffset": finding.offset}
    return {
        "ruleId": rule,
        "ruleIndex": _ORDER.index((finding.is_code, finding.severity)),
        "level": level,
        "message": {"text": f"{text} ({where})"},
        "locations": [location],
        "properties": {"global": None if finding.severity is None else shown},
    }


def _uri(path: str) -> str:
    """Return a path or URL as a URI; the URI of a relative path is relative."""
    if is_remote(path):
        return quote(path, safe=":/@%")
    quoted = quote(os.fsencode(path))
    if os.path.isabs(path):
        return f"file://{quoted}"
    # Without `./`, a colon in the first segment would mark the segment as a URI scheme.
    return f"./{quoted}" if ":" in path.partition("/")[0] else quoted

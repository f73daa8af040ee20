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

    from weightctl.check.rules import RuleFinding
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
    results = [_describe_scan(each) for each in findings if each.severity is not Severity.KNOWN]
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
    results = [
        _result(
            (order.index(each.rule), each.rule, RULES[each.rule].level.value),
            f"{printable(each.where)} {printable(each.text)}".strip(),
            _location(each.path, each.where),
        )
        for each in findings
    ]
    write_report(path, _make_log(rules, results, (), exit_code), force=force)


def _describe_scan(finding: ScanFinding) -> dict[str, Any]:
    """Return the result for a finding of a scan."""
    key = finding.is_code, finding.severity
    rule, level, _ = _RULES[key]
    member, shown = printable(finding.member), printable(finding.text)
    where = f"byte {finding.offset}" + (f" of {member}" if member else "")
    if finding.severity is None:
        text = f"cannot be judged: {shown}"
    else:
        text = shown if finding.is_code else f"a pickle names {shown}"
    location = _location(finding.path, finding.member)
    if not member:  # otherwise, the offset may count unpacked bytes, not bytes of the file
        location["physicalLocation"]["region"] = {"byteOffset": finding.offset}
    result = _result((_ORDER.index(key), rule, level), f"{text} ({where})", location)
    return result | {"properties": {"global": None if finding.severity is None else shown}}


def _result(rule: tuple[int, str, str], text: str, location: dict[str, Any]) -> dict[str, Any]:
    """Return the result for a finding; `rule` is its number, name and level."""
    number, name, level = rule
    return {
        "ruleId": name,
        "ruleIndex": number,
        "level": level,
        "message": {"text": text},
        "locations": [location],
    }


def _location(path: str, inside: str) -> dict[str, Any]:
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

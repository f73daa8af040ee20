"""`ls --scan`: list the globals that the pickles in files name, and other code."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.cli.costs import show_document
from weightctl.cli.render import columns, complain, is_terminal, show_lines, show_sentences
from weightctl.errors import OutputError, WeightctlError
from weightctl.formats.scanning import AllowList, Severity
from weightctl.inspection.scan import list_scanned, scan_with
from weightctl.storage.traffic import TRAFFIC
from weightctl.text.columns import Cell, hung, in_columns, width
from weightctl.text.wording import pluralize, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.inspection.scan import ScanFinding, ScannedFile

_WORD = max(len(each.value) for each in Severity)
_SARIF = ".sarif"
_UNREAD = Cell("unread", "red")
_WORDS = {
    Severity.DANGEROUS: Cell("dangerous", "red"),
    Severity.UNKNOWN: Cell("unknown", "yellow"),
    Severity.KNOWN: Cell("known", "green"),
}


class ScanChoices(NamedTuple):
    """The options of a scan."""

    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    allow: Sequence[str] = ()
    allow_file: str | None = None
    sarif: str | None = None
    force: bool = False


def scan_paths(paths: Sequence[str], choices: ScanChoices) -> int:
    """Print the globals that the pickles at some paths name, and other code; return the exit code.

    A path is a file, any part of a split checkpoint, an index, or a directory, which is read with
    all its subdirectories. The code is 0 if all globals are known, 1 if one is not, if there is
    other code, or if a file cannot be judged, and 2 if a path cannot be read. If there is only one
    path, its error is raised.
    """
    before = TRAFFIC.counts
    allowed = AllowList.read(choices.allow, choices.allow_file)
    if choices.sarif is not None:
        from weightctl.cli.sarif import check_sarif

        consulted = {choices.allow_file: "the allow-list"} if choices.allow_file else {}
        check_sarif(choices.sarif, _inputs(paths), consulted, force=choices.force)
    found: list[ScannedFile] = []
    errors: list[str] = []
    for path in paths:
        try:
            at_path = scan_with(path, allowed)
            if choices.as_json:
                show_document(at_path, before)
            before = TRAFFIC.counts
            found += at_path.files
        except OutputError:
            raise
        except (WeightctlError, OSError) as error:
            if len(paths) == 1:
                raise
            complain(error, as_json=choices.as_json)
            errors.append(error.message if isinstance(error, WeightctlError) else str(error))
    if not choices.as_json:
        _show(found, choices)
    code = 2 if errors else int(not all(each.is_clean for each in found))
    if choices.sarif is not None:
        findings = [each for file in found for each in file.findings]
        _write_sarif(choices.sarif, findings, errors, exit_code=code, force=choices.force)
    return code


def _inputs(paths: Sequence[str]) -> Iterator[str]:
    """Yield the files that a report must not replace.

    The report of an earlier run in a scanned directory is not among them.
    """
    for path in paths:
        # A path that cannot be read is reported by the scan.
        with suppress(WeightctlError, OSError):
            for file in list_scanned(path):
                if not (os.path.isdir(path) and file.endswith(_SARIF)):
                    yield file


def _show(found: Sequence[ScannedFile], choices: ScanChoices) -> None:
    """Print each finding on a line, and a summary."""
    shown = [
        each
        for file in found
        for each in file.findings
        if choices.verbose or each.severity is not Severity.KNOWN
    ]
    show_lines(_lines(shown))
    if found and not choices.quiet:
        show_sentences([[Cell(_summary(found), "bold")]])


def _summary(found: Sequence[ScannedFile]) -> str:
    """Return `3 files, 3 pickles, no code in templates or configs: 2 dangerous, 0 unknown ...`."""
    files = pluralize(len(found), "file")
    counts = Counter(each.severity for file in found for each in file.findings)
    pickles = sum(each.pickle_count for each in found)
    places = sum(len(each.code) for each in found)
    parts = [files, pluralize(pickles, "pickle") if pickles else "no pickles"]
    if places:
        parts.append(f"other code in {pluralize(places, 'place')}")
    elif not counts[None]:
        parts.append("no code in templates or configs")
    looked_at = ", ".join(parts)
    if not pickles and not counts:
        return looked_at
    words = [f"{counts[each]:,} {each.value}" for each in Severity]
    words += [f"{counts[None]:,} unread"] if counts[None] else []
    return f"{looked_at}: {', '.join(words)}"


def _lines(findings: Sequence[ScanFinding]) -> list[list[Cell]]:
    """Return a line for each finding: `FILE: GLOBAL  severity  (byte N, member)`.

    On a terminal, the columns are aligned. If it is too narrow, each file is named once, and the
    texts of its findings are wrapped below.
    """
    rows = [
        (
            f"{printable(each.path)}: ",
            printable(each.text if each.severity else f"cannot be judged: {each.text}"),
            _UNREAD if each.severity is None else _WORDS[each.severity],
            Cell(_place(each), "dim"),
        )
        for each in findings
    ]
    if not is_terminal():
        return [
            [Cell(file + name), word._replace(text=f"  {word.text}  "), place]
            for file, name, word, place in rows
        ]
    aligned = in_columns([(Cell(file + name), *cells) for file, name, *cells in rows], None)
    if all(sum(width(cell.text) for cell in line) <= columns() for line in aligned):
        return aligned
    lines: list[list[Cell]] = []
    for file, inside in groupby(rows, itemgetter(0)):
        lines.append([Cell(file.rstrip())])
        for _, name, word, place in inside:
            heads = [word._replace(text=f"  {word.text:<{_WORD}}  ")]
            lines += hung(heads, f"{name} {place.text}", columns())
    return lines


def _place(finding: ScanFinding) -> str:
    member = f", {printable(finding.member)}" if finding.member else ""
    return f"(byte {finding.offset}{member})"


# The findings as SARIF.

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


def _write_sarif(
    path: str,
    findings: Sequence[ScanFinding],
    errors: Sequence[str],
    *,
    exit_code: int,
    force: bool,
) -> None:
    """Write a report with a result for each finding, except known globals."""
    from weightctl.cli.sarif import make_rule, write_sarif

    rules = [make_rule(*rule) for rule in _RULES.values()]
    results = [_make_sarif_result(each) for each in findings if each.severity is not Severity.KNOWN]
    write_sarif(path, rules, results, errors, exit_code=exit_code, force=force)


def _make_sarif_result(finding: ScanFinding) -> dict[str, Any]:
    """Return a finding as a result of SARIF."""
    from weightctl.cli.sarif import make_location, make_result

    key = finding.is_code, finding.severity
    rule, level, _ = _RULES[key]
    member, shown = printable(finding.member), printable(finding.text)
    where = f"byte {finding.offset}" + (f" of {member}" if member else "")
    if finding.severity is None:
        text = f"cannot be judged: {shown}"
    else:
        text = shown if finding.is_code else f"a pickle names {shown}"
    location = make_location(finding.path, finding.member)
    if not member:  # otherwise, the offset may count unpacked bytes, not bytes of the file
        location["physicalLocation"]["region"] = {"byteOffset": finding.offset}
    result = make_result(([*_RULES].index(key), rule, level), f"{text} ({where})", location)
    return result | {"properties": {"global": None if finding.severity is None else shown}}

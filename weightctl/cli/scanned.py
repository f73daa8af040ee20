"""`ls --scan`: list the globals that the pickles in files name, and other code."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.cli.costs import show_document
from weightctl.cli.render import (
    Cell,
    columns,
    complain,
    in_columns,
    is_terminal,
    shorten_name,
    show_lines,
)
from weightctl.errors import FormatError, OutputError, WeightctlError
from weightctl.formats import format_by_index
from weightctl.formats.open.index import read_index
from weightctl.formats.open.sets import part_of, set_of
from weightctl.formats.scanning import (
    AllowList,
    Scanned,
    Severity,
    read_allow_file,
    scan_file,
    unread,
)
from weightctl.formats.switch import switch_path
from weightctl.storage.files import is_directory, list_names, open_reader, prepare
from weightctl.storage.location import is_remote
from weightctl.storage.traffic import TRAFFIC
from weightctl.system.temporary import EDIT
from weightctl.text.columns import width
from weightctl.text.wording import pluralize, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.formats.scanning import FoundCode

# A file name may state any number of parts, so larger numbers are ignored.
_MOST_PARTS = 1000
_LEAST_ROOM = 24
_SARIF, _SOURCE = ".sarif", ".py"
# Pipelines of diffusers name the files with their own classes.
_PIPELINE = "model_index.json"
_EDITED = (
    "the journal of an edit that is not complete: weightctl may read other bytes than the file "
    "beside it has; finish the edit with `weightctl edit`, or remove the journal"
)
_REPLACED = (
    "the journal of a replacement that is not complete: weightctl reads other files than those "
    "beside it; finish the run that was replacing them, or remove the journal"
)
_UNREAD = Cell("unread", "red")
_WORDS = {
    Severity.DANGEROUS: Cell("dangerous", "red"),
    Severity.UNKNOWN: Cell("unknown", "yellow"),
    Severity.KNOWN: Cell("known", "green"),
}


_SEVERITIES = [*Severity]


class ScanFinding(NamedTuple):
    """A global that a file names, other code, or why a part of the file cannot be judged.

    `severity` is None if the part cannot be judged; `text` is then the reason, and otherwise the
    global's name or what the code is. `offset` is counted as in `Scanned`.
    """

    path: str
    text: str
    severity: Severity | None
    offset: int
    member: str
    is_code: bool = False


class ScannedFile:
    """A file with its pickles and other code; what `allowed` selects counts as known."""

    def __init__(self, path: str, scanned: Sequence[Scanned], allowed: AllowList) -> None:
        self.path = path
        self.pickles = [each for each in scanned if each.code is None]
        self.code = [each for each in scanned if each.code is not None]
        self._allowed = allowed.select(
            [each.path for pickle in self.pickles for each in pickle.names.named]
        )
        self._allowed_code = allowed.select_code(each.code for each in self.code if each.code)
        # A global counts once, with its highest severity.
        named: dict[str, ScanFinding] = {}
        for each in sorted(self._named(), key=_rank):
            named.setdefault(each.text, each)
        self.findings = [*self._unread(), *named.values()]

    @property
    def is_clean(self) -> bool:
        """Whether the whole file can be judged and all globals that it names are known."""
        return all(each.severity is Severity.KNOWN for each in self.findings)

    @property
    def pickle_count(self) -> int:
        """The number of pickles that were read, at least in part."""
        return sum(bool(each.names.named) or not each.names.problem for each in self.pickles)

    def severity(self, pickle: Scanned, name: str) -> Severity:
        """Return the severity of a global that a pickle of this file names."""
        return Severity.KNOWN if name in self._allowed else pickle.severity(name)

    def code_severity(self, code: FoundCode) -> Severity:
        """Return the severity of code of this file."""
        return Severity.KNOWN if code in self._allowed_code else code.severity

    def _named(self) -> Iterator[ScanFinding]:
        for pickle in self.pickles:
            for each in pickle.names.named:
                severity = self.severity(pickle, each.path)
                yield ScanFinding(self.path, each.path, severity, each.offset, pickle.member)
        for scanned in self.code:
            if code := scanned.code:
                severity = self.code_severity(code)
                yield ScanFinding(
                    self.path, code.label, severity, code.offset, scanned.member, is_code=True
                )

    def _unread(self) -> Iterator[ScanFinding]:
        for pickle in self.pickles:
            if problem := pickle.names.problem:
                yield ScanFinding(self.path, problem, None, pickle.start, pickle.member)


def _rank(finding: ScanFinding) -> int:
    """Return the sort key of a finding, by decreasing severity."""
    return -1 if finding.severity is None else _SEVERITIES.index(finding.severity)


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
    listed = read_allow_file(choices.allow_file) if choices.allow_file is not None else []
    allowed = AllowList([*choices.allow, *listed])
    if choices.sarif is not None:
        from weightctl.cli.sarif import check_sarif

        consulted = {choices.allow_file: "the allow-list"} if choices.allow_file else {}
        check_sarif(choices.sarif, _inputs(paths), consulted, force=choices.force)
    found: list[ScannedFile] = []
    errors: list[str] = []
    for path in paths:
        try:
            at_path = _scan(path, allowed)
            if choices.as_json:
                show_document(_document(path, at_path), before)
            before = TRAFFIC.counts
            found += at_path
        except OutputError:
            raise
        except (WeightctlError, OSError) as error:
            if len(paths) == 1:
                raise
            complain(error)
            errors.append(error.message if isinstance(error, WeightctlError) else str(error))
    if not choices.as_json:
        _show(found, choices)
    code = 2 if errors else int(not all(each.is_clean for each in found))
    if choices.sarif is not None:
        findings = [each for file in found for each in file.findings]
        _write_sarif(choices.sarif, findings, errors, exit_code=code, force=choices.force)
    return code


def _scan(path: str, allowed: AllowList) -> list[ScannedFile]:
    """Return the findings in each file at a path; raises `FormatError` if it cannot be read."""
    files = _files(path)
    scanned = {each: _scan_one(each, alone=len(files) == 1) for each in files}
    if not os.path.isfile(path):
        _leave_out_scripts(scanned)
    found = [ScannedFile(each, at_path, allowed) for each, at_path in scanned.items()]
    found += [
        ScannedFile(each, [unread(f"{problem}; its files were not scanned")], allowed)
        for each, problem in _list_unread(path)
    ]
    journals = {os.path.join(os.path.dirname(each), EDIT): _EDITED for each in files}
    journals |= {switch_path(each): _REPLACED for each in files}
    return found + [
        ScannedFile(each, [unread(reason)], allowed)
        for each, reason in sorted(journals.items())
        if not is_remote(path) and os.path.lexists(each)
    ]


def _leave_out_scripts(scanned: dict[str, list[Scanned]]) -> None:
    """Remove Python source from what was found in a directory, if no file names code.

    Loaders run such files only if a config names one, which can import the others.
    """
    named = {path for path, found in scanned.items() if any(each.code for each in found)}
    named |= {path for path in scanned if os.path.basename(path) == _PIPELINE}
    if all(each.endswith(_SOURCE) for each in named):
        for path in named:
            scanned[path] = [each for each in scanned[path] if not each.code]


def _scan_one(path: str, *, alone: bool) -> list[Scanned]:
    try:
        return scan_file(open_reader(path, as_stored=True))
    except (FormatError, OSError) as error:
        # If there are other files, they are still scanned.
        if alone:
            raise
        reason = error.reason if isinstance(error, FormatError) else error.strerror
        return [unread(f"{reason}; the file was not scanned")]
    except Exception as error:  # noqa: BLE001  # a fault of ours must not hide the other files
        fault = f"{type(error).__name__}: {error}"
        return [unread(f"a fault of weightctl, which should be reported ({fault}); not scanned")]


def _files(path: str) -> list[str]:
    if is_remote(path):
        files = _walk(path) if is_directory(path) else None
        if files is not None:
            prepare(files)
            return files
    elif os.path.isdir(path):
        return [
            os.path.join(folder, name)
            for folder, _, names in sorted(os.walk(path))
            for name in sorted(names)
        ]
    directory, base = os.path.split(path)
    part = part_of(base)
    if format_by_index(path):
        names = [*read_index(path).parts]
    elif part is not None and int(part["count"]) <= _MOST_PARTS:
        names = [*set_of(part)]
    else:
        names = [base]
    return [os.path.join(directory, name) for name in names]


def _list_unread(path: str) -> Iterator[tuple[str, str]]:
    """Yield the subdirectories whose files are not scanned, each with the reason."""
    if is_remote(path) or not os.path.isdir(path):
        return
    errors: list[OSError] = []
    for folder, inner, _ in os.walk(path, onerror=errors.append):
        for name in inner:
            place = os.path.join(folder, name)
            if os.path.islink(place):
                yield place, "a symbolic link to a directory"
    for error in errors:
        yield str(error.filename), f"a directory that cannot be read: {error.strerror}"


def _walk(directory: str) -> list[str]:
    """Return the URLs of all files in a directory and its subdirectories."""
    files: list[str] = []
    for name in list_names(directory):
        path = f"{directory}/{name}"
        files += _walk(path) if is_directory(path) else [path]
    return files


def _inputs(paths: Sequence[str]) -> Iterator[str]:
    """Yield the files that a report must not replace.

    The report of an earlier run in a scanned directory is not among them.
    """
    for path in paths:
        # A path that cannot be read is reported by the scan.
        with suppress(WeightctlError, OSError):
            for file in _files(path):
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
        show_lines([[Cell(_summary(found), "bold")]])


def _summary(found: Sequence[ScannedFile]) -> str:
    """Return `3 files, 3 pickles, no other code: 2 dangerous, 0 unknown, 1 known`."""
    files = pluralize(len(found), "file")
    counts = Counter(each.severity for file in found for each in file.findings)
    pickles = sum(each.pickle_count for each in found)
    places = sum(len(each.code) for each in found)
    looked_at = ", ".join(
        (
            files,
            pluralize(pickles, "pickle") if pickles else "no pickles",
            f"other code in {pluralize(places, 'place')}" if places else "no other code",
        )
    )
    if not pickles and not counts:
        return looked_at
    words = [f"{counts[each]:,} {each.value}" for each in Severity]
    words += [f"{counts[None]:,} unread"] if counts[None] else []
    return f"{looked_at}: {', '.join(words)}"


def _lines(findings: Sequence[ScanFinding]) -> list[list[Cell]]:
    """Return a line for each finding: `FILE: GLOBAL  severity  (byte N, member)`.

    On a terminal, the columns are aligned.
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
    # Only the names of globals are shortened, so that file names stay whole.
    gaps = 4
    others = gaps + max(
        (width(word.text) + width(place.text) for *_, word, place in rows), default=0
    )
    room = columns() - others
    return in_columns(
        [
            (
                Cell(file + shorten_name(name, max(room - width(file), _LEAST_ROOM))),
                word,
                place,
            )
            for file, name, word, place in rows
        ],
        None,
    )


def _place(finding: ScanFinding) -> str:
    member = f", {printable(finding.member)}" if finding.member else ""
    return f"(byte {finding.offset}{member})"


def _document(path: str, found: Sequence[ScannedFile]) -> dict[str, Any]:
    return {"path": path, "files": [_file_document(each) for each in found]}


def _file_document(file: ScannedFile) -> dict[str, Any]:
    return {
        "path": file.path,
        "pickles": [
            {
                "member": pickle.member or None,
                "offset": pickle.start,
                "problem": pickle.names.problem or None,
                "globals": [
                    {
                        "name": each.path,
                        "offset": each.offset,
                        "known": file.severity(pickle, each.path) is Severity.KNOWN,
                        "severity": file.severity(pickle, each.path).value,
                    }
                    for each in pickle.names.named
                ],
            }
            for pickle in file.pickles
        ],
        "code": [
            {
                "member": scanned.member or None,
                "offset": scanned.code.offset,
                "text": scanned.code.text,
                "severity": file.code_severity(scanned.code).value,
            }
            for scanned in file.code
            if scanned.code
        ],
    }


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

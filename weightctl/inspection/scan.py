"""Scans files for the globals that pickles name, and for other code, as `ls --scan` does."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats import format_by_index
from weightctl.formats.open.index import read_index
from weightctl.formats.open.sets import part_of, set_of
from weightctl.formats.replacement_record import switch_path
from weightctl.formats.scanning import AllowList, Scanned, Severity, scan_file, unread
from weightctl.storage.files import is_directory, list_names, open_reader, prepare
from weightctl.storage.location import is_remote, parse_location
from weightctl.system.temporary import EDIT
from weightctl.text.documents import NOT_DOCUMENTED
from weightctl.text.rows import Tabular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# A file name may state any number of parts, so larger numbers are ignored.
_MOST_PARTS = 1000
_SOURCE = ".py"
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


class ScannedGlobal(NamedTuple):
    """A global that a pickle names: `os.system`; `known` says whether it is harmless."""

    name: str
    offset: int
    known: bool
    severity: Severity


@dataclass(frozen=True, slots=True)
class ScannedPickle:
    """A pickle: where it begins, and the globals that it names.

    `member` are the members and compressions that contain it, separated by `>`; it is empty for a
    file without them. `problem` is the reason why it could not be read, or empty.
    """

    member: str
    offset: int
    problem: str
    globals: tuple[ScannedGlobal, ...]


@dataclass(frozen=True, slots=True)
class ScannedCode:
    """Code outside of pickles, which programs that load the file run or import."""

    member: str
    offset: int
    text: str
    severity: Severity
    label: str = field(metadata=NOT_DOCUMENTED)


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """A file with its pickles, and other code in it."""

    path: str
    pickles: tuple[ScannedPickle, ...]
    code: tuple[ScannedCode, ...]

    @property
    def findings(self) -> list[ScanFinding]:
        """What cannot be judged, then globals and code by decreasing severity, each once."""
        named: dict[str, ScanFinding] = {}
        found = [*self._list_named()]
        for severity in Severity:
            for each in found:
                if each.severity is severity:
                    named.setdefault(each.text, each)
        unjudged = (
            ScanFinding(self.path, each.problem, None, each.offset, each.member)
            for each in self.pickles
            if each.problem
        )
        return [*unjudged, *named.values()]

    @property
    def is_clean(self) -> bool:
        """Whether the whole file can be judged and all globals that it names are known."""
        return all(each.severity is Severity.KNOWN for each in self.findings)

    @property
    def pickle_count(self) -> int:
        """The number of pickles that were read, at least in part."""
        return sum(bool(each.globals) or not each.problem for each in self.pickles)

    def _list_named(self) -> Iterator[ScanFinding]:
        for pickle in self.pickles:
            for each in pickle.globals:
                yield ScanFinding(self.path, each.name, each.severity, each.offset, pickle.member)
        for code in self.code:
            yield ScanFinding(
                self.path, code.label, code.severity, code.offset, code.member, is_code=True
            )


@dataclass(frozen=True, slots=True)
class ScannedPath(Tabular):
    """The files at a path that were scanned, in the order of their names."""

    path: str
    files: tuple[ScannedFile, ...]

    @property
    def is_clean(self) -> bool:
        """Whether all files can be judged, and all globals and code in them are known."""
        return all(each.is_clean for each in self.files)

    def _records(self) -> Sequence[ScanFinding]:
        return [each for file in self.files for each in file.findings]


def scan(
    path: str | os.PathLike[str],
    *,
    allow: Sequence[str] = (),
    allow_file: str | os.PathLike[str] | None = None,
) -> ScannedPath:
    """List the globals that the pickles at a path name, and other code, without running any.

    A path is a file, any part of a split checkpoint, an index, a URL, or a directory, which is read
    with all its subdirectories. `allow` are patterns of globals that count as known, and
    `allow_file` is a file with such patterns. Raises `FormatError` if the path cannot be read.
    """
    file = None if allow_file is None else os.fspath(allow_file)
    return scan_with(parse_location(os.fspath(path)).name, AllowList.read(allow, file))


def _judge(path: str, scanned: Sequence[Scanned], allowed: AllowList) -> ScannedFile:
    """Return what was found in a file; what `allowed` selects counts as known."""
    pickles = [each for each in scanned if each.code is None]
    code = [(each.member, each.code) for each in scanned if each.code is not None]
    known = allowed.select([each.path for pickle in pickles for each in pickle.names.named])
    known_code = allowed.select_code(each for _, each in code)

    def judge_pickle(pickle: Scanned) -> ScannedPickle:
        severities = {
            each.path: Severity.KNOWN if each.path in known else pickle.severity(each.path)
            for each in pickle.names.named
        }
        return ScannedPickle(
            pickle.member,
            pickle.start,
            pickle.names.problem,
            tuple(
                ScannedGlobal(
                    each.path,
                    each.offset,
                    severities[each.path] is Severity.KNOWN,
                    severities[each.path],
                )
                for each in pickle.names.named
            ),
        )

    return ScannedFile(
        path,
        tuple(map(judge_pickle, pickles)),
        tuple(
            ScannedCode(
                member,
                each.offset,
                each.text,
                Severity.KNOWN if each in known_code else each.severity,
                each.label,
            )
            for member, each in code
        ),
    )


def scan_with(path: str, allowed: AllowList) -> ScannedPath:
    """Scan a path as `scan` does; what `allowed` selects counts as known."""
    files = list_scanned(path)
    scanned = {each: _scan_one(each, alone=len(files) == 1) for each in files}
    if not os.path.isfile(path):
        _leave_out_scripts(scanned)
    found = [_judge(each, at_path, allowed) for each, at_path in scanned.items()]
    found += [
        _judge(each, [unread(f"{problem}; its files were not scanned")], allowed)
        for each, problem in _list_unread(path)
    ]
    journals = {os.path.join(os.path.dirname(each), EDIT): _EDITED for each in files}
    journals |= {switch_path(each): _REPLACED for each in files}
    found += [
        _judge(each, [unread(reason)], allowed)
        for each, reason in sorted(journals.items())
        if not is_remote(path) and os.path.lexists(each)
    ]
    return ScannedPath(path, tuple(found))


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


def list_scanned(path: str) -> list[str]:
    """Return the files that a scan of a path reads."""
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

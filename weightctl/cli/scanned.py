"""The globals that pickles in files name: `ls --scan`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from weightctl.cli.render import Cell, show_lines, show_table, show_text
from weightctl.errors import FormatError
from weightctl.formats import format_by_index
from weightctl.formats.open.index import read_index
from weightctl.formats.open.sets import part_of, set_of
from weightctl.formats.scanning import Scanned, Severity, scan_file, unread
from weightctl.storage.location import open_reader
from weightctl.system.temporary import is_temporary
from weightctl.text.wording import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.formats.pickles.scan import Named

__all__ = ["show_scan"]

# A name may claim more than there could be.
_MOST_PARTS = 1000
_ORDER = [*Severity]
_VERDICTS = {
    Severity.DANGEROUS: Cell("dangerous", "red"),
    Severity.UNKNOWN: Cell("outside", "red"),
    Severity.KNOWN: Cell("known", "green"),
}


class _Found:
    """A file, and the pickles in it.

    `named` is what they name, each once, with the first pickle that does; what is dangerous comes
    first, and what is known last. `problems` are the reasons why they cannot be judged.
    """

    def __init__(self, path: str, pickles: Sequence[Scanned]) -> None:
        self.path = path
        self.pickles = pickles
        self.problems = [(each, each.names.problem) for each in pickles if each.names.problem]
        named: dict[str, tuple[Scanned, Named]] = {}
        for pickle in pickles:
            for each in pickle.names.named:
                named.setdefault(each.path, (pickle, each))
        self.severities = {path: pickle.severity(path) for path, (pickle, _) in named.items()}
        self.named = dict(
            sorted(named.items(), key=lambda entry: _ORDER.index(self.severities[entry[0]]))
        )

    @property
    def outside(self) -> int:
        """How many globals are not in the closed list."""
        return sum(each is not Severity.KNOWN for each in self.severities.values())

    @property
    def is_clean(self) -> bool:
        """Whether all of it can be read, and names nothing but what is in the closed list."""
        return not self.problems and not self.outside


def show_scan(path: str, *, as_json: bool, quiet: bool) -> bool:
    """Print what the pickles at a path name; return whether all of that is in the closed list.

    The path is a file, any part of a set, an index, or a directory, of which every file is read,
    and those below it. Raises `FormatError` where there is nothing.
    """
    paths = _files(path)
    found = [_Found(each, _pickles(each, alone=len(paths) == 1)) for each in paths]
    if as_json:
        show_text(json.dumps({"path": path, "files": [_document(each) for each in found]}) + "\n")
    else:
        _show(path, found, quiet=quiet)
    return all(each.is_clean for each in found)


def _pickles(path: str, *, alone: bool) -> list[Scanned]:
    try:
        return scan_file(open_reader(path))
    except FormatError as error:
        # Of several files one that cannot be read is not a reason not to read the others.
        if alone:
            raise
        return [unread(f"{error.reason}: it is not read")]


def _files(path: str) -> list[str]:
    if os.path.isdir(path):
        return [
            os.path.join(folder, name)
            for folder, _, names in sorted(os.walk(path))
            for name in sorted(names)
            if not is_temporary(name)
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


def _show(path: str, found: Sequence[_Found], *, quiet: bool) -> None:
    with_pickles = [each for each in found if each.pickles]
    if not with_pickles and not quiet:
        what = "no pickle in it" if len(found) == 1 else f"no pickle in its {len(found)} files"
        show_lines([[Cell(printable(path), "bold"), Cell(f": {what}")]])
    for each in with_pickles:
        if not quiet:
            title = [Cell(printable(each.path), "bold"), Cell(f": {_summary(each)}")]
            show_lines([title])
        show_table(_rows(each))


def _summary(found: _Found) -> str:
    count, named, outside = len(found.pickles), found.named, found.outside
    pickles = "1 pickle" if count == 1 else f"{count} pickles"
    globals_ = "1 global" if len(named) == 1 else f"{len(named)} globals"
    verdict = "" if found.problems else ", all in the list of what checkpoints need"
    if outside:
        verdict = f", {outside} outside the list of what checkpoints need"
    cut = "; not all of it can be read" if found.problems else ""
    return f"{pickles}, {globals_}{verdict}{cut}"


def _rows(found: _Found) -> Iterator[Sequence[Cell]]:
    for pickle, problem in found.problems:
        yield (
            Cell(f"  cannot be judged: {problem}"),
            Cell("unread", "red"),
            Cell(_where(pickle, pickle.start), "dim"),
        )
    for path, (pickle, named) in found.named.items():
        verdict = _VERDICTS[found.severities[path]]
        yield Cell(f"  {path}"), verdict, Cell(_where(pickle, named.offset), "dim")


def _where(pickle: Scanned, offset: int) -> str:
    return f"byte {offset}" + (f", {pickle.member}" if pickle.member else "")


def _document(found: _Found) -> dict[str, Any]:
    return {
        "path": found.path,
        "pickles": [
            {
                "member": pickle.member or None,
                "offset": pickle.start,
                "problem": pickle.names.problem or None,
                "globals": [
                    {
                        "name": each.path,
                        "offset": each.offset,
                        "known": pickle.is_known(each.path),
                        "severity": pickle.severity(each.path).value,
                    }
                    for each in pickle.names.named
                ],
            }
            for pickle in found.pickles
        ],
    }

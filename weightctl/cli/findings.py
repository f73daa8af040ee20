"""Findings of a scan: the globals that pickles name, other code, and their severity."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.scanning import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.formats.scanning import AllowList, FoundCode, Scanned

_ORDER = [*Severity]


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
    return -1 if finding.severity is None else _ORDER.index(finding.severity)

"""The findings of a scan: pickles with the globals that they name, and files not judged."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.scan import PickleNames
from weightctl.formats.pytorch.constructors import is_allowed

__all__ = ["Scanned", "Severity", "unread"]

_OF_TORCHSCRIPT = "__torch__."


class Severity(StrEnum):
    """What a global can do to a program that loads it."""

    DANGEROUS = "dangerous"
    UNKNOWN = "unknown"
    KNOWN = "known"


class Scanned(NamedTuple):
    """A pickle: the member that it is in, where it starts, and what it names.

    `start` and the offsets of `names` count from the start of the file, or of the unpacked bytes of
    a member that is compressed. `is_script` says that the pickle is TorchScript's, whose classes
    are in the archive itself.
    """

    member: str
    start: int
    names: PickleNames
    is_script: bool = False

    def severity(self, path: str) -> Severity:
        """Return what a global can do."""
        if is_allowed(path) or (self.is_script and path.startswith(_OF_TORCHSCRIPT)):
            return Severity.KNOWN
        return Severity.DANGEROUS if is_dangerous(path) else Severity.UNKNOWN

    def is_known(self, path: str) -> bool:
        """Whether a global is in the closed list."""
        return self.severity(path) is Severity.KNOWN


def unread(problem: str, member: str = "", start: int = 0) -> Scanned:
    """Return what represents a pickle that there may be, and that cannot be judged."""
    return Scanned(member, start, PickleNames((), start, problem))

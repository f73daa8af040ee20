"""Globals that the user trusts although they are outside the closed list: `--allow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import WeightctlError
from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.scan import MADE_UP
from weightctl.text.patterns import select_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["AllowList", "read_allow_file"]

_WILDCARDS = frozenset("*?[")
_LARGEST_FILE = 1 << 20


class AllowList:
    """Patterns of globals that count as known.

    A pattern with wildcards allows no dangerous global, and no name that ends in one, as
    `torch.nn.torch.load` does: pickles reach one module through another. A pattern without
    wildcards allows exactly the global that it names.
    """

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        given = [*patterns]
        self._exact = frozenset(each for each in given if _WILDCARDS.isdisjoint(each))
        self._globs = [each for each in given if each not in self._exact]
        # A pattern that cannot be read is an error before any file is opened.
        select_names([], self._globs)

    def select(self, names: Sequence[str]) -> set[str]:
        """Return the globals among `names` that are allowed."""
        allowed = {name for name in names if name in self._exact}
        if self._globs:
            allowed |= {
                name for name in select_names(names, self._globs) if not _ends_in_danger(name)
            }
        # A pickle that puts a name together may mean any global.
        return allowed - {MADE_UP}


def _ends_in_danger(name: str) -> bool:
    segments = name.split(".")
    return any(is_dangerous(".".join(segments[first:])) for first in range(len(segments) - 1))


def read_allow_file(path: str) -> list[str]:
    """Return the patterns of a file: one on a line; `#` begins a comment.

    Raises `WeightctlError` if the file does not exist or is not text.
    """
    hint = (
        "an allow file (--allow-file) is a text file with one pattern per line, such as torch.nn.*"
    )
    try:
        with open(path, "rb") as file:
            raw = file.read(_LARGEST_FILE + 1)
        text = raw.decode()
    except UnicodeDecodeError:
        raise WeightctlError(f"{path} is not a text file", hint=hint) from None
    except OSError as error:
        raise WeightctlError(f"{path}: {error.strerror}", hint=hint) from error
    if len(raw) > _LARGEST_FILE:
        raise WeightctlError(f"{path} is larger than 1 MiB", hint=hint)
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line]

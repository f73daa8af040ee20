"""What is in a directory, and whether it may go."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.write.output_file import cannot_write

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

__all__ = ["all_below", "foreign", "refuse_foreign", "remove"]

# Behind the name of a file that is to take the place of another.
NEW = ".new"


def all_below(directory: str) -> Iterator[str]:
    """Yield the paths of all that is in a directory and in those below it, but for directories."""
    if not os.path.isdir(directory):
        return
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from all_below(entry.path)
            else:
                yield entry.path


def foreign(directory: str, names: Collection[str]) -> Iterator[str]:
    """Yield the paths below a directory of all files there that have other names than these."""
    for path in all_below(directory):
        name = os.path.relpath(path, directory)
        if name.removesuffix(NEW) not in names:
            yield name


def refuse_foreign(directory: str, names: Collection[str], called: str) -> None:
    """Raise `OutputError` where a directory holds files by other names than these.

    Names are paths below it; `called` is what people call it.
    """
    if found := sorted(foreign(directory, names)):
        raise OutputError(
            f"{called} holds files that this would not write: {', '.join(found[:3])}",
            hint="choose another directory, or move them away",
        )


def remove(directory: str, names: Collection[str]) -> None:
    """Remove files of these names, and the directories that are empty without them.

    Raises `OutputError` where a file cannot be removed.
    """
    for name in sorted(names):
        for path in (os.path.join(directory, name), os.path.join(directory, name + NEW)):
            try:
                with suppress(FileNotFoundError):
                    os.unlink(path)
            except OSError as error:
                raise cannot_write(path, error) from error
    for name in sorted({os.path.dirname(name) for name in names} - {""}):
        with suppress(OSError):
            os.rmdir(os.path.join(directory, name))

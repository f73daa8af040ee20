"""Writes a new file with the data of an old one, which shares its blocks if the disk can."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from weightctl.editing.headers import BLOCK
from weightctl.errors import OutputError
from weightctl.storage.base import cannot_write
from weightctl.storage.local import FileReader, FileWriter
from weightctl.system.disk import clone_range_at, reserve
from weightctl.system.temporary import temporary_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.editing.planning import FileEdit, Moved

_CHUNK = 8 << 20


class NewFile:
    """A new file under a temporary name, which is locked until it is closed.

    `shared` and `written` are the bytes of data that share blocks with the old file, and those that
    were written. Raises `OutputError` if it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.temporary = temporary_name(path)
        self.shared = 0
        self.written = 0
        try:
            self._file = FileWriter(self.temporary, 0)
        except OutputError:
            with suppress(OSError):
                os.unlink(self.temporary)
            raise
        try:
            fcntl.flock(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(self._file.descriptor, stat.S_IMODE(os.stat(path).st_mode))
        except OSError as error:
            self.discard()
            raise cannot_write(path, error) from error

    def fill(self, edit: FileEdit, progress: Callable[[int], object]) -> None:
        """Write the header and the data; `progress` is called with the bytes of each step."""
        layout = edit.layout
        if layout is None:
            return
        can_share = self._share_first(edit)
        try:
            if not can_share:
                reserve(self._file.descriptor, layout.nbytes)
            os.ftruncate(self._file.descriptor, layout.nbytes)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        self._file.write(0, layout.header)
        self.written += len(layout.header)
        for moved in edit.moved:
            for old, new, nbytes, is_shared in _cut(moved, can_share=can_share):
                if is_shared and self._share(edit, old, new, nbytes):
                    self.shared += nbytes
                else:
                    self._file.copy(new, edit.source.range(old, old + nbytes))
                    self.written += nbytes
                progress(nbytes)
        self._file.sync()

    def put(self, content: bytes) -> None:
        """Write the content of a small file."""
        self._file.write(0, content)
        self._file.sync()
        self.written = len(content)

    def _share_first(self, edit: FileEdit) -> bool:
        """Whether blocks can be shared, which is tried with the first block."""
        return any(
            self._share(edit, old, new, BLOCK)
            for moved in edit.moved
            for old, new, nbytes, is_shared in _cut(moved, can_share=True)
            if is_shared and nbytes >= BLOCK
        )

    def _share(self, edit: FileEdit, old: int, new: int, nbytes: int) -> bool:
        source = edit.source
        if not isinstance(source, FileReader):
            return False
        return clone_range_at(source.fileno(), self._file.descriptor, old, new, nbytes)

    def discard(self) -> None:
        """Close and remove the file."""
        with suppress(OSError):
            os.unlink(self.temporary)
        self.close()

    def close(self) -> None:
        """Close the file, and release its lock."""
        self._file.close()


def _cut(moved: Moved, *, can_share: bool) -> Iterator[tuple[int, int, int, bool]]:
    """Yield pieces of a range: offsets in the old and new file, length, whether to share blocks."""
    position, end = moved.old, moved.old + moved.nbytes
    shift = moved.new - moved.old
    first, last = -(-position // BLOCK) * BLOCK, end // BLOCK * BLOCK
    if can_share and shift % BLOCK == 0 and first < last:
        if position < first:
            yield position, position + shift, first - position, False
        yield first, first + shift, last - first, True
        position = last
    while position < end:
        nbytes = min(_CHUNK, end - position)
        yield position, position + shift, nbytes, False
        position += nbytes

"""Files that are written at known places, by several threads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.system.disk import reserve, start_writing_back
from weightctl.write.output_file import cannot_write
from weightctl.write.replacing import sync_directory
from weightctl.write.shards.belongings import NEW

if TYPE_CHECKING:
    from weightctl.formats.base import Layout

__all__ = ["Writable", "put", "write_all"]

# The disk is never without work, and little is left for `sync` to wait for.
_BATCH = 8 << 20


class Writable:
    """A file of known length, of which each part is written where it belongs.

    It has its room on the disk from the start, and zeros wherever nothing has been written. Raises
    `OutputError` where the file system does not take it.
    """

    def __init__(self, path: str, layout: Layout) -> None:
        self.path = path
        self._not_begun = 0
        try:
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise cannot_write(path, error) from error
        try:
            reserve(self.descriptor, layout.nbytes)
            os.ftruncate(self.descriptor, layout.nbytes)
            self.write(0, memoryview(layout.header))
        except OutputError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise cannot_write(path, error) from error

    def write(self, offset: int, data: memoryview) -> None:
        """Write bytes at an offset."""
        # Where two threads add at once one may be lost: then the disk begins a little later.
        self._not_begun += len(data)
        try:
            while data:
                count = os.pwrite(self.descriptor, data, offset)
                data, offset = data[count:], offset + count
        except OSError as error:
            raise cannot_write(self.path, error) from error
        if self._not_begun >= _BATCH:
            self._not_begun = 0
            start_writing_back(self.descriptor, 0, 0)

    def sync(self) -> None:
        """Wait until what has been written is on the disk."""
        try:
            os.fdatasync(self.descriptor)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def close(self) -> None:
        """End writing."""
        os.close(self.descriptor)


def put(path: str, content: bytes) -> None:
    """Write a small file, whole and on the disk, in the place of what is there.

    Raises `OutputError`.
    """
    try:
        with open(path + NEW, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + NEW, path)
    except OSError as error:
        raise cannot_write(path, error) from error
    sync_directory(os.path.dirname(path))


def write_all(descriptor: int, data: memoryview) -> None:
    """Append bytes; raises `OSError`."""
    while data:
        data = data[os.write(descriptor, data) :]

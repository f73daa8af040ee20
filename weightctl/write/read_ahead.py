"""Fetches remote files ahead, in the order in which tasks will read them."""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

from weightctl.storage.location import is_remote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.storage.base import FileRange

# The largest size of a requested range.
_LARGEST = 8 << 20


class RemoteReads:
    """The ranges of remote files that tasks will read; ranges of local files are left out.

    `advance` is called repeatedly while tasks run.
    """

    def __init__(self, ranges: Iterable[FileRange]) -> None:
        self._ranges = deque(_merge(each for each in ranges if is_remote(each.file.path)))
        self._lock = Lock()

    def advance(self) -> None:
        """Request the next ranges, up to the limit of memory."""
        with self._lock:
            while self._ranges and self._ranges[0].expect():
                self._ranges.popleft()


def _merge(ranges: Iterable[FileRange]) -> Iterable[FileRange]:
    """Split ranges into ranges of at most `_LARGEST` bytes, and join adjacent ones of a file."""
    last: FileRange | None = None
    steps = (
        whole.part(start, start + _LARGEST)
        for whole in ranges
        for start in range(0, whole.nbytes, _LARGEST)
    )
    for each in steps:
        if last is None:
            last = each
        elif (
            each.file is last.file
            and each.offset == last.offset + last.nbytes
            and last.nbytes + each.nbytes <= _LARGEST
        ):
            last = last.file.range(last.offset, each.offset + each.nbytes)
        else:
            yield last
            last = each
    if last is not None:
        yield last

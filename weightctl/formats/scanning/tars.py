"""The members of tar files, as Python's `tarfile` finds them, and torch with it.

Until 0.1 torch wrote tars whose parts are pickles with numbers between them. Source: `legacy_load`
in `torch/serialization.py`.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any, cast

from weightctl.formats.pickles.abstract import Reference
from weightctl.formats.pickles.records import Global
from weightctl.formats.pickles.scan import names
from weightctl.formats.pytorch.legacy import nbytes_of
from weightctl.formats.pytorch.storages import storage_of
from weightctl.formats.pytorch.tar import is_any_tar
from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.sources import Slice, as_stream
from weightctl.text.untyped import is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.formats.scanning.sources import Budget, ScanPlace, ScanSource

__all__ = ["is_tar", "storage_nbytes", "tar_members"]

_HEAD = 512
_READ = 1 << 20
_NOT_TARS = (tarfile.TarError, ValueError, OSError, EOFError, LookupError, OverflowError)
_PARTS = ("storages", "tensors", "pickle")
_LENGTH = 8
_MAX_DIMENSIONS = 64


def is_tar(head: bytes, _source: ScanSource) -> bool:
    """Whether bytes are a tar file, by the sum over its first header."""
    return is_any_tar(head[:_HEAD])


def tar_members(place: ScanPlace, budget: Budget) -> Iterator[Scanned | ScanPlace]:
    """Yield the members of a tar file, and what keeps them from being read."""
    source = place.source
    end = 0
    try:
        with as_stream(source) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            while (entry := archive.next()) is not None:
                budget.enter()
                # It keeps them all, and there may be many.
                cast("Any", archive).members.clear()
                if entry.issparse():
                    yield unread(
                        "it is a sparse member of a tar file", entry.name, entry.offset_data
                    )
                elif entry.isreg() and entry.size:
                    data = Slice(source, entry.offset_data, entry.size)
                    name = entry.name.removeprefix("./")
                    where = place.within(data, name)
                    yield from _torch_parts(where, name, budget) if name in _PARTS else (where,)
                end = archive.offset
    except _NOT_TARS as error:
        yield unread(f"it is a tar file that cannot be read: {error}", place.member, source.base)
        return
    while piece := source.read(end, _READ):
        if piece.strip(b"\0"):
            problem = f"the bytes from byte {end} on are not read as part of its tar file"
            yield unread(problem, place.member, source.base)
            return
        end += len(piece)


def storage_nbytes(kind: Any, key: Any, count: Any) -> int:
    """Return the bytes of a storage's elements; raises `ValueError` if they cannot be computed."""
    if isinstance(kind, Reference):
        module, _, name = kind.path.rpartition(".")
        kind = Global(module, name)
    return nbytes_of(storage_of(kind, key, count))


def _torch_parts(place: ScanPlace, part: str, budget: Budget) -> Iterator[Scanned]:
    """Yield the pickles of a part, as torch loads them one after another."""
    reader = _Part(place, budget)
    try:
        if part == "pickle":
            yield reader.pickle()
        else:
            yield reader.pickle()
            for _ in range(reader.count()):
                yield reader.pickle()
                reader.skip(part)
            # Views of the storages follow, which other tools than torch leave out.
            if part == "storages" and reader.at < place.source.size():
                yield reader.pickle()
        reader.require_end()
    except ValueError as error:
        yield unread(
            f"from byte {place.source.base + reader.at} on, it cannot be read in the way "
            f"that torch reads it: {error}",
            place.member,
            place.source.base,
        )


class _Part:
    """A part and how far it was read; raises `ValueError` if that cannot go on."""

    def __init__(self, place: ScanPlace, budget: Budget) -> None:
        self.at = 0
        self._place, self._budget = place, budget
        self._result: Any = None

    def pickle(self) -> Scanned:
        """Read a pickle; one that cannot be read is the last."""
        source, start = self._place.source, self.at
        found = names(source, start, source.base, self._budget.reading)
        self.at = source.size() if found.problem else found.end
        self._result = found.result
        return Scanned(self._place.member, source.base + start, found)

    def require_end(self) -> None:
        """Refuse what follows the last entry."""
        behind = self._place.source.size() - self.at
        if behind > 0:
            raise ValueError(f"{behind} bytes follow its last entry")

    def count(self) -> int:
        """Return the last pickle's content, which is a number."""
        if self.at == self._place.source.size():
            return 0
        if type(self._result) is not int or self._result < 0:
            raise ValueError("its number of entries is not an integer of at least 0")
        return self._result

    def skip(self, part: str) -> None:
        """Pass over the numbers behind an entry."""
        source = self._place.source
        if part == "storages":
            if not is_tuple(self._result) or len(self._result) != 3:
                raise ValueError("an entry does not have 3 fields")
            length = int.from_bytes(source.read(self.at, _LENGTH), "little", signed=True)
            key, _location, kind = self._result
            self.at += _LENGTH + storage_nbytes(kind, key, length)
        else:
            rank = int.from_bytes(source.read(self.at, 4), "little", signed=True)
            if not 0 <= rank <= _MAX_DIMENSIONS:
                raise ValueError("a tensor has an invalid number of dimensions")
            self.at += 8 + 8 * (2 * rank + 1)
        if self.at > source.size():
            raise ValueError("the file is incomplete")

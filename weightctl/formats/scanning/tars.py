"""The members of tar files, as Python's `tarfile` finds them, and torch with it."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING, Any, cast

from weightctl.formats.pytorch.tar import is_any_tar
from weightctl.formats.scanning.found import unread
from weightctl.formats.scanning.sources import Slice, as_stream
from weightctl.formats.scanning.torch_tar import PARTS, torch_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.formats.scanning.found import Scanned
    from weightctl.formats.scanning.sources import Budget, ScanPlace, ScanSource

__all__ = ["is_tar", "tar_members"]

_HEAD = 512
_READ = 1 << 20
_NOT_TARS = (tarfile.TarError, ValueError, OSError, EOFError, LookupError, OverflowError)


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
                    yield unread("it is a sparse member of a tar", entry.name, entry.offset_data)
                elif entry.isreg() and entry.size:
                    data = Slice(source, entry.offset_data, entry.size)
                    name = entry.name.removeprefix("./")
                    where = place.within(data, name)
                    yield from torch_parts(where, name, budget) if name in PARTS else (where,)
                end = archive.offset
    except _NOT_TARS as error:
        yield unread(f"it is a tar archive that cannot be read: {error}", place.member, source.base)
        return
    while piece := source.read(end, _READ):
        if piece.strip(b"\0"):
            problem = f"the bytes from byte {end} on are not read as part of its tar archive"
            yield unread(problem, place.member, source.base)
            return
        end += len(piece)

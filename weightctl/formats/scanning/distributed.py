"""The chunks in a file of a distributed checkpoint, which `.metadata` beside it describes.

Each chunk is a file of `torch.save`, and torch loads exactly the ranges that `.metadata` states.
"""

from __future__ import annotations

import os
from posixpath import normpath
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.sources import Slice
from weightctl.formats.training.metadata import read_metadata
from weightctl.storage.files import is_file, open_reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.formats.scanning.sources import Budget, ScanPlace

_SUFFIX, _METADATA = ".distcp", ".metadata"


def is_distributed(place: ScanPlace) -> bool:
    """Whether data is a file of a distributed checkpoint, according to its name."""
    return not place.depth and place.path.endswith(_SUFFIX)


def distributed_members(place: ScanPlace, budget: Budget) -> Iterator[Scanned | ScanPlace]:
    """Yield the chunks of a file, and report bytes that are not part of a chunk."""
    directory, name = os.path.split(place.path)
    listing = os.path.join(directory, _METADATA)
    try:
        ranges = _find_ranges(listing, name) if is_file(listing) else None
    except FormatError as error:
        yield unread(f"{_METADATA}, which describes the chunks in it, is invalid: {error.reason}")
        return
    if ranges is None:
        yield unread(f"{_METADATA}, which describes the chunks in it, is not beside it")
        return
    source, end = place.source, 0
    budget.enter(len(ranges))
    for (start, length), label in sorted(ranges.items()):
        if start > end:
            yield _report_gap(end, start)
        if start + length > source.size():
            yield unread(f"the chunk of `{label}` is not all in the file", "", start)
        else:
            yield place.within(Slice(source, start, length), label, "")
        end = max(end, start + length)
    if end < source.size():
        yield _report_gap(end, source.size())


def _find_ranges(listing: str, name: str) -> dict[tuple[int, int], str]:
    """Return the ranges of a file that have a chunk, and the names of what they store."""
    metadata = read_metadata(open_reader(listing))
    places = [(key, place) for key, each in metadata.tensors.items() for _, place in each.chunks]
    places += metadata.entries.items()
    return {
        (place.offset, place.length): key for key, place in places if normpath(place.path) == name
    }


def _report_gap(start: int, stop: int) -> Scanned:
    return unread(f"{stop - start} bytes are not described by {_METADATA}", "", start)

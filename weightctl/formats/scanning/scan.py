"""Searching a file for pickles and other code, also in containers and compressed data.

All that some program would load as a pickle, or run, is reported: a scan must not miss any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.pickles.memory import LimitError
from weightctl.formats.scanning.archives import is_tar, is_zip, tar_members, zip_members
from weightctl.formats.scanning.arrays import array_pickles, is_array
from weightctl.formats.scanning.code import find_code
from weightctl.formats.scanning.compressions import COMPRESSIONS, is_packed, unpack_stream
from weightctl.formats.scanning.distributed import distributed_members, is_distributed
from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.rows import is_called_pickle, pickles
from weightctl.formats.scanning.sources import Budget, ScanPlace, WholeFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.formats.scanning.sources import ScanSource
    from weightctl.storage.base import Reader

_HEAD = 4096
_DEEPEST = 8
_GGUF = (b"GGUF", b"FUGG")


class _Container(NamedTuple):
    """A container: functions that detect it, and that yield its contents."""

    holds: Callable[[bytes, ScanSource], bool]
    contents: Callable[[ScanPlace, Budget], Iterator[Scanned | ScanPlace]]


_CONTAINERS = (
    _Container(is_zip, zip_members),
    _Container(is_tar, tar_members),
    _Container(is_array, array_pickles),
)


def scan_file(file: Reader) -> list[Scanned]:
    """Return the pickles and the other code in a file; empty if it has none."""
    budget = Budget(file.size)
    place = ScanPlace(WholeFile(file), file.path, name=file.path)
    found: list[Scanned] = []
    try:
        found.extend(_look(place, budget))
    except LimitError as error:
        found.append(unread(f"{error}; the rest of the file is not read"))
    return found


def _look(place: ScanPlace, budget: Budget) -> Iterator[Scanned]:
    """Yield the pickles and the other code at a place, and those of its contents."""
    source = place.source
    if place.depth > _DEEPEST:
        yield unread(f"it is nested more than {_DEEPEST} levels deep", place.member, source.base)
        return
    head = source.read(0, _HEAD)
    if not head:
        return
    if is_distributed(place):
        for found in distributed_members(place, budget):
            yield from _look(found, budget) if isinstance(found, ScanPlace) else (found,)
        return
    contents: list[Iterator[Scanned | ScanPlace]] = [
        container.contents(place, budget)
        for container in _CONTAINERS
        if container.holds(head, source)
    ]
    contents += [
        unpack_stream(compression, place, budget)
        for compression in COMPRESSIONS
        if is_packed(compression, head, source, budget)
    ]
    is_other = bool(contents) or head.startswith(_GGUF) or _is_safetensors(head, source)
    expected = not is_other and is_called_pickle(place.name)
    contents.append(pickles(place, head, budget, expected=expected))
    contents.append(find_code(place, head))
    for each in contents:
        for found in each:
            if isinstance(found, ScanPlace):
                yield from _look(found, budget)
            else:
                yield found


def _is_safetensors(head: bytes, source: ScanSource) -> bool:
    """Whether data begins with the length of a header, and a JSON object."""
    length = int.from_bytes(head[:8], "little")
    return head[8:9] == b"{" and length <= source.size() - 8

"""Searching a file for pickles and other code, also in containers and compressed data.

All that some program would load as a pickle, or run, is reported: a scan must not miss any.
"""

from __future__ import annotations

import ast
import os
import re
import warnings
from posixpath import normpath
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.pickles.memory import LimitError, itemsize, times
from weightctl.formats.pickles.scan import names
from weightctl.formats.scanning.archives import is_tar, is_zip, tar_members, zip_members
from weightctl.formats.scanning.code import find_code
from weightctl.formats.scanning.compressions import COMPRESSIONS, is_packed, unpack_stream
from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.rows import is_called_pickle, pickles
from weightctl.formats.scanning.sources import Budget, ScanPlace, Slice, WholeFile
from weightctl.formats.training.metadata import read_metadata
from weightctl.storage.files import is_file, open_reader
from weightctl.text.untyped import is_list, is_object, is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.formats.scanning.sources import ScanSource
    from weightctl.storage.base import Reader

_MAGIC = b"\x93NUMPY"
_WIDTHS = {1: 2, 2: 4, 3: 4}
# `numpy.load(allow_pickle=True)` has no limit, but usual headers are far shorter.
_LONGEST_HEADER = 1 << 16
# Long integers as Python 2 wrote them.
_LONG = re.compile(r"(?<=\d)L(?=[,)\s])")
_UNPARSED = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError, AttributeError)


# NumPy's files, whose arrays of objects are pickles.


def is_array(head: bytes, _source: ScanSource) -> bool:
    """Whether data is a NumPy file."""
    return head.startswith(_MAGIC)


def array_pickles(place: ScanPlace, budget: Budget) -> Iterator[Scanned | ScanPlace]:
    """Yield the pickles of a NumPy file, which can have several arrays, and data after these."""
    source, at = place.source, 0
    while source.read(at, len(_MAGIC)) == _MAGIC:
        budget.enter()
        begin, length, version = _header(source, at)
        header = source.read(begin, min(length, _LONGEST_HEADER))
        nbytes, problem = _content(header, length, version)
        at = begin + length
        if nbytes is None:
            found = names(source, at, source.base, budget.reading)
            problem = problem or found.problem
            yield Scanned(place.member, source.base + at, found._replace(problem=problem))
            if problem:
                return
            at = found.end
        else:
            at += nbytes
    if source.read(at, 1):
        rest = Slice(source, at, source.size() - at)
        yield place.within(rest, "(after the arrays)", place.name)


def _header(source: ScanSource, at: int) -> tuple[int, int, int]:
    """Return the offset and the length of an array's header, and its version."""
    version = (source.read(at + len(_MAGIC), 1) or b"\0")[0]
    width = _WIDTHS.get(version, 4)
    length = int.from_bytes(source.read(at + 8, width), "little")
    return at + 8 + width, length, version


def _content(header: bytes, length: int, version: int) -> tuple[int | None, str]:
    """Return the size in bytes of an array; None if a pickle can follow the header.

    The second value is the problem that prevents reading the array; empty if there is none.
    """
    if length > _LONGEST_HEADER:
        return None, f"its NumPy header has {length} bytes; the limit is {_LONGEST_HEADER}"
    try:
        fields = _parse_literal(header.decode("utf-8" if version == 3 else "latin-1"))
    except _UNPARSED:
        fields = None
    if not is_object(fields) or version not in _WIDTHS:
        return None, f"its NumPy header has the unsupported version {version}"
    descr, shape = fields.get("descr"), fields.get("shape")
    size = _size(descr)
    if size is None:
        is_object_array = isinstance(descr, str) and descr.lstrip("<>=|") in {
            "O", "O4", "O8", "object", "object_",
        }  # fmt: skip
        is_plain = is_object_array or _has_objects(descr)
        return None, "" if is_plain else "its NumPy header has an invalid dtype"
    total = times(size, shape if is_tuple(shape) else None)
    return total, "its NumPy header has no shape" if total is None else ""


def _parse_literal(text: str) -> Any:
    with warnings.catch_warnings():
        # Warnings about invalid escape sequences, which NumPy accepts.
        warnings.simplefilter("ignore")
        try:
            return ast.literal_eval(text)
        except SyntaxError:
            return ast.literal_eval(_LONG.sub("", text))


def _size(descr: Any) -> int | None:
    """Return the bytes of an element; None if it does not consist of numbers and bytes alone."""
    if isinstance(descr, str):
        return itemsize(descr)
    if is_list(descr):
        sizes = [_size_of_field(each) for each in descr]
        return None if None in sizes else sum(each or 0 for each in sizes)
    if is_tuple(descr) and len(descr) == 2:
        return times(_size(descr[0]), descr[1])
    return None


def _size_of_field(field: Any) -> int | None:
    if not is_tuple(field) or len(field) not in {2, 3}:
        return None
    size = _size(field[1])
    return times(size, field[2]) if len(field) == 3 else size


def _has_objects(descr: Any) -> bool:
    """Whether a dtype is valid and has objects, possibly among the fields of a structure."""
    if is_list(descr):
        return all(
            is_tuple(each) and len(each) in {2, 3}
            and (_size_of_field(each) is not None or _has_objects(each[1]))
            for each in descr
        )  # fmt: skip
    if is_tuple(descr) and len(descr) == 2:
        return _has_objects(descr[0])
    return isinstance(descr, str) and descr.lstrip("<>=|") in {"O", "O4", "O8"}


_SUFFIX, _METADATA = ".distcp", ".metadata"
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


# The chunks in a file of a distributed checkpoint, which `.metadata` beside it describes.


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

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
from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.effects import EFFECTS
from weightctl.formats.pickles.memory import LimitError, itemsize, times
from weightctl.formats.pickles.records import Global
from weightctl.formats.pickles.scan import MADE_UP, names
from weightctl.formats.pytorch.legacy import MAGIC
from weightctl.formats.pytorch.records import identity_of
from weightctl.formats.scanning.archives import (
    is_tar,
    is_zip,
    storage_nbytes,
    tar_members,
    zip_members,
)
from weightctl.formats.scanning.code import find_code
from weightctl.formats.scanning.compressions import COMPRESSIONS, is_packed, unpack_stream
from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.sources import Budget, ScanPlace, Slice, WholeFile
from weightctl.formats.training.metadata import read_metadata
from weightctl.storage.files import is_file, open_reader
from weightctl.text.untyped import is_list, is_object, is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.formats.pickles.scan import Named, PickleNames
    from weightctl.formats.scanning.sources import ScanSource
    from weightctl.storage.base import Reader


# Names of files that are loaded as a pickle, or can be.
_NAMES = re.compile(
    r".*\.(?:pkl|pickle|pk|pck|pcl|cpkl|joblib|jbl|dill|npy|npz|pt|pth|ckpt|ptl)"
    r"|(?:.*/)?(?:pytorch_model|adapter_model|training_args|optimizer|scheduler|rng_state)[^/]*\.bin",
    re.IGNORECASE | re.DOTALL,
)
# The pickles in a stream: a magic number, a version, a description of the machine, the object, and
# the keys of its storages.
_IN_STREAM, _OBJECT = 5, 3
_LENGTH = 8
# Larger than the latest protocol, to include future ones.
_LAST_PROTOCOL = 15
_LEAST = 8
# The number of pickles without globals that are listed.
_MOST_LISTED = 1000
# Module names that Python can import; they contain no white space.
_EXTENSION = "extension "
_MODULE = re.compile(r"[^\s:;,()<>\"']+")


def is_called_pickle(name: str) -> bool:
    """Whether a file has the name of a file that is loaded as a pickle, or can be."""
    return _NAMES.fullmatch(name) is not None


def pickles(
    place: ScanPlace, head: bytes, budget: Budget, *, expected: bool
) -> Iterator[Scanned | ScanPlace]:
    """Yield the pickles at the start of a source, and the problems that prevent reading them.

    `head` is the start of the data. If no pickle is `expected`, a few opcodes that name no global
    are not reported, because data of any kind can begin with them.
    """
    source = place.source
    if not expected and EFFECTS[head[0]] is None:
        return
    found: list[Scanned] = []
    at = 0
    while source.read(at, 1):
        budget.enter()
        names_ = names(source, at, source.base, budget.reading)
        start, at = at, names_.end
        scanned = Scanned(place.member, source.base + start, names_, place.is_script)
        if names_.problem:
            if start and not names_.named:
                problem = f"{source.size() - start} bytes after the last pickle cannot be read"
                scanned = unread(problem, place.member, source.base + start)
            found.append(scanned)
            break
        if names_.named or len(found) < _MOST_LISTED:
            found.append(scanned)
        if start == 0 and names_.result == MAGIC:
            yield from _stream(place, budget, scanned)
            return
    if expected or _is_pickle(head, found, place):
        yield from found


def _is_pickle(head: bytes, found: list[Scanned], place: ScanPlace) -> bool:
    """Whether opcodes are those of a pickle, because other data cannot have their effects."""
    named = list(_importable(found))
    # Only pickles have frames, and other data has none that overlap.
    is_crossed = any(each.names.crosses for each in found)
    if is_crossed or any(is_dangerous(each.path) for each in named):
        return True
    if place.is_storage:
        return any(each.names.acts for each in found) and bool(named)
    # A module of any name can be imported, such as `my model`, if its file is where programs look.
    if any(each.names.acts and each.names.named for each in found):
        return True
    if head[:1] == b"\x80" and head[1:2] and head[1] <= _LAST_PROTOCOL and found:
        first = found[0].names
        return (
            bool(first.named)
            or first.end > found[0].start - place.source.base + _LEAST
            or (not first.problem)
        )
    if not named:
        return bool(found) and not any(each.names.problem for each in found)
    return not _is_text(head) or any(
        each.names.acts or not each.names.problem for each in found if each.names.named
    )


def _importable(found: list[Scanned]) -> Iterator[Named]:
    """Yield globals up to the first that no program can import, where unpicklers stop.

    Storages are included, because torch finds them by their names alone. Extensions are excluded,
    because they must be registered first.
    """
    for scanned in found:
        for each in scanned.names.named:
            if each.path == MADE_UP:
                if scanned.names.acts:
                    yield each
                continue
            module, _, name = each.path.rpartition(".")
            is_module = _MODULE.fullmatch(module) is not None and module.isprintable()
            if name.startswith(_EXTENSION) or not (is_module or "Storage" in name):
                return
            yield each


def _is_text(head: bytes) -> bool:
    try:
        return all(letter.isprintable() or letter in "\n\r\t" for letter in str(head, "utf-8"))
    except UnicodeDecodeError:
        return False


def _stream(place: ScanPlace, budget: Budget, first: Scanned) -> Iterator[Scanned | ScanPlace]:
    """Yield the pickles of torch's stream, and the data after its storages."""
    source = place.source
    yield first
    at, nbytes = first.names.end, 0
    for number in range(1, _IN_STREAM):
        found = names(source, at, source.base, budget.reading)
        yield Scanned(place.member, source.base + at, found)
        if found.problem:
            return
        if number == _OBJECT:
            try:
                nbytes = _storages(found)
            except ValueError as error:
                problem = f"the number of bytes of its storages cannot be computed: {error}"
                yield unread(problem, place.member, source.base + at)
                return
        at = found.end
    at += nbytes
    if source.read(at, 1):
        rest = Slice(source, at, source.size() - at)
        yield place.within(rest, "(after the storages)", place.name)
        problem = f"{rest.size()} bytes after the last storage are not part of the format"
        yield unread(problem, place.member, source.base + at)


def _storages(found: PickleNames) -> int:
    """Return the bytes of the storages of an object; raises `ValueError` if they are unknown."""
    storages: dict[str, int] = {}
    for identity in found.identities:
        fields = identity_of(identity) if isinstance(identity, str) else identity
        if is_tuple(fields) and fields[:1] == ("module",):
            continue
        if not is_tuple(fields) or len(fields) < 5 or fields[0] != "storage":
            raise ValueError("a persistent id does not describe a storage")
        kind, key, count = fields[1], fields[2], fields[4]
        if not isinstance(kind, Global) and type(key) not in {str, int}:
            raise ValueError("a storage key is not a string or integer")
        storages[str(key)] = _LENGTH + storage_nbytes(kind, key, count)
    return sum(storages.values())


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

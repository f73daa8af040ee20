"""NumPy files: an array of objects is a pickle that follows a header.

Source: `numpy/lib/format.py`.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.memory import itemsize, times
from weightctl.formats.pickles.scan import names
from weightctl.formats.scanning.found import Scanned
from weightctl.formats.scanning.sources import Slice
from weightctl.text.untyped import is_list, is_object, is_tuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.formats.scanning.sources import Budget, ScanPlace, ScanSource

_MAGIC = b"\x93NUMPY"
_WIDTHS = {1: 2, 2: 4, 3: 4}
# `numpy.load(allow_pickle=True)` has no limit, but usual headers are far shorter.
_LONGEST_HEADER = 1 << 16
# Long integers as Python 2 wrote them.
_LONG = re.compile(r"(?<=\d)L(?=[,)\s])")
_UNPARSED = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError, AttributeError)


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

"""Zip files that end too soon: the pickle, which comes first, says how long they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.formats.base import pad
from weightctl.formats.cut import rest_of
from weightctl.formats.pickles.machine import UnsoundPickleError, load
from weightctl.formats.pytorch.constructors import CONSTRUCTORS
from weightctl.formats.pytorch.legacy import nbytes_of
from weightctl.formats.pytorch.recognising import PICKLE
from weightctl.formats.pytorch.storages import identity_of, storage_of
from weightctl.text.sizes import format_size

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

__all__ = ["cut_off"]

_END = b"PK\5\6"
_LONGEST_END = 22 + 0xFFFF
_LOCAL = 30
# As torch writes them: a header and a descriptor for each member, and its line in the directory.
_ALIGNMENT = 64
_DESCRIPTOR = 16
_LINE = 46


def cut_off(file: Reader) -> FormatError | None:
    """Return the error of a zip whose end is missing; None if it is there.

    Where the pickle is whole, it says about how many bytes are missing.
    """
    if _END in file.read_end(_LONGEST_END):
        return None
    should_be = _length(file)
    lost = should_be - file.size
    missing = (
        f": it has {format_size(file.size)} instead of about {format_size(should_be)}; "
        f"about {format_size(lost)} ({lost} bytes) are missing"
        if lost > 0
        else ""
    )
    return FormatError(
        file.path,
        file.size,
        f"the zip file is truncated{missing}",
        hint=rest_of(file.path),
    )


def _length(file: Reader) -> int:
    """Return about how long a file is whose pickle comes first and is whole, else 0."""
    head = file.read(0, _LOCAL)
    name_length = int.from_bytes(head[26:28], "little")
    start = _LOCAL + name_length + int.from_bytes(head[28:30], "little")
    name = file.read(_LOCAL, name_length)
    if not name.endswith(PICKLE.encode()):
        return 0
    sizes: dict[str, int] = {}

    def persistent(identity: Any) -> Any:
        identity = identity_of(identity) if type(identity) is str else identity
        storage = storage_of(identity[1], identity[2], identity[4])
        sizes[storage.key] = nbytes_of(storage)
        return storage

    try:
        _, end = load(file.range(start), 0, CONSTRUCTORS, persistent)
    except UnsoundPickleError:
        return 0
    at = start + end + _DESCRIPTOR
    names = len(name) - len(PICKLE) + len("data/")
    for key, nbytes in sizes.items():
        at += _LOCAL + names + len(key)
        at += pad(at, _ALIGNMENT) + nbytes + _DESCRIPTOR
    return at + sum(_LINE + names + len(key) for key in sizes)

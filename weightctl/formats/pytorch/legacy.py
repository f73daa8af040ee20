"""The files of torch before its zip files: a stream of pickles, then the storages' numbers.

Source: `_legacy_load` in `torch/serialization.py`. Numbers are in little-endian order on every
machine (`torch/csrc/serialization.cpp`).
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.formats.pickles.machine import UnsoundPickleError, load
from weightctl.formats.pickles.records import Global
from weightctl.formats.pytorch.constructors import CONSTRUCTORS
from weightctl.formats.pytorch.records import identity_of, key_of, register_storage, storage_of
from weightctl.text.untyped import is_list, is_tuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.formats.pytorch.records import Storage
    from weightctl.storage.byte_range import ByteRange

__all__ = [
    "MAGIC",
    "Stream",
    "is_stream",
    "nbytes_of",
    "no_storage",
    "read_pickle",
    "read_stream",
    "require_whole",
]

MAGIC = 0x1950A86A20F9469CFC6C
# The magic number as protocol 2 and later, and as protocol 0 and 1, write it.
_MAGIC_BYTES = b"\x8a\x0a" + MAGIC.to_bytes(10, "little") + b"."
_MAGIC_TEXT = f"L{MAGIC}L\n.".encode()
_PROTOCOL = 1001
_LENGTH = Struct("<q")


class Stream(NamedTuple):
    """The object that a file holds, and where its storages are: start and length in bytes.

    `data` is what the pickle's blobs lie in, and `base` where that starts in the file. `notes` are
    notes for the user, and `seen` are the globals that its pickles name.
    """

    root: Any
    data: ByteRange
    base: int
    places: Mapping[str, tuple[int, int]]
    notes: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    def locate(self, storage: Storage) -> tuple[int, int]:
        """Return where a storage's bytes start, and how many they are."""
        if storage.key not in self.places:
            raise UnsoundPickleError(self.base, f"the file has no data for storage {storage.key}")
        return self.places[storage.key]


def is_stream(head: bytes) -> bool:
    """Whether a file that starts with these bytes is a stream as torch wrote it until 1.6."""
    if head.startswith(_MAGIC_TEXT):
        return True
    # A protocol, and from 4 on perhaps a frame, come before the number.
    return head[:1] == b"\x80" and head.find(_MAGIC_BYTES, 2, 32) > 0


def no_storage(identity: Any) -> Any:
    """Refuse a persistent id: `ValueError`."""
    raise ValueError(f"a persistent id has the unexpected type {type(identity).__name__}")


def read_pickle(whole: ByteRange) -> Stream:
    """Read a file that is one pickle; its arrays lie in it."""
    seen: dict[str, None] = {}
    root, end = load(whole, 0, CONSTRUCTORS, no_storage, seen)
    rest = len(whole) - end
    notes = (f"{rest} bytes after the first pickle are not read",) if rest else ()
    return Stream(root, whole.part(0, end), 0, {}, notes, tuple(seen))


def read_stream(whole: ByteRange) -> Stream:
    """Read a stream: three pickles, the object, the keys of its storages, then their numbers.

    Raises `UnsoundPickleError`; where the file is cut off it says how many bytes are missing.
    """
    seen: dict[str, None] = {}
    magic, at = load(whole, 0, CONSTRUCTORS, no_storage, seen)
    version, at = load(whole, at, CONSTRUCTORS, no_storage, seen)
    if magic != MAGIC or version != _PROTOCOL:
        raise UnsoundPickleError(at, f"its version is not {_PROTOCOL}, the only supported version")
    _, start = load(whole, at, CONSTRUCTORS, no_storage, seen)
    roots: dict[str, Storage] = {}

    def persistent(identity: Any) -> Any:
        return _storage_or_class(identity, roots)

    root, at = load(whole, start, CONSTRUCTORS, persistent, seen)
    # Blobs lie from the start of the file on, and what they cost from that of the object.
    data = whole.part(0, at)
    keys, at = load(whole, at, CONSTRUCTORS, no_storage, seen)
    if not is_list(keys):
        raise UnsoundPickleError(at, "its list of storages is missing")
    places: dict[str, tuple[int, int]] = {}
    for key in keys:
        storage = _find_root(roots, key)
        if storage is None:
            raise UnsoundPickleError(at, "its list of storages has a storage that no tensor uses")
        nbytes = nbytes_of(storage)
        raw = whole.read(at, _LENGTH.size)
        stored = _LENGTH.unpack(raw)[0] if len(raw) == _LENGTH.size else storage.length
        if stored != storage.length:
            raise UnsoundPickleError(
                at,
                f"storage {storage.key} has {stored} elements, but the pickle states "
                f"{storage.length}",
            )
        places[storage.key] = (at + _LENGTH.size, nbytes)
        at += _LENGTH.size + nbytes
    require_whole(whole, at)
    return Stream(root, data, 0, places, seen=tuple(seen))


def _find_root(roots: Mapping[str, Storage], key: Any) -> Storage | None:
    try:
        return roots.get(key_of(key))
    except ValueError:
        return None


def require_whole(whole: ByteRange, end: int) -> None:
    """Refuse a file that ends before `end`, with how many bytes are missing."""
    if end > len(whole):
        raise UnsoundPickleError(
            len(whole),
            f"it has {len(whole)} bytes instead of {end}: {end - len(whole)} are missing",
            is_cut=True,
        )


def nbytes_of(storage: Storage) -> int:
    """Return the bytes that a storage's numbers take."""
    encoding = storage.encoding
    if encoding is None:
        return storage.length
    # Those of packed numbers count bytes.
    return storage.length * (encoding.size if encoding.block == 1 else 1)


def _storage_or_class(identity: Any, roots: dict[str, Storage]) -> Any:
    """Return what `('storage', ...)` and `('module', ...)` represent."""
    if type(identity) is str:
        identity = identity_of(identity)
    if not is_tuple(identity) or not identity:
        raise ValueError("a persistent id is not a tuple")
    if identity[0] == "module" and len(identity) == 4 and type(identity[1]) is Global:
        return identity[1]
    if identity[0] != "storage" or len(identity) != 6:
        raise ValueError("a persistent id does not describe a storage")
    _, kind, key, _location, count, view = identity
    root = register_storage(storage_of(kind, key, count), roots)
    if view is None:
        return root
    _, start, length = view
    if type(start) is not int or type(length) is not int:
        raise ValueError(f"a view of storage {root.key} has invalid fields")
    if not 0 <= start <= start + length <= count:
        raise ValueError(f"a view extends past the end of storage {root.key}")
    return root._replace(start=start)

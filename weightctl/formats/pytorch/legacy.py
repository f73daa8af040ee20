"""The stream format of torch before its zip files: pickles, then the elements of the storages.

The older tar files are detected here, and read by a package (`weightctl.extras.torch_tar`).

Source: `_legacy_load` in `torch/serialization.py`. Elements are little-endian on all machines
(`torch/csrc/serialization.cpp`).
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
    from weightctl.storage.base import ByteRange

MAGIC = 0x1950A86A20F9469CFC6C
# The magic number as protocol 2 and later write it, and as protocols 0 and 1 write it.
_MAGIC_BYTES = b"\x8a\x0a" + MAGIC.to_bytes(10, "little") + b"."
_MAGIC_TEXT = f"L{MAGIC}L\n.".encode()
_PROTOCOL = 1001
_LENGTH = Struct("<q")
# The size of a header of a tar file.
TAR_BLOCK = 512


class Stream(NamedTuple):
    """The root object of a file, and the offset and length in bytes of each storage.

    The offsets of the pickle's blobs are relative to `data`, which begins at `base` in the file.
    `notes` are for the user, and `seen` are the globals that the pickles name.
    """

    root: Any
    data: ByteRange
    base: int
    places: Mapping[str, tuple[int, int]]
    notes: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    def locate(self, storage: Storage) -> tuple[int, int]:
        """Return the offset and length in bytes of a storage."""
        if storage.key not in self.places:
            raise UnsoundPickleError(self.base, f"the file has no data for storage {storage.key}")
        return self.places[storage.key]


def is_stream(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a stream of torch before 1.6."""
    if head.startswith(_MAGIC_TEXT):
        return True
    # The magic number follows a protocol, and from protocol 4 on possibly a frame.
    return head[:1] == b"\x80" and head.find(_MAGIC_BYTES, 2, 32) > 0


def no_storage(identity: Any) -> Any:
    """Refuse a persistent id; always raises `ValueError`."""
    raise ValueError(f"a persistent id has the unexpected type {type(identity).__name__}")


def read_pickle(whole: ByteRange) -> Stream:
    """Read a file that consists of one pickle; the pickle contains its arrays."""
    seen: dict[str, None] = {}
    root, end = load(whole, 0, CONSTRUCTORS, no_storage, seen)
    rest = len(whole) - end
    notes = (f"{rest} bytes after the first pickle are not read",) if rest else ()
    return Stream(root, whole.part(0, end), 0, {}, notes, tuple(seen))


def read_stream(whole: ByteRange) -> Stream:
    """Read a stream: three pickles, the object, the keys of its storages, then their elements.

    Raises `UnsoundPickleError`; if the file is truncated, the error states the number of missing
    bytes.
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
    # The offsets of blobs are relative to the start of the file; the tree's limits depend on this
    # length.
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
    """Raise `UnsoundPickleError` if a file ends before `end`; it states the missing bytes."""
    if end > len(whole):
        raise UnsoundPickleError(
            len(whole),
            f"it has {len(whole)} bytes instead of {end}: {end - len(whole)} are missing",
            is_cut=True,
        )


def nbytes_of(storage: Storage) -> int:
    """Return the number of bytes of a storage's elements."""
    encoding = storage.encoding
    if encoding is None:
        return storage.length
    # The length of a storage of packed values is in bytes.
    return storage.length * (encoding.size if encoding.block == 1 else 1)


def _storage_or_class(identity: Any, roots: dict[str, Storage]) -> Any:
    """Return the object of a persistent id `('storage', ...)` or `('module', ...)`."""
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
        raise ValueError(f"a view is not inside storage {root.key}")
    return root._replace(start=start)


def is_any_tar(head: bytes) -> bool:
    """Whether these bytes are the start of a tar file, by the checksum of its first header."""
    if len(head) < TAR_BLOCK:
        return False
    stated = _tar_number(head[148:156])
    if stated is None:
        return False
    unsigned = sum(head[:148]) + 8 * ord(" ") + sum(head[156:TAR_BLOCK])
    # Some programs summed signed bytes; Python's `tarfile` accepts these sums as well.
    large = sum(byte > 127 for byte in head[:148] + head[156:TAR_BLOCK])
    return stated in {unsigned, unsigned - 256 * large}


def _tar_number(field: bytes) -> int | None:
    """Return a number of a header as `tarfile` reads it; None if it is invalid."""
    if field[0] in {0x80, 0xFF}:
        number = int.from_bytes(field[1:], "big")
        return number if field[0] == 0x80 else number - (1 << 8 * (len(field) - 1))
    try:
        return int(field.partition(b"\0")[0].strip() or b"0", 8)
    except ValueError:
        return None


def is_tar(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a tar file of torch, by its first member."""
    name = head[:100].rstrip(b"\0").removeprefix(b"./")
    return is_any_tar(head) and name in {b"storages", b"tensors", b"pickle", b"sys_info"}

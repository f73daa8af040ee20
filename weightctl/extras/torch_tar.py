"""The tar format of torch before 0.1: storages, their views, tensors, then the object.

Source: `legacy_load` in `torch/serialization.py`. Other tools write tar files without `tensors`,
which torch does not load: their object calls `torch._utils._rebuild_tensor_v2` itself.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any

from weightctl.formats.pickles.machine import UnsoundPickleError, load
from weightctl.formats.pytorch.constructors import CONSTRUCTORS
from weightctl.formats.pytorch.legacy import (
    TAR_BLOCK,
    Stream,
    is_any_tar,
    nbytes_of,
    no_storage,
    require_whole,
)
from weightctl.formats.pytorch.records import Storage, TensorRecord, key_of, storage_of
from weightctl.text.untyped import is_list, is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.storage.base import ByteRange

_LENGTH = Struct("<q")
_RANK = Struct("<ii")
_MAX_DIMENSIONS = 64
# The types of regular files and directories.
_PLAIN = {b"0", b"\0", b"5"}


def _members(whole: ByteRange) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each member of a tar file."""
    members: dict[str, tuple[int, int]] = {}
    at = 0
    while len(head := whole.read(at, TAR_BLOCK)) == TAR_BLOCK and head[0]:
        name = head[:100].rstrip(b"\0").removeprefix(b"./").decode("latin-1")
        digits = head[124:136].strip(b"\0 ")
        if not digits or digits.strip(b"01234567"):
            raise UnsoundPickleError(at, f"the tar file has an invalid size for {name!r}")
        size = int(digits, 8)
        # Programs differ in how they read long names, links and the like, and torch does not write
        # them.
        if not is_any_tar(head) or head[156:157] not in _PLAIN or head[345:500].strip(b"\0"):
            raise UnsoundPickleError(
                at, f"the tar file has the member {name!r}, which torch does not write"
            )
        if name in members:
            raise UnsoundPickleError(at, f"the tar file has two members named {name!r}")
        members[name] = (at + TAR_BLOCK, size)
        at += TAR_BLOCK + size + -size % TAR_BLOCK
    for name in ("storages", "tensors", "pickle"):
        if name in members:
            require_whole(whole, sum(members[name]))
        elif name != "tensors" or at > len(whole):
            raise UnsoundPickleError(
                0, f"the tar file has no member {name!r}", is_cut=at > len(whole)
            )
    return members


def read_tar(whole: ByteRange) -> Stream:
    """Read a tar file: storages, their views, tensors, then the object.

    Without a member `tensors`, the object creates its tensors itself, as in later formats, and
    refers to storages by tuples. Raises `UnsoundPickleError`.
    """
    members = _members(whole)
    places: dict[str, tuple[int, int]] = {}
    seen: dict[str, None] = {}
    has_tensors = "tensors" in members
    storages = _tar_storages(whole, members["storages"], places, seen, has_views=has_tensors)
    tensors = _tar_tensors(whole, members["tensors"], storages, seen) if has_tensors else {}
    constructors = CONSTRUCTORS if has_tensors else _with_named(storages)

    def persistent(identity: Any) -> Any:
        if is_tuple(identity) and identity:
            return identity[0]
        key = key_of(identity)
        return tensors[key] if key in tensors else storages[key]

    start, size = members["pickle"]
    data = whole.part(start, start + size)
    try:
        root, end = load(data, 0, constructors, persistent, seen)
    except UnsoundPickleError as error:
        raise UnsoundPickleError(start + error.offset, str(error), is_cut=error.is_cut) from error
    return Stream(root, data.part(0, end), start, places, seen=tuple(seen))


def _with_named(storages: Mapping[str, Storage]) -> dict[str, Callable[..., Any] | None]:
    """Return the constructors, with those of tensors accepting tuples that name storages."""

    def taking(make: Callable[..., Any]) -> Callable[..., Any]:
        def construct(storage: Any, *rest: Any) -> Any:
            return make(_find_named_storage(storage, storages), *rest)

        return construct

    return CONSTRUCTORS | {
        path: taking(make)
        for path, make in CONSTRUCTORS.items()
        if make is not None and path.startswith("torch._utils._rebuild_tensor")
    }


def _find_named_storage(identity: Any, storages: Mapping[str, Storage]) -> Any:
    """Return the storage of a tuple `('storage', class, key, location, length)`."""
    if not is_tuple(identity) or len(identity) != 5 or identity[0] != "storage":
        return identity
    wanted = storage_of(identity[1], identity[2], identity[4])
    stored = storages.get(wanted.key)
    if stored != wanted:
        raise ValueError(
            f"storage {wanted.key} is missing, or has another type or length in the file"
        )
    return stored


def _count(value: Any, at: int) -> int:
    if type(value) is not int or value < 0:
        raise UnsoundPickleError(at, "the number of entries is not an integer of at least 0")
    return value


def _key(value: Any, at: int) -> str:
    try:
        return key_of(value)
    except ValueError as error:
        raise UnsoundPickleError(at, str(error)) from error


def _pickle(data: ByteRange, at: int, seen: dict[str, None]) -> tuple[Any, int]:
    """Return the object of the pickle at an offset, and the end of the pickle."""
    return load(data, at, CONSTRUCTORS, no_storage, seen)


def _tar_storages(
    whole: ByteRange,
    member: tuple[int, int],
    places: dict[str, tuple[int, int]],
    seen: dict[str, None],
    *,
    has_views: bool,
) -> dict[str, Storage]:
    at, end = member[0], sum(member)
    data = whole.part(0, end)
    count, at = _pickle(data, at, seen)
    storages: dict[str, Storage] = {}
    for _ in range(_count(count, at)):
        entry, at = _pickle(data, at, seen)
        key, _location, kind = _fields(entry, 3, at)
        length = _number(_LENGTH, data, at)[0]
        try:
            storage = storage_of(kind, key, length)
        except ValueError as error:
            raise UnsoundPickleError(at, str(error)) from error
        at += _LENGTH.size
        storages[storage.key] = storage
        places[storage.key] = (at, nbytes_of(storage))
        at += nbytes_of(storage)
        require_whole(data, at)
    # A file without a member `tensors` can end here.
    views: Any = ()
    if has_views or at < end:
        views, at = _pickle(data, at, seen)
    for view in views if is_list(views) else ():
        target, root, start, length = _fields(view, 4, at)
        whole_one = storages.get(_key(root, at))
        if whole_one is None or type(start) is not int or type(length) is not int:
            raise UnsoundPickleError(at, "a view refers to no storage, or has an invalid range")
        if not 0 <= start <= start + length <= whole_one.length:
            raise UnsoundPickleError(at, f"a view is not inside storage {root}")
        storages[_key(target, at)] = whole_one._replace(start=start)
    _require_end(at, end)
    return storages


def _tar_tensors(
    whole: ByteRange,
    member: tuple[int, int],
    storages: dict[str, Storage],
    seen: dict[str, None],
) -> dict[str, TensorRecord]:
    at, end = member[0], sum(member)
    data = whole.part(0, end)
    count, at = _pickle(data, at, seen)
    tensors: dict[str, TensorRecord] = {}
    for _ in range(_count(count, at)):
        entry, at = _pickle(data, at, seen)
        key, storage_key, _kind = _fields(entry, 3, at)
        storage = storages.get(_key(storage_key, at))
        rank = _number(_RANK, data, at)[0]
        if storage is None or not 0 <= rank <= _MAX_DIMENSIONS:
            raise UnsoundPickleError(
                at, "a tensor has no storage, or an invalid number of dimensions"
            )
        numbers = _number(Struct(f"<{2 * rank + 1}q"), data, at + _RANK.size)
        at += _RANK.size + 8 * len(numbers)
        shape, strides = numbers[:rank], numbers[rank:-1]
        tensors[_key(key, at)] = TensorRecord(
            storage, numbers[-1], shape, strides, storage.encoding
        )
    _require_end(at, end)
    return tensors


def _require_end(at: int, end: int) -> None:
    if at != end:
        raise UnsoundPickleError(at, f"{end - at} bytes after the last entry belong to no entry")


def _number(kind: Struct, data: ByteRange, at: int) -> tuple[int, ...]:
    raw = data.read(at, kind.size)
    if len(raw) < kind.size:
        raise UnsoundPickleError(at, "the file is incomplete", is_cut=True)
    return kind.unpack(raw)


def _fields(entry: Any, count: int, at: int) -> tuple[Any, ...]:
    if not is_tuple(entry) or len(entry) != count:
        raise UnsoundPickleError(at, f"an entry does not have {count} fields")
    return entry

"""Detection of PyTorch checkpoints in all their formats, and parsing of their headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError, WeightctlError
from weightctl.formats.base import pad
from weightctl.formats.pickles.dangers import is_dangerous
from weightctl.formats.pickles.machine import OPCODES, UnsoundPickleError, load
from weightctl.formats.pytorch.archive import Archive, is_zip
from weightctl.formats.pytorch.constructors import CONSTRUCTORS, is_allowed
from weightctl.formats.pytorch.leaves import Tree, UnsoundTreeError
from weightctl.formats.pytorch.legacy import (
    Stream,
    is_stream,
    is_tar,
    nbytes_of,
    read_pickle,
    read_stream,
)
from weightctl.formats.pytorch.records import identity_of, register_storage, storage_of
from weightctl.formats.pytorch.values import shorten_text
from weightctl.formats.truncation import rest_of
from weightctl.system.processes import without_collection
from weightctl.system.registry import load_entry_points
from weightctl.text.sizes import format_size
from weightctl.text.untyped import is_tuple
from weightctl.weights.info import Header
from weightctl.weights.metadata import from_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.formats.pytorch.records import Storage
    from weightctl.storage.base import Reader
    from weightctl.weights.metadata import MetadataValue

# The group of entry points whose values are functions that read old forms of files.
_FORMS = "weightctl.pytorch"
_PICKLE = "data.pkl"
# The bytes that a pickle of protocol 0 or 1 can begin with.
_FIRST = b"(]})cI"
_LARGEST = 1 << 24
_END = b"PK\5\6"
_LONGEST_END = 22 + 0xFFFF
_LOCAL = 30
# The layout of torch's zip files: alignment, data descriptor and directory entry of a member.
_ALIGNMENT = 64
_DESCRIPTOR = 16
_LINE = 46
_RECORD = "extra/weightctl.json"
_HEAD = 512
_SCRIPT = "a TorchScript archive: its weights are read, its code is not"
_DAMAGED = "the file is damaged or a faulty tool wrote it"


def is_checkpoint(file: Reader, head: bytes) -> bool:
    """Whether a file that begins with these bytes is a file of torch, or a pickle."""
    if not is_zip(file):
        return is_tar(head) or is_stream(head) or _is_pickle(file)
    # torch writes the pickle first; if so, the rest of the file can be damaged or missing.
    if head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(f"/{_PICKLE}".encode()):
        return True
    try:
        return _pickle_name(Archive(file)) is not None
    except FormatError:
        return False


def _pickle_name(archive: Archive) -> str | None:
    """Return the name of the pickle in a zip file of torch; None for other zip files.

    torch searches the folder of the first member, and ignores case.
    """
    names = [name for name in archive.members if f"/{name}".lower().endswith(f"/{_PICKLE}")]
    first = next(iter(archive.members), "").partition("/")[0]
    return min(
        names, key=lambda name: (name[: -len(_PICKLE)] != f"{first}/", len(name)), default=None
    )


def _is_pickle(file: Reader) -> bool:
    """Whether a file is one pickle; a pickle of protocol 0 or 1 is read to its end to detect it."""
    head = file.read(0, 3)
    if head[:1] == b"\x80":
        return len(head) == 3 and head[1] in range(2, 6) and head[2] in OPCODES
    if not head or head[0] not in _FIRST or file.size > _LARGEST:
        return False
    if file.read_end(1) != b".":
        return False
    try:
        return load(file.range(), 0, CONSTRUCTORS, lambda _: None)[1] == file.size
    except UnsoundPickleError:
        return False


def _cut_off(file: Reader) -> FormatError | None:
    """Return the error of a zip file without its end record; None if it has one.

    If the pickle is complete, the error states the approximate number of missing bytes.
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
    """Return the approximate length of the complete file, if the pickle comes first; else 0.

    Also returns 0 if the pickle is incomplete or invalid.
    """
    head = file.read(0, _LOCAL)
    name_length = int.from_bytes(head[26:28], "little")
    start = _LOCAL + name_length + int.from_bytes(head[28:30], "little")
    name = file.read(_LOCAL, name_length)
    if not name.endswith(_PICKLE.encode()):
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
    names = len(name) - len(_PICKLE) + len("data/")
    for key, nbytes in sizes.items():
        at += _LOCAL + names + len(key)
        at += pad(at, _ALIGNMENT) + nbytes + _DESCRIPTOR
    return at + sum(_LINE + names + len(key) for key in sizes)


def read(file: Reader) -> Header:
    """Parse the header of a PyTorch checkpoint; raises `FormatError` if it is invalid."""
    with without_collection():
        return _read(file)


def _read(file: Reader) -> Header:
    try:
        if is_zip(file):
            return _read_zip(file)
        head = file.read(0, _HEAD)
        if is_tar(head):
            stream = _read_tar(file)
        else:
            stream = (read_stream if is_stream(head) else read_pickle)(file.range())
        return _header(file, stream, {}, big_endian=False)
    except UnsoundPickleError as error:
        what = "the file is truncated" if error.is_cut else "the pickle is invalid"
        hint = rest_of(file.path) if error.is_cut else _DAMAGED
        raise FormatError(file.path, error.offset, f"{what}: {error}", hint=hint) from error
    except UnsoundTreeError as error:
        raise FormatError(
            file.path, None, f"the pickle is invalid: {shorten_text(str(error))}", hint=_DAMAGED
        ) from error


def _read_tar(file: Reader) -> Stream:
    for each in load_entry_points(_FORMS):
        if each.name == "tar":
            stream: Stream = each.value(file.range())
            return stream
    text = "it is a tar file of torch, and no installed package reads it"
    raise FormatError(file.path, None, text, hint="install weightctl again")


def _archive(file: Reader) -> Archive:
    try:
        return Archive(file)
    except FormatError as error:
        raise (_cut_off(file) or error) from error


def _read_zip(file: Reader) -> Header:
    archive = _archive(file)
    name = _pickle_name(archive)
    if name is None:
        raise FormatError(file.path, None, f"the zip file has no member {_PICKLE}", hint=_DAMAGED)
    prefix = name[: -len(_PICKLE)]
    start = archive.place(archive.members[name])
    data = file.range(start, start + archive.members[name].nbytes)
    places: dict[str, tuple[int, int]] = {}
    known: dict[str, Storage] = {}
    is_script = any(name.startswith(f"{prefix}code/") for name in archive.members)

    def persistent(identity: Any) -> Any:
        identity = identity_of(identity) if type(identity) is str else identity
        if not is_tuple(identity) or len(identity) != 5 or identity[0] != "storage":
            raise ValueError("a persistent id does not describe a storage")
        storage = storage_of(identity[1], identity[2], identity[4])
        if not is_script:
            # torch uses the first description of a storage; in TorchScript, each tensor has its
            # own.
            register_storage(storage, known)
        if storage.key not in places:
            member = archive.members.get(f"{prefix}data/{storage.key}")
            if member is None:
                raise ValueError(f"the zip file has no member `{prefix}data/{storage.key}`")
            places[storage.key] = (archive.place(member), member.nbytes)
        return storage

    seen: dict[str, None] = {}
    try:
        root, end = load(data, 0, CONSTRUCTORS, persistent, seen)
    except UnsoundPickleError as error:
        raise UnsoundPickleError(start + error.offset, str(error), is_cut=error.is_cut) from error
    order = f"{prefix}byteorder"
    big_endian = order in archive.members and archive.content(order).read(0, 4) == b"big"
    notes = (_SCRIPT,) if is_script else ()
    stream = Stream(root, data.part(0, end), start, places, notes, tuple(seen))
    record = _record(archive, prefix + _RECORD)
    return _header(file, stream, record, big_endian=big_endian)


def _record(archive: Archive, name: str) -> dict[str, MetadataValue]:
    """Return the metadata that weightctl stored in a zip file; empty if there is none."""
    if name not in archive.members:
        return {}
    try:
        content = archive.content(name)
        return from_json(str(content.read(0, len(content)), "utf-8"))
    except (WeightctlError, UnicodeDecodeError):
        return {}  # another program's file of this name


def _header(
    file: Reader, stream: Stream, record: dict[str, MetadataValue], *, big_endian: bool
) -> Header:
    tree = Tree(stream.root, stream.data, stream.base, stream.locate, big_endian=big_endian)
    together = 0
    for extent in tree.extents.values():
        together |= 0 if extent.held is not None else extent.offset
    return Header(
        format="pytorch",
        files=(file.path,),
        tensors=tree.tensors,
        extents=tree.extents,
        metadata={**record, **tree.metadata},
        aliases=tree.aliases,
        leaves=tree.leaves,
        alignment=together & -together or 1,
        big_endian=big_endian,
        notes=(*stream.notes, *_notes(tree)),
        warnings=tuple(_warnings(file, stream)),
    )


def _warnings(file: Reader, stream: Stream) -> Iterator[str]:
    """Yield a warning if the pickle names globals that can run code in other programs."""
    dangerous = [name for name in stream.seen if not is_allowed(name) and is_dangerous(name)]
    if dangerous:
        yield (
            f"{file.path}: loading this file in other programs can run code, because its "
            f"pickle names {_few(dangerous)}; weightctl does not run this code, "
            "and `weightctl ls --scan` lists all that the pickle names"
        )


def _notes(tree: Tree) -> Iterator[str]:
    """Yield notes on unsupported classes and tensors, and on renamed entries."""
    # TorchScript's classes are in the archive itself, and have a note of their own.
    unknown = {
        name: count
        for name, count in tree.unknown.items()
        if not is_allowed(name) and not name.startswith("__torch__.")
    }
    if unknown:
        count = sum(unknown.values())
        noun = "an object" if count == 1 else f"{count} objects"
        classes = "a class" if len(unknown) == 1 else "classes"
        verb = "is" if count == 1 else "are"
        what = f"{noun} of {classes} that weightctl does not import {verb} not read"
        yield f"{what}: {_few([*unknown])}"
    if tree.divided:
        yield f"tensors that are not dense are read as their parts: {_few(tree.divided)}"
    if tree.unread:
        yield f"tensors of unsupported types, which are not read: {_few(tree.unread)}"
    if tree.renamed:
        yield f"entries whose names were in use have a number appended: {_few(tree.renamed)}"


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(shorten_text, names[:3])) + (", ..." if len(names) > 3 else "")

"""The members of zip and tar files, as the programs that load them find them.

torch reads zip files with miniz, and other programs use Python's `zipfile`. In a valid zip file,
both find the same members. In other zip files, the members that `zipfile` finds are scanned, and
the zip file is reported too.

Before 0.1, torch wrote tar files whose members contain pickles with data between them. Source:
`legacy_load` in `torch/serialization.py`.
"""

from __future__ import annotations

import re
import tarfile
import zipfile
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from weightctl.errors import FormatError
from weightctl.formats.pickles.memory import Reference
from weightctl.formats.pickles.records import Global
from weightctl.formats.pickles.scan import names
from weightctl.formats.pytorch.archive import Archive, DirectoryMember, directory_of
from weightctl.formats.pytorch.legacy import is_any_tar, nbytes_of
from weightctl.formats.pytorch.records import storage_of
from weightctl.formats.scanning.compressions import Unpacked, bzip2, lzma_alone, make_inflater
from weightctl.formats.scanning.found import Scanned, unread
from weightctl.formats.scanning.sources import EnclosedFile, Slice, as_stream
from weightctl.text.untyped import is_tuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.formats.scanning.compressions import Decompressor
    from weightctl.formats.scanning.sources import Budget, ScanPlace, ScanSource

_START, _END = b"PK\3\4", b"PK\5\6"
_LONGEST_END = 22 + 0xFFFF
_LOCAL = Struct("<4s4xH16x2H")
_LOCAL_SIZE = 30
_ENCRYPTED = 1
_STORED, _LZMA = 0, 14
# The storages of torch, which usually contain only numbers.
_STORAGES = re.compile(r"[^/]+/(data|constants)/\d+")
_NOT_ZIPS = (
    zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError, LookupError,
    RuntimeError, OverflowError,
)  # fmt: skip
_HEAD = 512
_READ = 1 << 20
_NOT_TARS = (tarfile.TarError, ValueError, OSError, EOFError, LookupError, OverflowError)
_PARTS = ("storages", "tensors", "pickle")
_LENGTH = 8
_MAX_DIMENSIONS = 64


def is_zip(head: bytes, source: ScanSource) -> bool:
    """Whether data is a zip file; other bytes can precede it."""
    if head.startswith((_START, _END)):
        return True
    size = source.size()
    end = head if size <= len(head) else source.read(max(size - _LONGEST_END, 0), _LONGEST_END)
    return _END in end and bool(_by_zipfile(source))


def _by_zipfile(source: ScanSource) -> list[DirectoryMember]:
    """Return the members that Python's `zipfile` finds; empty if it finds no zip file."""
    try:
        with as_stream(source) as stream, zipfile.ZipFile(stream) as archive:
            return [
                DirectoryMember(
                    each.filename, each.header_offset, each.file_size, each.compress_type,
                    each.flag_bits, each.compress_size,
                )
                for each in archive.infolist()
            ]  # fmt: skip
    except _NOT_ZIPS:
        return []


def zip_members(place: ScanPlace, budget: Budget) -> Iterator[Scanned | ScanPlace]:
    """Yield the members of a zip file, and the problems that prevent reading them."""
    source = place.source
    archive: Archive | None = None
    if source.read(0, 4) == _START:
        file = EnclosedFile(place.path, source)
        try:
            budget.enter(directory_of(file)[0])
            archive = Archive(file)
        except FormatError as error:
            yield unread(error.reason, place.member, source.base)
    members = [*archive.members.values()] if archive else _by_zipfile(source)
    names = {each.name for each in members}
    is_script = any(name.endswith("/constants.pkl") for name in names)
    is_torch = any(name.lower().endswith("/data.pkl") for name in names)
    if archive is None:
        budget.enter(len(members))
    for member in members:
        if member.name.endswith("/") and not member.nbytes:
            continue
        is_storage = is_torch and _STORAGES.fullmatch(member.name) is not None
        if archive and not is_storage and not member.method:
            try:
                archive.place(member)
            except FormatError as error:
                where = place.within(source, member.name)
                yield unread(error.reason, where.member, source.base + member.header)
        yield from _inside(place, member, budget, is_script=is_script, is_storage=is_storage)


def _inside(
    place: ScanPlace, member: DirectoryMember, budget: Budget, *, is_script: bool, is_storage: bool
) -> Iterator[Scanned | ScanPlace]:
    source = place.source
    where = place.within(source, member.name)
    start, problem = _start(source, member)
    if problem:
        yield unread(problem, where.member, source.base + member.header)
        return
    packed = Slice(source, start, member.packed)
    content: ScanSource = packed
    if member.method != _STORED:
        content = _METHODS[member.method](packed, budget)
    yield where._replace(source=content, is_script=is_script, is_storage=is_storage)
    size = content.size()
    if isinstance(content, Unpacked):
        # LZMA data can omit its end marker; its size is then that of the directory.
        is_whole = member.method == _LZMA and size == member.nbytes
        problem = "" if is_whole else content.problem
    if not problem and size != member.nbytes:
        problem = f"the zip directory states {member.nbytes} bytes, but the member has {size}"
    if problem:
        yield unread(problem, where.member, packed.base)


def _start(source: ScanSource, member: DirectoryMember) -> tuple[int, str]:
    """Return the offset of a member's bytes, and why they cannot be read; empty if they can."""
    head = source.read(member.header, _LOCAL_SIZE)
    if len(head) < _LOCAL_SIZE or not head.startswith(_START):
        return 0, "it is not at the offset in the zip directory"
    _, method, name_length, extra_length = _LOCAL.unpack(head)
    problem = ""
    if member.flags & _ENCRYPTED:
        problem = "it is encrypted: decrypt it first"
    elif method != member.method:
        problem = "the zip headers contradict each other about its compression"
    elif method != _STORED and method not in _METHODS:
        problem = f"it is compressed with method {method}: unpack it, and scan the result"
    return member.header + _LOCAL_SIZE + name_length + extra_length, problem


def _alone(source: ScanSource, create: Callable[[], Decompressor], budget: Budget) -> Unpacked:
    return Unpacked(source, create, lambda at: None if at else 0, budget)


def _unpack_lzma(source: ScanSource, budget: Budget) -> Unpacked:
    # The old header has the same properties in another layout: APPNOTE 5.8.8.
    properties = source.read(4, int.from_bytes(source.read(2, 2), "little"))
    head = properties[:5] + b"\xff" * 8
    start = 4 + len(properties)
    return Unpacked(source, lzma_alone, lambda at: None if at else start, budget, head=head)


_METHODS: dict[int, Callable[[ScanSource, Budget], Unpacked]] = {
    8: lambda source, budget: _alone(source, make_inflater, budget),
    12: lambda source, budget: _alone(source, bzip2, budget),
    _LZMA: _unpack_lzma,
}


def is_tar(head: bytes, _source: ScanSource) -> bool:
    """Whether data is a tar file: `tarfile` accepts its first header."""
    if not is_any_tar(head[:_HEAD]):
        return False
    try:
        tarfile.TarInfo.frombuf(head[:_HEAD], "utf-8", "surrogateescape")
    except _NOT_TARS:
        return False
    return True


def _has_no_data(entry: tarfile.TarInfo) -> bool:
    """Whether `tarfile` reads no data of a member; unknown types are regular files to it."""
    return entry.isdir() or entry.issym() or entry.islnk() or entry.isdev()


def tar_members(place: ScanPlace, budget: Budget) -> Iterator[Scanned | ScanPlace]:
    """Yield the members of a tar file, and the problems that prevent reading them."""
    source = place.source
    end = 0
    try:
        with as_stream(source) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            while (entry := archive.next()) is not None:
                budget.enter()
                # `tarfile` keeps all members in memory, and there can be many.
                cast("Any", archive).members.clear()
                if entry.issparse():
                    yield unread(
                        "it is a sparse member of a tar file", entry.name, entry.offset_data
                    )
                elif entry.size and not _has_no_data(entry):
                    if not entry.isreg():
                        problem = (
                            f"it is a member of a tar file with the unknown type {entry.type!r}: "
                            "programs read it as a regular file"
                        )
                        yield unread(problem, entry.name, entry.offset_data)
                    data = Slice(source, entry.offset_data, entry.size)
                    name = entry.name.removeprefix("./")
                    where = place.within(data, name)
                    yield from _torch_parts(where, name, budget) if name in _PARTS else (where,)
                end = archive.offset
    except _NOT_TARS as error:
        yield unread(f"it is a tar file that cannot be read: {error}", place.member, source.base)
        return
    while piece := source.read(end, _READ):
        if piece.strip(b"\0"):
            problem = f"the bytes from byte {end} on are not read as part of its tar file"
            yield unread(problem, place.member, source.base)
            return
        end += len(piece)


def storage_nbytes(kind: Any, key: Any, count: Any) -> int:
    """Return the bytes of a storage's elements; raises `ValueError` if they are unknown."""
    if isinstance(kind, Reference):
        module, _, name = kind.path.rpartition(".")
        kind = Global(module, name)
    return nbytes_of(storage_of(kind, key, count))


def _torch_parts(place: ScanPlace, part: str, budget: Budget) -> Iterator[Scanned]:
    """Yield the pickles in a member of torch's tar file, as torch loads them one after another."""
    reader = _Part(place, budget)
    try:
        if part == "pickle":
            yield reader.pickle()
        else:
            yield reader.pickle()
            for _ in range(reader.count()):
                yield reader.pickle()
                reader.skip(part)
            # Views of the storages follow; tools other than torch omit them.
            if part == "storages" and reader.at < place.source.size():
                yield reader.pickle()
        reader.require_end()
    except ValueError as error:
        yield unread(
            f"from byte {place.source.base + reader.at} on, it cannot be read in the way "
            f"that torch reads it: {error}",
            place.member,
            place.source.base,
        )


class _Part:
    """A member of torch's tar file, and the position in it; raises `ValueError` if invalid."""

    def __init__(self, place: ScanPlace, budget: Budget) -> None:
        self.at = 0
        self._place, self._budget = place, budget
        self._result: Any = None

    def pickle(self) -> Scanned:
        """Read a pickle; if it cannot be read, skip the rest of the member."""
        source, start = self._place.source, self.at
        found = names(source, start, source.base, self._budget.reading)
        self.at = source.size() if found.problem else found.end
        self._result = found.result
        return Scanned(self._place.member, source.base + start, found)

    def require_end(self) -> None:
        """Raise `ValueError` if bytes follow the last entry."""
        behind = self._place.source.size() - self.at
        if behind > 0:
            raise ValueError(f"{behind} bytes follow its last entry")

    def count(self) -> int:
        """Return the integer that the last pickle contains; 0 at the end of the member."""
        if self.at == self._place.source.size():
            return 0
        if type(self._result) is not int or self._result < 0:
            raise ValueError("its number of entries is not an integer of at least 0")
        return self._result

    def skip(self, part: str) -> None:
        """Skip the data that follows an entry."""
        source = self._place.source
        if part == "storages":
            if not is_tuple(self._result) or len(self._result) != 3:
                raise ValueError("an entry does not have 3 fields")
            length = int.from_bytes(source.read(self.at, _LENGTH), "little", signed=True)
            key, _location, kind = self._result
            self.at += _LENGTH + storage_nbytes(kind, key, length)
        else:
            rank = int.from_bytes(source.read(self.at, 4), "little", signed=True)
            if not 0 <= rank <= _MAX_DIMENSIONS:
                raise ValueError("a tensor has an invalid number of dimensions")
            self.at += 8 + 8 * (2 * rank + 1)
        if self.at > source.size():
            raise ValueError("the file is incomplete")

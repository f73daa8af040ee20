"""The members of zip files, as the programs find them that load what is in them.

torch uses miniz, and all others Python's `zipfile`: where a zip is sound both find the same. The
members of others are those that `zipfile` finds, and the zip is reported as well.
"""

from __future__ import annotations

import re
import zipfile
from struct import Struct
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.pytorch.archive import Archive, DirectoryMember
from weightctl.formats.pytorch.zip_end import directory_of
from weightctl.formats.scanning.found import unread
from weightctl.formats.scanning.sources import EnclosedFile, Slice, as_stream
from weightctl.formats.scanning.unpacked import Unpacked, bzip2, lzma_alone, make_inflater

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from weightctl.formats.scanning.found import Scanned
    from weightctl.formats.scanning.sources import Budget, ScanPlace, ScanSource
    from weightctl.formats.scanning.unpacked import Decompressor

__all__ = ["is_zip", "zip_members"]

_START, _END = b"PK\3\4", b"PK\5\6"
_LONGEST_END = 22 + 0xFFFF
_LOCAL = Struct("<4s4xH16x2H")
_LOCAL_SIZE = 30
_ENCRYPTED = 1
_STORED, _LZMA = 0, 14
# The storages of torch: only numbers in them are usual.
_STORAGES = re.compile(r"[^/]+/(data|constants)/\d+")
_NOT_ZIPS = (
    zipfile.BadZipFile, NotImplementedError, ValueError, OSError, EOFError, LookupError,
    RuntimeError, OverflowError,
)  # fmt: skip


def is_zip(head: bytes, source: ScanSource) -> bool:
    """Whether bytes are a zip file; other bytes may come before it."""
    if head.startswith((_START, _END)):
        return True
    size = source.size()
    end = head if size <= len(head) else source.read(max(size - _LONGEST_END, 0), _LONGEST_END)
    return _END in end and bool(_by_zipfile(source))


def _by_zipfile(source: ScanSource) -> list[DirectoryMember]:
    """Return the members that Python finds; none where it takes the bytes for something else."""
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
    """Yield the members of a zip file, and what keeps them from being read."""
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
        # The end of LZMA may be left out: its size is what the zip says.
        is_whole = member.method == _LZMA and size == member.nbytes
        problem = "" if is_whole else content.problem
    if not problem and size != member.nbytes:
        problem = f"the zip directory states {member.nbytes} bytes, but the member has {size}"
    if problem:
        yield unread(problem, where.member, packed.base)


def _start(source: ScanSource, member: DirectoryMember) -> tuple[int, str]:
    """Return where the bytes of a member start, and why they cannot be read, if so."""
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
    # A header of another kind has the same properties: APPNOTE 5.8.8.
    properties = source.read(4, int.from_bytes(source.read(2, 2), "little"))
    head = properties[:5] + b"\xff" * 8
    start = 4 + len(properties)
    return Unpacked(source, lzma_alone, lambda at: None if at else start, budget, head=head)


_METHODS: dict[int, Callable[[ScanSource, Budget], Unpacked]] = {
    8: lambda source, budget: _alone(source, make_inflater, budget),
    12: lambda source, budget: _alone(source, bzip2, budget),
    _LZMA: _unpack_lzma,
}

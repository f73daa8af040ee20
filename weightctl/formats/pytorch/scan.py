"""Every pickle in a file, and the globals that each names.

What some program would take for a pickle is one here: a scan that overlooks one is worse than none.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats.pytorch.archive import Archive, is_zip
from weightctl.formats.pytorch.constructors import is_allowed
from weightctl.formats.pytorch.legacy import MAGIC, no_storage
from weightctl.formats.pytorch.tar import is_any_tar, tar_pickles
from weightctl.pickles.machine import UnsoundPickleError, load
from weightctl.pickles.scan import Names, names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.weights.byte_range import ByteRange
    from weightctl.weights.mapping import MappedFile

__all__ = ["Scanned", "scanned", "unread"]

_HEAD = 4096
# A stream begins with a magic number, a version, and what machine wrote it.
_IN_STREAM = 5
_NUMPY = b"\x93NUMPY"
_PACKED = {
    b"\x1f\x8b": "gzip", b"\xfd7zXZ": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7-Zip", b"Rar!": "RAR", b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip
_UNPACK = "unpack it, and scan what is in it"
# Members that somebody would load; of all others it is enough to look whether they are pickles.
_LOADED = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".npy", ".npz")
# The storages of torch, which nothing loads as a pickle.
_NUMBERS = re.compile(r"[^/]+/(data|constants)/\d+")
_WORDS = re.compile(r"[^\s:;,()<>\"']+")


class Scanned(NamedTuple):
    """A pickle: the member that it is in, where it starts in the file, and what it names.

    `is_script` says that it is TorchScript's, whose classes are in the archive itself.
    """

    member: str
    start: int
    names: Names
    is_script: bool = False

    def is_known(self, path: str) -> bool:
        """Whether a global is in the closed list."""
        return is_allowed(path) or (self.is_script and path.startswith("__torch__."))


def unread(problem: str, member: str = "", start: int = 0) -> Scanned:
    """Return what stands for a pickle that there may be, and that cannot be read."""
    return Scanned(member, start, Names((), start, problem))


def scanned(file: MappedFile) -> list[Scanned]:
    """Return the pickles in a file; none for one of another kind."""
    whole = file.range()
    head = file.read(0, _HEAD)
    if is_zip(file):
        return list(_in_zip(file))
    # torch tries this one first.
    if is_any_tar(head[:512]):
        return list(_in_tar(whole))
    packed = next((name for magic, name in _PACKED.items() if head.startswith(magic)), None)
    if packed is not None:
        return [unread(f"it is packed with {packed}: {_UNPACK}")]
    if head.startswith(_NUMPY):
        return list(_in_array(whole, 0, ""))
    found = list(_in_a_row(whole))
    # A few opcodes that name nothing may be the beginning of anything.
    is_cut_short = bool(found) and bool(found[-1].names.problem)
    if is_cut_short and head[0] != 0x80 and not any(each.names.named for each in found):
        return []
    return found


def _in_a_row(whole: ByteRange) -> Iterator[Scanned]:
    """Yield pickles that follow one another; behind those of torch's stream there are numbers."""
    at = number = 0
    most = len(whole)
    while at < len(whole) and number < most:
        found = names(whole, at)
        if found.problem and not _is_told(whole, at, found):
            break
        yield Scanned("", at, found)
        if found.problem:
            return
        if number == 0 and _is_magic(whole, found.end):
            most = _IN_STREAM
        at, number = found.end, number + 1
    if 0 < number < most and at < len(whole):
        yield unread(f"{len(whole) - at} bytes behind the last pickle cannot be read", start=at)


def _is_told(whole: ByteRange, start: int, found: Names) -> bool:
    """Whether opcodes that lead nowhere are a pickle all the same: whether they name something.

    Text may look as if it did; but what it names is not what anybody calls a module.
    """
    if not found.named:
        # So far a length, with which other files begin, may look like one too.
        is_long = found.end > start + 8
        return is_long and whole.read(start, 2) in _PROTOCOLS
    if whole.read(start, 1) == b"\x80":
        return True
    try:
        is_text = all(
            c.isprintable() or c in "\n\r\t" for c in str(whole.read(start, _HEAD), "utf-8")
        )
    except UnicodeDecodeError:
        is_text = False
    return not is_text or any(_WORDS.fullmatch(each.path) for each in found.named)


_PROTOCOLS = {bytes([0x80, version]) for version in range(6)}


def _is_magic(whole: ByteRange, end: int) -> bool:
    """Whether the first pickle is the number that torch's streams begin with."""
    try:
        return end < _HEAD and load(whole.part(0, end), 0, {}, no_storage)[0] == MAGIC
    except UnsoundPickleError:
        return False


def _in_zip(file: MappedFile) -> Iterator[Scanned]:
    try:
        archive = Archive(file)
    except FormatError as error:
        yield unread(error.reason)
        return
    is_script = any(name.endswith("/constants.pkl") for name in archive.members)
    for name, member in archive.members.items():
        if _NUMBERS.fullmatch(name):
            continue
        is_loaded = name.lower().endswith(_LOADED)
        try:
            start = archive.place(member)
        except FormatError as error:
            if is_loaded:
                yield unread(error.reason, name, member.header)
            continue
        data = file.range(0, start + member.nbytes)
        if data.read(start, len(_NUMPY)) == _NUMPY:
            yield from _in_array(data, start, name)
            continue
        found = names(data, start)
        if name.lower().endswith(".pkl") or (found.named and _is_told(data, start, found)):
            yield Scanned(name, start, found, is_script)


def _in_array(data: ByteRange, start: int, member: str) -> Iterator[Scanned]:
    """Yield the pickle behind the header of a NumPy file of objects; one of numbers has none."""
    width = 2 if data.read(start + 6, 1) == b"\1" else 4
    begin = start + 8 + width
    at = begin + int.from_bytes(data.read(start + 8, width), "little")
    if b"O" in data.read(begin, min(at - begin, _HEAD)).partition(b"fortran")[0]:
        yield Scanned(member, at, names(data, at))


def _in_tar(whole: ByteRange) -> Iterator[Scanned]:
    found, problem = tar_pickles(whole)
    for member, start, end in found:
        yield Scanned(member, start, names(whole.part(0, end), start))
    if problem:
        yield unread(f"it is a tar archive, and {problem}; {_UNPACK}")

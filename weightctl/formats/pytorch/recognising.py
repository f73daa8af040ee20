"""The marks by which a PyTorch checkpoint, or any pickle, is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats.pickles.machine import UnsoundPickleError, load
from weightctl.formats.pickles.opcodes import OPCODES
from weightctl.formats.pytorch.archive import Archive, is_zip
from weightctl.formats.pytorch.constructors import CONSTRUCTORS
from weightctl.formats.pytorch.legacy import is_stream
from weightctl.formats.pytorch.tar import is_tar

if TYPE_CHECKING:
    from weightctl.storage.base import Reader

__all__ = ["PICKLE", "is_checkpoint", "is_pickle", "pickle_name"]

PICKLE = "data.pkl"
# What a pickle of protocol 0 or 1, which says nothing of itself, can begin with.
_FIRST = b"(]})cI"
_LARGEST = 1 << 24


def is_checkpoint(file: Reader, head: bytes) -> bool:
    """Whether a file that starts with these bytes is what torch writes, or a pickle."""
    if not is_zip(file):
        return is_tar(head) or is_stream(head) or is_pickle(file)
    # torch puts the pickle first; where that is so, the rest may be damaged or missing.
    if head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(f"/{PICKLE}".encode()):
        return True
    try:
        return pickle_name(Archive(file)) is not None
    except FormatError:
        return False


def pickle_name(archive: Archive) -> str | None:
    """Return the name of the pickle in a zip that torch wrote, None in any other.

    torch looks into the folder of the first member, and does not tell large letters from small.
    """
    names = [name for name in archive.members if f"/{name}".lower().endswith(f"/{PICKLE}")]
    first = next(iter(archive.members), "").partition("/")[0]
    return min(
        names, key=lambda name: (name[: -len(PICKLE)] != f"{first}/", len(name)), default=None
    )


def is_pickle(file: Reader) -> bool:
    """Whether a file is one pickle; of protocol 0 and 1 one must be whole to be known."""
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

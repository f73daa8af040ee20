"""Archives that are not checkpoints, or were cut off: what they hold, by the names in them."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from weightctl.formats import format_by_suffix
from weightctl.formats.cut import rest_of
from weightctl.formats.identify.kinds import (
    ELSEWHERE,
    FORMATS_HINT,
    NO_MODEL,
    NUMPY,
    UNPACK,
    NonCheckpointFile,
)
from weightctl.formats.identify.texts import show_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.storage.base import Reader

__all__ = ["cut_zip", "recognize_tar", "recognize_zip"]

_MOST_MEMBERS = 1000
_MOST_DIRECTORY = 1 << 20
_LOCAL, _CENTRAL, _END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_END64, _LOCATOR64 = b"PK\6\6", b"PK\6\7"
_BLOCK = 512

# The end of a member's name, what an archive is that has one, and what to do.
_ZIPS = (
    ("model.weights.h5", "a Keras model (.keras)", ELSEWHERE),
    ("[Content_Types].xml", "an office document", NO_MODEL),
    (".dist-info/METADATA", "a Python wheel", NO_MODEL),
    ("MAR-INF/MANIFEST.json", "a TorchServe archive (.mar)", ELSEWHERE),
    ("AndroidManifest.xml", "an Android app", NO_MODEL),
    ("META-INF/MANIFEST.MF", "a Java archive", NO_MODEL),
)


def recognize_zip(file: Reader) -> NonCheckpointFile | None:
    """Recognise a zip, by what it holds; one without its end was cut off."""
    if file.read(0, 4) not in {_LOCAL, _END}:
        return None
    end = _end(file)
    if end is None:
        return cut_zip(file)
    names = list(_members(file, *end))
    weights = _weights(names)
    hint = f"{UNPACK}: it contains {weights}" if weights else ""
    if names and all(name.endswith(".npy") for name in names):
        return NonCheckpointFile("arrays of NumPy or MLX (.npz)", NUMPY)
    for ending, what, remedy in _ZIPS:
        if any(name.endswith(ending) for name in names):
            return NonCheckpointFile(what, hint or remedy)
    if weights:
        return NonCheckpointFile("a zip file, not a checkpoint", hint)
    return NonCheckpointFile("a zip file without a checkpoint", FORMATS_HINT, _few(names))


def cut_zip(file: Reader) -> NonCheckpointFile:
    """Describe a truncated zip file, by its first member."""
    length = int.from_bytes(file.read(26, 2), "little")
    first = _name(file.read(30, length))
    if os.path.basename(first) == "data.pkl":
        what = "a truncated PyTorch checkpoint"
    elif first.endswith(".npy"):
        what = "a truncated file of NumPy arrays (.npz)"
    else:
        what = "a truncated zip file"
    return NonCheckpointFile(
        what, rest_of(file.path), f": its end is missing (the file has {file.size} bytes)"
    )


def _end(file: Reader) -> tuple[int, int] | None:
    """Return where a zip's directory starts, and its length; None if it has no end."""
    start = max(file.size - (1 << 16) - 22, 0)
    tail = file.read(start, file.size)
    at = tail.rfind(_END)
    if at < 0 or len(tail) < at + 22:
        return None
    size, offset = struct.unpack_from("<LL", tail, at + 12)
    if 0xFFFFFFFF in {size, offset} and at >= 20 and tail[at - 20 : at - 16] == _LOCATOR64:
        (place,) = struct.unpack_from("<Q", tail, at - 12)
        record = file.read(place, 56)
        if len(record) == 56 and record.startswith(_END64):
            size, offset = struct.unpack_from("<QQ", record, 40)
    if offset >= file.size or file.read(offset, 4) != _CENTRAL:
        offset = start + at - size  # something stands before the zip
    return max(offset, 0), size


def _members(file: Reader, offset: int, size: int) -> Iterator[str]:
    raw = file.read(offset, min(size, _MOST_DIRECTORY))
    at = 0
    for _ in range(_MOST_MEMBERS):
        if raw[at : at + 4] != _CENTRAL or len(raw) < at + 46:
            return
        name, extra, comment = struct.unpack_from("<3H", raw, at + 28)
        yield _name(raw[at + 46 : at + 46 + name])
        at += 46 + name + extra + comment


def recognize_tar(file: Reader) -> NonCheckpointFile | None:
    """Recognise a tar, by what it holds."""
    if file.read(257, 5) != b"ustar":
        return None
    names = list(_entries(file))
    weights = _weights(names)
    hint = f"{UNPACK}: it contains {weights}" if weights else FORMATS_HINT
    if any(name.endswith("model_config.yaml") for name in names):
        return NonCheckpointFile("a NeMo model (.nemo)", hint)
    return NonCheckpointFile("a tar archive", hint, "" if weights else _few(names))


def _entries(file: Reader) -> Iterator[str]:
    at = 0
    for _ in range(_MOST_MEMBERS):
        head = file.read(at, _BLOCK)
        if len(head) < _BLOCK or not any(head):
            return
        if head[124] & 0x80:
            size = int.from_bytes(head[125:136], "big")
        else:
            digits = head[124:136].strip(b" \0")
            if not digits.isdigit() or b"8" in digits or b"9" in digits:
                return
            size = int(digits, 8)
        if head[156:157] in b"0\0":
            yield _name(head[:100].split(b"\0")[0])
        at += _BLOCK + -(-size // _BLOCK) * _BLOCK


def _name(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _weights(names: Sequence[str]) -> str:
    """Return the first member that is called as a checkpoint is."""
    return next((show_line(name) for name in names if format_by_suffix(name)), "")


def _few(names: Sequence[str]) -> str:
    listed = ", ".join(show_line(name, 30) for name in names[:3])
    return f"; it contains {listed or 'nothing'}{', ...' if len(names) > 3 else ''}"

"""Identification of binary files without a fixed start: archives, zeros, protobuf, and others."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from weightctl.formats import format_by_suffix
from weightctl.formats.identify.kinds import (
    AGAIN,
    ELSEWHERE,
    FORMATS_HINT,
    NO_MODEL,
    NUMPY,
    UNPACK,
    NonCheckpointFile,
)
from weightctl.formats.identify.texts import show_line
from weightctl.formats.truncation import rest_of
from weightctl.text.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.storage.base import Reader

_MOST_MEMBERS = 1000
_MOST_DIRECTORY = 1 << 20
_LOCAL, _CENTRAL, _END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
_END64, _LOCATOR64 = b"PK\6\6", b"PK\6\7"
_BLOCK = 512

# The end of a member's name, what an archive with this member is, and what to do.
_ZIPS = (
    ("model.weights.h5", "a Keras model (.keras)", ELSEWHERE),
    ("[Content_Types].xml", "an office document", NO_MODEL),
    (".dist-info/METADATA", "a Python wheel", NO_MODEL),
    ("MAR-INF/MANIFEST.json", "a TorchServe archive (.mar)", ELSEWHERE),
    ("AndroidManifest.xml", "an Android app", NO_MODEL),
    ("META-INF/MANIFEST.MF", "a Java archive", NO_MODEL),
)
_STOPPED = f"{AGAIN}; an interrupted download leaves such files"
_LEAST_ZEROS = 32
_SAMPLE = 1 << 20
_SAMPLES = 64
_PAGE = 4096
_HEAD = 4096
# The last eight bytes of LevelDB's tables, in which TensorFlow stores the names of tensors.
_TABLE = bytes.fromhex("57fb808b247547db")
# The numbers of fields of ONNX's ModelProto: fields with one integer, and fields with a length.
_NUMBERS = {1, 5}
_LENGTHS = {2, 3, 4, 6, 7, 8, 14, 20, 25}
_PRODUCER = 2
_TEXTS = {_PRODUCER, 3, 4}
# Protobuf files that only the suffix distinguishes: suffix, type of the first field, and what it
# is.
_PROTOBUFS: tuple[tuple[str, type, str], ...] = (
    (".mlmodel", int, "a Core ML model"),
    (".pb", int, "a TensorFlow SavedModel"),
    (".pb", bytes, "a TensorFlow graph (.pb)"),
)


def recognize_zip(file: Reader) -> NonCheckpointFile | None:
    """Identify a zip file by its members; a zip file without an end is truncated."""
    if file.read(0, 4) not in {_LOCAL, _END}:
        return None
    end = _end(file)
    if end is None:
        return _cut_zip(file)
    names = list(_members(file, *end))
    weights = _weights(names)
    hint = f"{UNPACK}: it contains {weights}" if weights else ""
    if names and all(name.endswith(".npy") for name in names):
        return NonCheckpointFile("compressed arrays of NumPy or MLX (.npz)", NUMPY)
    for ending, what, remedy in _ZIPS:
        if any(name.endswith(ending) for name in names):
            return NonCheckpointFile(what, hint or remedy)
    if weights:
        return NonCheckpointFile("a zip file, not a checkpoint", hint)
    return NonCheckpointFile("a zip file without a checkpoint", FORMATS_HINT, _few(names))


def _cut_zip(file: Reader) -> NonCheckpointFile:
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
    """Return the offset and length of a zip file's directory; None if it has no end record."""
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
        offset = start + at - size  # bytes precede the zip file
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
    """Identify a tar file by its members."""
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
    """Return the first name that is that of a checkpoint; empty if there is none."""
    return next((show_line(name) for name in names if format_by_suffix(name)), "")


def _few(names: Sequence[str]) -> str:
    listed = ", ".join(show_line(name, 30) for name in names[:3])
    return f"; it contains {listed or 'nothing'}{', ...' if len(names) > 3 else ''}"


def zeros(file: Reader) -> NonCheckpointFile | None:
    """Identify a file that begins with zeros, or has only zeros; large files are sampled."""
    start = file.read(0, _SAMPLE)
    count = len(start) - len(start.lstrip(b"\0"))
    if count < min(_LEAST_ZEROS, file.size):
        return None
    if count < len(start):
        return NonCheckpointFile(f"damaged: its first {count} bytes are zeros", _STOPPED)
    if count == file.size:
        return NonCheckpointFile("nothing but zeros", _STOPPED, f", {count} bytes")
    rest = file.size - _SAMPLE
    ends = (_SAMPLE + rest * number // _SAMPLES for number in range(1, _SAMPLES + 1))
    page = bytearray(_PAGE)
    for end in ends:
        file.read_into(end - _PAGE, memoryview(page))
        if any(page):
            break
    else:
        more = f", according to {_SAMPLES} samples of its {format_size(file.size)}"
        return NonCheckpointFile("nothing but zeros", _STOPPED, more)
    return NonCheckpointFile(f"damaged: its first {count} bytes are zeros", _STOPPED)


def protobuf(file: Reader) -> NonCheckpointFile | None:
    """Identify files that begin like ONNX, Core ML or a TensorFlow graph."""
    head = file.read(0, _HEAD)
    base = os.path.basename(file.path).lower()
    fields = list(_fields(head, file.size))
    if not fields:
        return None
    if _is_onnx(fields):
        producer = next((show_line(text.decode()) for number, text in fields if number == _PRODUCER
                         and isinstance(text, bytes)), "")  # fmt: skip
        return NonCheckpointFile(
            "an ONNX model", ELSEWHERE, producer and f", written by {producer}"
        )
    for suffix, first, what in _PROTOBUFS:
        if base.endswith(suffix) and fields[0][0] == 1 and isinstance(fields[0][1], first):
            return NonCheckpointFile(what, ELSEWHERE)
    return None


def _is_onnx(fields: Sequence[tuple[int, int | bytes]]) -> bool:
    """Whether these are fields of a ModelProto: the version first, then known fields."""
    version = fields[0][1]
    return (
        len(fields) > 1
        and fields[0][0] == 1
        and isinstance(version, int)
        and 0 < version < 100
        and all(number in (_NUMBERS if isinstance(value, int) else _LENGTHS)
                for number, value in fields)
        and all(_is_line(value) for number, value in fields if number in _TEXTS)
    )  # fmt: skip


def _is_line(value: int | bytes) -> bool:
    try:
        return isinstance(value, bytes) and len(value) < 1000 and value.decode().isprintable()
    except UnicodeDecodeError:
        return False


def _fields(raw: bytes, size: int) -> Iterator[tuple[int, int | bytes]]:
    """Yield the protobuf fields at the start of a file, up to the first that `raw` truncates.

    `size` is that of the file. Invalid fields yield (0, 0).
    """
    at = 0
    while at < len(raw):
        number, kind = raw[at] >> 3, raw[at] & 7
        value, at = _varint(raw, at + 1)
        if kind == 0:
            yield number, value
        elif kind == 2 and at + value <= size:
            yield number, raw[at : at + value]
            at += value
        else:
            yield 0, 0  # no field has this number
            return


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Return a protobuf integer and its end; an unterminated integer is too large for any file."""
    value = 0
    for shift in range(0, 63, 7):
        if at >= len(raw):
            break
        value |= (raw[at] & 0x7F) << shift
        at += 1
        if raw[at - 1] < 0x80:
            return value, at
    return 1 << 62, at


def translator(file: Reader) -> NonCheckpointFile | None:
    """Identify CTranslate2's model.bin by its start: a version and the name of a specification."""
    head = file.read(0, 128)
    version, length = int.from_bytes(head[:4], "little"), int.from_bytes(head[4:6], "little")
    name = head[6 : 6 + length].removesuffix(b"\0")
    if not 2 <= version <= 20 or not 5 <= len(name) < 64 or not name.endswith(b"Spec"):
        return None
    what = f" ({show_line(name.decode('ascii', 'replace'))})"
    return NonCheckpointFile(
        "a CTranslate2 model", "use the model that it was converted from", what
    )


def engine(file: Reader) -> NonCheckpointFile | None:
    """Identify a TensorRT engine that follows Ultralytics' JSON."""
    length = int.from_bytes(file.read(0, 4), "little")
    if length > _SAMPLE or file.read(4 + length, 4) != b"ftrt":
        return None
    return NonCheckpointFile("a TensorRT engine", "use the model that it was built from")


def table(file: Reader) -> NonCheckpointFile | None:
    """Identify the index of a TensorFlow checkpoint by its last bytes."""
    if file.read_end(8) != _TABLE:
        return None
    return NonCheckpointFile("the index of a TensorFlow checkpoint", ELSEWHERE)


def openvino(file: Reader) -> NonCheckpointFile | None:
    """Identify OpenVINO's weights, which have no header, by the graph in the file beside them."""
    stem, suffix = os.path.splitext(file.path)
    if suffix.lower() != ".bin":
        return None
    try:
        with open(stem + ".xml", "rb") as graph:
            start = graph.read(1024)
    except (OSError, ValueError):
        return None
    return (
        NonCheckpointFile("the weights of an OpenVINO model", ELSEWHERE)
        if b"<net " in start
        else None
    )

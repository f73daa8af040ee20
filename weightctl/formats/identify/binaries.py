"""Binary files that a fixed start does not give away: zeros, protobuf, and a few more."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.formats.identify.kinds import AGAIN, ELSEWHERE, NonCheckpointFile
from weightctl.formats.identify.texts import show_line
from weightctl.text.sizes import format_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.storage.base import Reader

__all__ = ["engine", "openvino", "protobuf", "table", "translator", "zeros"]

_STOPPED = f"{AGAIN}; an interrupted download leaves such files"
_LEAST_ZEROS = 32
_SAMPLE = 1 << 20
_SAMPLES = 64
_PAGE = 4096
_HEAD = 4096
# The last eight bytes of LevelDB's tables, which TensorFlow keeps its checkpoints' names in.
_TABLE = bytes.fromhex("57fb808b247547db")
# The fields of ONNX's ModelProto by number: those that hold one number, and those with a length.
_NUMBERS = {1, 5}
_LENGTHS = {2, 3, 4, 6, 7, 8, 14, 20, 25}
_PRODUCER = 2
_TEXTS = {_PRODUCER, 3, 4}
# Protobuf that only its name tells apart: the suffix, what the first field is, and what that is.
_PROTOBUFS: tuple[tuple[str, type, str], ...] = (
    (".mlmodel", int, "a Core ML model"),
    (".pb", int, "a TensorFlow SavedModel"),
    (".pb", bytes, "a TensorFlow graph (.pb)"),
)


def zeros(file: Reader) -> NonCheckpointFile | None:
    """Recognise a file of zeros, or one that begins with them; a large one by samples."""
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
    """Recognise what begins as ONNX does, as Core ML or as a TensorFlow graph."""
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
    """Whether these are fields of a ModelProto: a version, who wrote it, then the graph."""
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
    """Yield the protobuf fields that a file begins with, up to the first that `raw` cuts off."""
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
    """Return a protobuf number and where it ends; one that does not end is beyond any file."""
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
    """Recognise CTranslate2's model.bin: a version, then the name of a specification."""
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
    """Recognise a TensorRT engine after the JSON that Ultralytics puts before it."""
    length = int.from_bytes(file.read(0, 4), "little")
    if length > _SAMPLE or file.read(4 + length, 4) != b"ftrt":
        return None
    return NonCheckpointFile("a TensorRT engine", "use the model that it was built from")


def table(file: Reader) -> NonCheckpointFile | None:
    """Recognise the index of a TensorFlow checkpoint by its end."""
    if file.read_end(8) != _TABLE:
        return None
    return NonCheckpointFile("the index of a TensorFlow checkpoint", ELSEWHERE)


def openvino(file: Reader) -> NonCheckpointFile | None:
    """Recognise OpenVINO's weights, which are bare, by the graph beside them."""
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

"""Reads and decodes the rows of a tensor, a few at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.system.threads import Memory
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

__all__ = [
    "Numbers",
    "RowRun",
    "Stretch",
    "can_decode",
    "cut_stretches",
    "decode_rows",
    "is_numbers",
    "read_runs",
    "row_length",
]

# Floating-point values of any width.
Numbers = NDArray[Any]

# The number of values to read at once: they fit in the cache, and the interpreter costs little.
_MOST = 1 << 19
# The number of elements in a thread's unit of work.
_STRETCH = 1 << 24
# A shorter row may be zero by chance, or belong to a filter instead of a neuron.
_LEAST_ROW = 32
# The encoding of the real and the imaginary part of each complex encoding.
_HALVES = {"C32": "F16", "C64": "F32", "C128": "F64"}


class Stretch(NamedTuple):
    """A range of elements [start, stop) of a tensor; it consists of whole rows and blocks."""

    name: str
    start: int
    stop: int


class RowRun(NamedTuple):
    """Consecutive rows of a tensor: the first element's index, and bytes [rows, bytes per row].

    A tensor whose rows are not examined has a single row here.
    """

    start: int
    raw: U8


def is_numbers(encoding: Encoding) -> bool:
    """Whether an encoding stores real or complex values, plain or in blocks."""
    return encoding.is_known and (encoding.is_real or encoding.name in _HALVES)


def row_length(info: TensorInfo) -> int:
    """Return the number of elements in a row of a matrix or a stack of matrices; else 0.

    It is also 0 for convolution kernels (a short last dimension, or a dimension of 1), for rows
    that are too long to read at once, and for rows that end inside a block.
    """
    is_matrix = len(info.shape) in {2, 3} and min(info.shape) > 1
    is_whole = info.row % info.encoding.block == 0
    return info.row if is_matrix and is_whole and _LEAST_ROW <= info.row <= _MOST else 0


def cut_stretches(info: TensorInfo) -> Iterator[Stretch]:
    """Yield the stretches of a tensor; each is a unit of work for a thread."""
    unit = row_length(info) or info.encoding.block
    step = max(_STRETCH // unit, 1) * unit
    for start in range(0, info.size, step):
        yield Stretch(info.name, start, min(start + step, info.size))


def read_runs(tensor: ReadableTensor, start: int, stop: int, memory: Memory) -> Iterator[RowRun]:
    """Yield the rows of a range of elements; each `RowRun` is valid until the next is read.

    Raises `FormatError` if a file cannot be read.
    """
    info = tensor.info
    encoding = info.encoding
    row = row_length(info)
    unit = row or encoding.block
    step = max(_MOST // unit, 1) * unit
    for first in range(start, stop, step):
        count = min(step, stop - first)
        raw = memory.room("raw", count // encoding.block * encoding.size)
        tensor.read_into(first // encoding.block * encoding.size, raw)
        yield RowRun(first, np.frombuffer(raw, np.uint8).reshape(count // row if row else 1, -1))


def can_decode(encoding: Encoding) -> bool:
    """Whether weightctl can decode the values of an encoding, and quickly."""
    return encoding.quantization is None or encoding.codec != ""


def decode_rows(raw: U8, encoding: Encoding, memory: Memory) -> Numbers:
    """Decode rows [rows, bytes] into values [rows, columns], valid until the next call.

    A complex value becomes two columns.
    """
    plain = ENCODINGS[_HALVES.get(encoding.name, encoding.name)]
    if plain.name in {"F32", "F64"}:
        return raw.view(np.dtype(f"<f{plain.size}"))
    columns = raw.shape[1] // plain.size * plain.block
    made = np.frombuffer(memory.room("made", len(raw) * columns * 4), np.uint8)
    made = made.reshape(len(raw), -1)
    # Overflow and NaN of damaged scales are what the check looks for.
    with np.errstate(all="ignore"):
        transcode(raw, plain, ENCODINGS["F32"], out=made)
    return made.view(np.float32)

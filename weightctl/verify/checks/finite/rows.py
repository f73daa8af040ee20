"""Runs of rows of values that a tensor's bytes hold, decoded a few at a time."""

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

# Numbers of any width.
Numbers = NDArray[Any]

# So many numbers stay in a processor's cache, and are enough for the interpreter to cost little.
_MOST = 1 << 19
# What one thread does before another may take over.
_STRETCH = 1 << 24
# Fewer numbers are zeros by chance, or are of a filter rather than of a neuron.
_LEAST_ROW = 32
# Which floats of the table are one complex number.
_HALVES = {"C32": "F16", "C64": "F32", "C128": "F64"}


class Stretch(NamedTuple):
    """Elements of a tensor from `start` to behind the last, `stop`; whole rows and blocks."""

    name: str
    start: int
    stop: int


class RowRun(NamedTuple):
    """Some rows of a tensor: the element they begin with, and their bytes, shape (rows, bytes).

    They are one row where rows mean nothing.
    """

    start: int
    raw: U8


def is_numbers(encoding: Encoding) -> bool:
    """Whether an encoding is of numbers with fractions, plain ones or blocks."""
    return encoding.is_known and (encoding.is_real or encoding.name in _HALVES)


def row_length(info: TensorInfo) -> int:
    """Return how many elements are in a row of a matrix, or a stack of them; 0 where it is none.

    Kernels of convolutions are none: their last dimension is short, or another is 1. Nor are rows
    that are too long for a run, or do not end where blocks do.
    """
    is_matrix = len(info.shape) in {2, 3} and min(info.shape) > 1
    is_whole = info.row % info.encoding.block == 0
    return info.row if is_matrix and is_whole and _LEAST_ROW <= info.row <= _MOST else 0


def cut_stretches(info: TensorInfo) -> Iterator[Stretch]:
    """Cut a tensor into what threads do side by side."""
    unit = row_length(info) or info.encoding.block
    step = max(_STRETCH // unit, 1) * unit
    for start in range(0, info.size, step):
        yield Stretch(info.name, start, min(start + step, info.size))


def read_runs(tensor: ReadableTensor, start: int, stop: int, memory: Memory) -> Iterator[RowRun]:
    """Yield the runs of a stretch of a tensor; each is only good until the next.

    Raises `FormatError` where a file cannot be read.
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
    """Whether numbers of an encoding can be had, and quickly."""
    return encoding.quantization is None or encoding.codec != ""


def decode_rows(raw: U8, encoding: Encoding, memory: Memory) -> Numbers:
    """Return the numbers of rows, shape (rows, bytes): shape (rows, columns), good until the next.

    Of complex ones both halves are.
    """
    plain = ENCODINGS[_HALVES.get(encoding.name, encoding.name)]
    if plain.name in {"F32", "F64"}:
        return raw.view(np.dtype(f"<f{plain.size}"))
    columns = raw.shape[1] // plain.size * plain.block
    made = np.frombuffer(memory.room("made", len(raw) * columns * 4), np.uint8)
    made = made.reshape(len(raw), -1)
    # What damaged scales give is what is looked for.
    with np.errstate(all="ignore"):
        transcode(raw, plain, ENCODINGS["F32"], out=made)
    return made.view(np.float32)

"""Counts the values of tensors in parallel, in one pass over their bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.kernels import active
from weightctl.system.threads import Memory, map_in_threads
from weightctl.values.counts import WORDS, ValueCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Event

    from numpy.typing import NDArray

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor

# The bytes in a thread's unit of work, the bytes that it reads at once, and the values that it
# decodes at once.
_PIECE, _READ, _TILE = 1 << 25, 1 << 20, 1 << 16
_WORDS = ("BF16", "F16")


class _ByteRange(NamedTuple):
    tensor: ReadableTensor
    start: int
    stop: int


def can_measure(encoding: Encoding) -> bool:
    """Whether an encoding stores real values."""
    dtype = encoding.dtype
    return encoding.quantization is not None or (dtype is not None and dtype.is_float)


def measure_counts(
    tensors: Sequence[ReadableTensor],
    progress: Callable[[int], object] | None = None,
    *,
    threads: int | None = None,
) -> Iterator[ValueCounts]:
    """Yield the counts of each tensor's values, in order; `can_measure` is true for all encodings.

    Values of 64 bits are counted as float32. `progress` gets the number of bytes that were counted.
    Raises `FormatError` if a file cannot be read, and `ConversionError` if the tensors of a
    quantized weight do not fit together.
    """
    memory = Memory()

    def measure(piece: _ByteRange, ended: Event) -> tuple[ValueCounts, int]:
        made = _empty(piece.tensor.info.encoding)
        if not ended.is_set():
            with np.errstate(all="ignore"):  # NaN and infinity are counted
                _count(piece, made, memory)
        return made, piece.stop - piece.start

    pieces = (piece for tensor in tensors for piece in _cut(tensor))
    with map_in_threads(measure, pieces, threads=threads) as made:
        for tensor in tensors:
            total = _empty(tensor.info.encoding)
            for _ in _cut(tensor):
                counts, nbytes = next(made)
                total.add(counts)
                if progress is not None:
                    progress(nbytes)
            yield total


def _empty(encoding: Encoding) -> ValueCounts:
    is_cut = encoding.name not in _WORDS
    return ValueCounts("BF16" if is_cut else encoding.name, is_cut=is_cut)


def _cut(tensor: ReadableTensor) -> Iterator[_ByteRange]:
    for start, stop in split_range(0, tensor.info.nbytes, _PIECE, tensor.info.encoding.size):
        yield _ByteRange(tensor, start, stop)


def split_range(start: int, stop: int, step: int, unit: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of about `step`, which begin at multiples of `unit`."""
    step = max(step // unit, 1) * unit
    for first in range(start, stop, step):
        yield first, min(first + step, stop)


def _count(piece: _ByteRange, made: ValueCounts, memory: Memory) -> None:
    encoding = piece.tensor.info.encoding
    counts = np.zeros(WORDS, np.uint32)
    for start, stop in split_range(piece.start, piece.stop, _READ, encoding.size):
        room = memory.room("raw", stop - start)
        piece.tensor.read_into(start, room)
        raw = np.frombuffer(room, np.uint8)
        if not made.is_cut:
            _count_words(raw, 1, counts)
            continue
        tile = _TILE // encoding.block * encoding.size
        for first, last in split_range(0, raw.size, tile, encoding.size):
            _count_floats(decode_floats(raw[first:last], encoding), made, counts)
    made.words += counts


def decode_floats(raw: U8, encoding: Encoding) -> NDArray[np.float32]:
    """Return the values of whole blocks as float32."""
    if encoding.name == "F32":
        return raw.view(np.float32)
    return (
        transcode(raw.reshape(1, -1), encoding, ENCODINGS["F32"]).raw.view(np.float32).reshape(-1)
    )


def _count_floats(
    values: NDArray[np.float32], made: ValueCounts, counts: NDArray[np.uint32]
) -> None:
    _count_words(values.view(np.uint8), 2, counts)
    made.zeros += values.size - int(np.count_nonzero(values))
    least, most = values.min(), values.max()
    if not (np.isfinite(least) and np.isfinite(most)):
        made.nans += int(np.count_nonzero(np.isnan(values)))
        values = values[np.isfinite(values)]
        if not values.size:
            return
        least, most = values.min(), values.max()
    made.least, made.most = min(made.least, float(least)), max(made.most, float(most))
    exact = values.astype(np.float64)
    made.total += float(exact.sum())
    made.squares += float(exact @ exact)


def _count_words(raw: U8, step: int, counts: NDArray[np.uint32]) -> None:
    """Add the counts of all words of 16 bits, or with a step of 2, of the upper words."""
    if active() is None:
        words = raw.view("<u2")[step - 1 :: step]
        counts += np.bincount(words, minlength=WORDS).astype(np.uint32)
        return
    from weightctl.kernels import _native

    _native.count_words(raw, step, counts)

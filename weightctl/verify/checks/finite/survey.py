"""Surveys the values of tensors in parallel, a few rows at a time, to find unusual tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import WeightctlError
from weightctl.system.threads import Memory, map_in_threads
from weightctl.verify.checks.finite.scales import Extremes, clear_signs, read_codes
from weightctl.weights.derived import tensor_of
from weightctl.weights.tree import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from threading import Event

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.verify.request import Request, Workers
    from weightctl.weights.data import Source
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo


# Floating-point values of any width.
Numbers = NDArray[Any]

# The number of values to read at once: few enough for the cache, and enough to make the cost of the
# interpreter small.
_MOST = 1 << 19
# The number of elements in a thread's unit of work.
_STRETCH = 1 << 24
# Shorter rows are not examined: they may be zero by chance, or be rows of a filter.
_LEAST_ROW = 32
# The encoding of the real and the imaginary part of each complex encoding.
_HALVES = {"C32": "F16", "C64": "F32", "C128": "F64"}


class Stretch(NamedTuple):
    """A range of elements, [start, stop), of a tensor, which consists of whole rows and blocks."""

    name: str
    start: int
    stop: int


class RowRun(NamedTuple):
    """Consecutive rows of a tensor.

    `start` is the index of the first element, and `raw` the bytes, [rows, bytes per row]. If the
    rows of a tensor are not examined, all elements are in one row.
    """

    start: int
    raw: U8


def is_numbers(encoding: Encoding) -> bool:
    """Whether an encoding stores real or complex values, plain or in blocks."""
    return encoding.is_known and (encoding.is_real or encoding.name in _HALVES)


def _row_length(info: TensorInfo) -> int:
    """Return the number of elements in a row of a matrix or a stack of matrices; otherwise 0.

    It is also 0 if rows are not examined: in convolution kernels (a short last dimension, or a
    dimension of 1), if rows are too long to read at once, and if rows end inside a block.
    """
    is_matrix = len(info.shape) in {2, 3} and min(info.shape) > 1
    is_whole = info.row % info.encoding.block == 0
    return info.row if is_matrix and is_whole and _LEAST_ROW <= info.row <= _MOST else 0


def _cut_stretches(info: TensorInfo) -> Iterator[Stretch]:
    """Yield the stretches of a tensor; a thread surveys one stretch at a time."""
    unit = _row_length(info) or info.encoding.block
    step = max(_STRETCH // unit, 1) * unit
    for start in range(0, info.size, step):
        yield Stretch(info.name, start, min(start + step, info.size))


def read_runs(tensor: ReadableTensor, start: int, stop: int, memory: Memory) -> Iterator[RowRun]:
    """Yield the rows of a range of elements, a few at a time.

    Each `RowRun` is valid until the next is read. Raises `FormatError` if a file cannot be read.
    """
    info = tensor.info
    encoding = info.encoding
    row = _row_length(info)
    unit = row or encoding.block
    step = max(_MOST // unit, 1) * unit
    for first in range(start, stop, step):
        count = min(step, stop - first)
        raw = memory.room("raw", count // encoding.block * encoding.size)
        tensor.read_into(first // encoding.block * encoding.size, raw)
        yield RowRun(first, np.frombuffer(raw, np.uint8).reshape(count // row if row else 1, -1))


def can_decode(encoding: Encoding) -> bool:
    return encoding.quantization is None or encoding.codec != ""


def decode_rows(raw: U8, encoding: Encoding, memory: Memory) -> Numbers:
    """Decode rows, [rows, bytes], into values, [rows, columns].

    A complex value becomes two columns. The result is valid until the next call.
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


# The number of ranges of zero rows that are kept. Rows of further ranges are only counted.
_MOST_RUNS = 1000
# For longer vectors, BLAS would start threads of its own.
_COLUMNS = 8192


@dataclass(slots=True)
class Survey:
    """A survey of consecutive rows of a tensor.

    `row` is the number of elements in a row, 0 if rows are not examined, and `numbers` the number
    of elements so far. `rows` is the number of rows examined, and `zeros` the number of zero rows;
    `zero_runs` are their ranges [start, stop). `constant` is the value that all elements have, or
    None if they differ. `extremes` has an entry for each scale field of the blocks. `greatest` is
    the largest finite magnitude in rows with zeros only, non-finite values or an overflow.
    """

    row: int
    extremes: tuple[Extremes, ...]
    numbers: int = 0
    rows: int = 0
    zeros: int = 0
    zero_runs: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    constant: float | None = None
    has_nonfinite: bool = False
    greatest: float = 0.0

    @classmethod
    def of(cls, info: TensorInfo) -> Survey:
        return cls(_row_length(info), tuple(map(Extremes, info.encoding.scales)))

    def join(self, other: Survey) -> None:
        self.add_constant(other.constant)
        self.numbers += other.numbers
        self.rows += other.rows
        self.zeros += other.zeros
        self.has_nonfinite |= other.has_nonfinite
        self.greatest = max(self.greatest, other.greatest)
        for start, stop in other.zero_runs:
            self._add_run(start, stop)
        for own, others in zip(self.extremes, other.extremes, strict=True):
            own.join(others)

    def add_constant(self, constant: float | None) -> None:
        """Add elements that are all equal to `constant`; None means that they differ."""
        if not self.numbers:
            self.constant = constant
        elif constant != self.constant:
            self.constant = None

    def _add_run(self, start: int, stop: int) -> None:
        if self.zero_runs and self.zero_runs[-1][1] == start:
            self.zero_runs[-1] = (self.zero_runs[-1][0], stop)
        elif len(self.zero_runs) < _MOST_RUNS:
            self.zero_runs.append((start, stop))

    def add(self, first: int, zeros: NDArray[np.bool_]) -> None:
        """Add consecutive rows, the first with index `first`; `zeros` is true for zero rows."""
        self.rows += zeros.size
        found = np.flatnonzero(zeros)
        if not found.size:
            return
        self.zeros += int(found.size)
        edges = np.flatnonzero(np.diff(found) > 1)
        starts = np.append(found[:1], found[edges + 1])[:_MOST_RUNS]
        lasts = np.append(found[edges], found[-1:])[:_MOST_RUNS]
        for start, last in zip(starts.tolist(), lasts.tolist(), strict=True):
            self._add_run(first + start, first + last + 1)


def _survey_runs(info: TensorInfo, runs: Iterable[RowRun], memory: Memory) -> Survey:
    found = Survey.of(info)
    encoding = info.encoding
    fields = encoding.scales
    for run in runs:
        blocks = run.raw.reshape(-1)
        codes = [read_codes(each, blocks, encoding.size) for each in fields]
        for extremes, own in zip(found.extremes, codes, strict=True):
            extremes.add(own)
        if not fields:
            _look_at_values(found, run.start, decode_rows(run.raw, encoding, memory))
        elif can_decode(encoding):
            _look_at_blocks(found, run, encoding, memory)
        elif found.row:
            # If all scales of a row are zero, all its values are zero.
            sizes = [clear_signs(each, own) for each, own in zip(fields, codes, strict=True)]
            used = np.concatenate(sizes, axis=1).reshape(len(run.raw), -1)
            found.add(run.start // found.row, ~np.logical_or.reduce(used, axis=1))
        found.numbers += blocks.size // encoding.size * encoding.block
    found.has_nonfinite |= not all(each.are_finite for each in found.extremes)
    return found


def _look_at_values(found: Survey, start: int, numbers: Numbers) -> None:
    first = numbers[0, 0]
    is_constant = numbers[-1, -1] == first and bool((numbers == first).all())
    found.add_constant(float(first) if is_constant else None)
    squares = _sum_squares(numbers)
    # A sum that is not positive and finite means zeros, non-finite values, or an overflow.
    zeros: NDArray[np.bool_] = np.zeros(len(numbers), np.bool_)
    if not (squares.min() > 0 and squares.max() < np.inf):
        odd = ~((squares > 0) & (squares < np.inf))
        unusual = numbers[odd]
        finite = np.isfinite(unusual)
        found.has_nonfinite |= not finite.all()
        greatest = np.abs(unusual).max(initial=0, where=finite)
        found.greatest = max(found.greatest, float(greatest))
        zeros[odd] = ~unusual.any(axis=1)
    if found.row:
        found.add(start // found.row, zeros)


def _look_at_blocks(found: Survey, run: RowRun, encoding: Encoding, memory: Memory) -> None:
    """Survey rows of blocks, whose values are finite if their scales are finite.

    The first block of each row is decoded. All rows are decoded if these blocks have only one
    value; otherwise, only rows whose first block is zero are.
    """
    heads = decode_rows(np.ascontiguousarray(run.raw[:, : encoding.size]), encoding, memory)
    first = heads[0, 0]
    constant = None
    if (heads == first).all() and (decode_rows(run.raw, encoding, memory) == first).all():
        constant = float(first)
    found.add_constant(constant)
    if found.row:
        zeros: NDArray[np.bool_] = ~np.logical_or.reduce(heads, axis=1)
        if zeros.any():
            rows = np.flatnonzero(zeros)
            zeros[rows] = ~decode_rows(run.raw[rows], encoding, memory).any(axis=1)
        found.add(run.start // found.row, zeros)


def _sum_squares(numbers: Numbers) -> Numbers:
    with np.errstate(all="ignore"):
        if numbers.shape[1] <= _COLUMNS:
            return np.asarray(np.vecdot(numbers, numbers))
        parts = (
            numbers[:, left : left + _COLUMNS] for left in range(0, numbers.shape[1], _COLUMNS)
        )
        return np.asarray(sum(np.vecdot(part, part) for part in parts))


def survey_tensors(
    source: Source,
    infos: Sequence[TensorInfo],
    progress: Callable[[float], object],
    *,
    threads: int | None = None,
    workers: Workers | None = None,
) -> dict[str, Survey | str]:
    """Return the survey of each tensor by name, or the reason why it cannot be read.

    `progress` is called with the fraction that is done, by one thread at a time. Each thread uses a
    few megabytes of memory. If `workers` is not None, workers survey the tensors; `source` must
    then be that of the request's checkpoint.
    """
    # Tensors are read in file order, which is fastest on disks.
    extents = source.header.extents
    in_order = sorted(infos, key=lambda info: extents[info.name][:2])
    stretches = [stretch for info in in_order for stretch in _cut_stretches(info)]
    if workers is None:
        parts = _survey_stretches(source, stretches, progress, threads=threads)
    else:
        sizes = [_count_bytes(source.header.tensors[each.name], each) for each in stretches]
        parts = workers.map(_survey_units, stretches, sizes, progress)
    found: dict[str, Survey | str] = {}
    for stretch, part in zip(stretches, parts, strict=True):
        found[stretch.name] = _join(found.get(stretch.name), part)
    return found


def _count_bytes(info: TensorInfo, stretch: Stretch) -> int:
    return info.nbytes * (stretch.stop - stretch.start) // info.size


def _survey_units(request: Request, units: Sequence[Stretch]) -> list[Survey | str]:
    source = source_of(request.subject.weights)
    return list(_survey_stretches(source, units, lambda _: None, threads=1))


def _survey_stretches(
    source: Source,
    stretches: Sequence[Stretch],
    progress: Callable[[float], object],
    *,
    threads: int | None = None,
) -> Iterator[Survey | str]:
    """Yield the survey of each stretch, or the reason why it cannot be read.

    `progress` is called with the fraction that is done, by one thread at a time.
    """
    tensors = source.header.tensors
    total = sum(_count_bytes(tensors[each.name], each) for each in stretches) or 1
    one_at_a_time, memory = Lock(), Memory()
    done = 0

    def report_progress(runs: Iterator[RowRun], ended: Event) -> Iterator[RowRun]:
        nonlocal done
        for run in runs:
            yield run
            with one_at_a_time:
                done += run.raw.size
                progress(min(done / total, 1.0))
            if ended.is_set():
                return

    def survey_stretch(stretch: Stretch, ended: Event) -> Survey | str:
        tensor = tensor_of(source, stretch.name)
        try:
            runs = read_runs(tensor, stretch.start, stretch.stop, memory)
            with np.errstate(all="ignore"):  # each thread has its own
                return _survey_runs(tensor.info, report_progress(runs, ended), memory)
        except WeightctlError as error:
            return str(error)

    with map_in_threads(survey_stretch, stretches, threads=threads) as parts:
        yield from parts


def _join(before: Survey | str | None, part: Survey | str) -> Survey | str:
    if before is None or isinstance(part, str):
        return part
    if not isinstance(before, str):
        before.join(part)
    return before

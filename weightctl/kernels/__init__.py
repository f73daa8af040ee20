"""Compiled codecs and roundings in C, for the best instruction set of this processor.

They are optional: if no C compiler was found at install, NumPy is used. Set the environment
variable `WEIGHTCTL_KERNELS` to `off` to disable them, or to a lesser instruction set (`x86-64-v2`)
to select that.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from weightctl.kernels.grids import DISTANCES, load_levels

if TYPE_CHECKING:
    from weightctl.kernels._native import Memory

__all__ = [
    "BlockRounder",
    "CodeExaminer",
    "ExaminedCodes",
    "Kernel",
    "KernelResult",
    "PairPacker",
    "RowMultiplier",
    "RunComparer",
    "Transcoder",
    "active",
    "block_rounder",
    "code_examiner",
    "kernel",
    "levels",
    "multiplies_bf16",
    "multiply_bf16",
    "pair_packer",
    "row_multiplier",
    "run_comparer",
    "transcoder",
    "unknown_level",
]

_OFF = "off"
# The instruction set of processors that may multiply pairs of bfloat16.
_BEST = "x86-64-v4"


class Kernel(NamedTuple):
    """The kernel of one encoding at one level, which is an index into `levels`."""

    level: int
    name: str
    encodes: bool
    encodes_weighted: bool
    decodes: bool

    def encode(self, rows: Memory, columns: int, importance: Memory | None, out: Memory) -> None:
        """Fill `out` with the blocks of rows of `columns` float32 values; all are contiguous."""
        from weightctl.kernels import _native

        _native.encode(self.level, self.name, rows, columns, importance, out)

    def decode(self, blocks: Memory, out: Memory) -> None:
        """Fill `out` with the float32 values of blocks; both are contiguous."""
        from weightctl.kernels import _native

        _native.decode(self.level, self.name, blocks, out)


class KernelResult(NamedTuple):
    """The loss of values that were transcoded, with the fields of `codecs.Loss`.

    `refused` is the index of a value (`number`) that blocks cannot hold, -1 if there is none: the
    first one that is not finite, or the largest one that overflowed a scale.
    """

    refused: int
    number: float
    overflows: int
    underflows: int
    nonfinite: int
    squares: float
    squared_error: float


class Transcoder(NamedTuple):
    """The kernel that converts rows of one encoding to another at one level, in one pass."""

    level: int
    source: str
    target: str

    def transcode(
        self,
        raw: Memory,
        columns: int,
        importance: Memory | None,
        out: Memory,
        *,
        counts: bool,
        measures: bool,
        zero_nonfinite: bool,
    ) -> KernelResult:
        """Fill `out` with rows of `columns` values; all are contiguous and do not overlap.

        `counts` counts the overflows of plain values; `measures` measures the rest of the loss. If
        a value is refused, `out` and the other fields of the result are undefined.
        """
        from weightctl.kernels import _native

        names = self.level, self.source, self.target
        how = counts, measures, zero_nonfinite
        return KernelResult(*_native.transcode(*names, raw, columns, importance, out, *how))


class BlockRounder(NamedTuple):
    """The kernels that round rows of one encoding, at one level, to the codes of schemes.

    Rows have `columns` values, and each `size` neighbors of a row are a block; the last of a row
    can be shorter. `size` can also be the number of all values. Buffers are contiguous.
    """

    level: int
    source: str

    def reduce(
        self, raw: Memory, columns: int, size: int, low: Memory | None, high: Memory
    ) -> None:
        """Fill float32 tables with the extremes of blocks; without `low`, with magnitudes."""
        from weightctl.kernels import _native

        _native.reduce_blocks(self.level, self.source, raw, columns, size, low, high)

    def round(
        self,
        raw: Memory,
        columns: int,
        size: int,
        *,
        kind: str,
        scales: Memory,
        offsets: Memory | None,
        most: float,
        out: Memory,
    ) -> tuple[float, float]:
        """Fill `out` with codes; return the sums of squares of the values and of their errors.

        `kind` is "E4M3", "E2M1" or "INT8", or "zeros" or "biases" for integers up to `most`, which
        need `offsets`, or "table" for places in a table of 16 values, which is in `offsets` then.
        Scales and offsets are float32 tables. The sums are not finite if a value is
        not, or is not held.
        """
        from weightctl.kernels import _native

        return _native.round_blocks(
            self.level, self.source, raw, columns, size, kind, scales, offsets, most, out
        )


class PairPacker(NamedTuple):
    """The kernels that pack 4-bit codes at one level, and that arrange the words of codes."""

    level: int

    def pack(self, codes: Memory, *, high_first: bool, out: Memory) -> None:
        """Fill `out` with a byte for each pair of codes; both are contiguous."""
        from weightctl.kernels import _native

        _native.pack_pairs(self.level, codes, high_first, out)

    def pack_row_groups(self, codes: Memory, columns: int, order: bytes, out: Memory) -> None:
        """Fill `out`, uint32[columns, groups], with the codes of each 8 rows of a column.

        `order` has the row of each code in a word, lowest bits first.
        """
        from weightctl.kernels import _native

        _native.pack_row_groups(self.level, codes, columns, order, out)

    def transpose_words(self, words: Memory, columns: int, out: Memory) -> None:
        """Fill `out` with a table of words of 32 bits, rows and columns exchanged."""
        from weightctl.kernels import _native

        _native.transpose_words(self.level, words, columns, out)


class RowMultiplier(NamedTuple):
    """The kernel that multiplies vectors with rows of an encoding at one level."""

    level: int
    name: str

    def multiply(
        self,
        blocks: Memory,
        columns: int,
        vectors: Memory,
        first: int,
        out: Memory,
        *,
        threads: int = 1,
    ) -> None:
        """Set the products of rows of blocks with vectors, float32[vectors, columns].

        `out` is float32[vectors, outputs]; the product of row r is in column `first` + r. All are
        contiguous. The sums are float32, in an order of their own. Several threads are those of
        OpenMP if the process has such threads.
        """
        from weightctl.kernels import _native

        _native.multiply_rows(self.level, self.name, blocks, columns, vectors, first, out, threads)


class RunComparer(NamedTuple):
    """The kernel that compares two tables of values at one level, in runs of 32 values."""

    level: int

    def compare(self, own: Memory, reference: Memory, out: Memory) -> tuple[float, float]:
        """Fill `out`, float64[3, runs], and return the inner product and the largest difference.

        The rows of `out` are the sums of squares of the differences, of `reference` and of `own`.
        Both are float32, differences too; sums are float64. All are contiguous.
        """
        from weightctl.kernels import _native

        return _native.compare_runs(self.level, own, reference, out)


class ExaminedCodes(NamedTuple):
    """How the codes of an encoding are chosen: the fields of `struct code_layout` in codec.h."""

    mask: Memory
    lowest: int
    highest: int
    beside: Memory | None
    shared: int
    scale: int
    has_min: bool
    fits_scale: bool
    fits_min: bool
    limits: Memory


class CodeExaminer(NamedTuple):
    """The kernel that finds blocks of one encoding, at one level, whose codes may be wrong."""

    level: int
    name: str

    def find_doubtful(
        self, values: Memory, blocks: Memory, codes: ExaminedCodes, out: Memory
    ) -> None:
        """Fill `out`, a byte for each block, with 1 where blocks need a closer look, else 0.

        `values` are float32, and those that blocks may stand for. All are contiguous.
        """
        from weightctl.kernels import _native

        _native.find_doubtful(self.level, self.name, values, blocks, codes, out)


class ErrorFeedback(NamedTuple):
    """The kernels of one level for what weightctl/codecs/feedback/columns.py defines.

    `parts` are the facts of a type that weightctl/codecs/feedback lists.
    """

    level: int

    def factor(self, hessian: Memory, n: int) -> None:
        from weightctl.kernels import _native

        _native.factor_hessian(self.level, hessian, n)

    def round_columns(
        self,
        factor: tuple[Memory, int, int],
        columns: tuple[Memory, Memory, Memory],
        scales: tuple[Memory, Memory],
        parts: tuple[object, ...],
    ) -> None:
        """Round a block of columns; `factor` is the factor, its size, and the first column."""
        from weightctl.kernels import _native

        _native.round_columns(self.level, factor, columns, scales, parts)

    def refine(
        self,
        hessian: tuple[Memory, int, int],
        columns: tuple[Memory, Memory],
        scales: tuple[Memory, Memory, Memory | None, Memory | None],
        parts: tuple[object, ...],
    ) -> None:
        """Fit scales and codes; `hessian` is the matrix, its size, and the number of rounds."""
        from weightctl.kernels import _native

        _native.refine_codes(self.level, hessian, columns, scales, parts)


@cache
def levels() -> tuple[str, ...]:
    """Return the instruction sets of this processor that have kernels, the best last."""
    try:
        from weightctl.kernels import _native
    except ImportError:
        return ()
    return _native.levels()


def active() -> str | None:
    """Return the instruction set whose kernels are used, None if NumPy is."""
    level = _choose_level()
    return None if level is None else levels()[level]


def unknown_level() -> str:
    """Return the value of `WEIGHTCTL_KERNELS` if it is not an instruction set with kernels."""
    wanted = _read_wanted_level()
    return "" if wanted in {"", _OFF, *levels()} else wanted


def _read_wanted_level() -> str:
    return os.environ.get("WEIGHTCTL_KERNELS", "").strip().lower()


@cache
def _choose_level() -> int | None:
    found = levels()
    wanted = _read_wanted_level()
    if not found or wanted == _OFF:
        return None
    return found.index(wanted) if wanted in found else len(found) - 1


@cache
def kernel(name: str, level: int | None = None) -> Kernel | None:
    """Return the kernel of an encoding, by default at the active level; None if there is none."""
    if level is None:
        level = _choose_level()
    if level is None:
        return None
    from weightctl.kernels import _native

    abilities = _native.kernels(level).get(name)
    if abilities is None:
        return None
    if name in DISTANCES:
        _native.set_grid(name, load_levels(name), DISTANCES[name])
    return Kernel(level, name, *abilities)


@cache
def transcoder(
    source: str, target: str, *, weighted: bool = False, level: int | None = None
) -> Transcoder | None:
    """Return the kernel that converts one encoding to another; None if there is none.

    With `weighted`, it accepts importance. By default its level is the active one.
    """
    before, after = kernel(source, level), kernel(target, level)
    if before is None or after is None or not (before.decodes and after.decodes):
        return None
    if not (after.encodes_weighted if weighted else after.encodes):
        return None
    return Transcoder(before.level, source, target)


@cache
def block_rounder(source: str, level: int | None = None) -> BlockRounder | None:
    """Return the kernels that round rows of an encoding to codes; None if there are none."""
    found = kernel(source, level)
    return BlockRounder(found.level, source) if found is not None and found.decodes else None


@cache
def pair_packer(level: int | None = None) -> PairPacker | None:
    """Return the kernel that packs 4-bit codes; None if there is none."""
    if level is None:
        level = _choose_level()
    return None if level is None else PairPacker(level)


@cache
def row_multiplier(name: str, level: int | None = None) -> RowMultiplier | None:
    """Return the kernel that multiplies with rows of an encoding; None if there is none."""
    found = kernel(name, level)
    return RowMultiplier(found.level, name) if found is not None and found.decodes else None


@cache
def run_comparer(level: int | None = None) -> RunComparer | None:
    """Return the kernel that compares runs of values; None if there is none."""
    if level is None:
        level = _choose_level()
    return None if level is None else RunComparer(level)


@cache
def code_examiner(name: str, level: int | None = None) -> CodeExaminer | None:
    """Return the kernel that examines the codes of an encoding; None if there is none."""
    found = kernel(name, level)
    return CodeExaminer(found.level, name) if found is not None and found.decodes else None


@cache
def error_feedback(level: int | None = None) -> ErrorFeedback | None:
    """Return the kernels of rounding with error feedback; None if there are none."""
    if level is None:
        level = _choose_level()
    return None if level is None else ErrorFeedback(level)


@cache
def multiplies_bf16() -> bool:
    """Whether this processor has the instructions of `multiply_bf16`, and kernels use them."""
    if active() != _BEST:
        return False
    from weightctl.kernels import _native

    return _native.multiplies_bf16()


def multiply_bf16(
    rows: Memory, columns: int, vectors: Memory, out: Memory, *, threads: int = 1
) -> None:
    """Set `out`, float32[vectors, rows], to the products of vectors with rows in bfloat16.

    `vectors` are float32[vectors, columns], and are rounded to bfloat16; the number of columns is
    even. All are contiguous. The sums are float32, in an order of their own. Call this only if
    `multiplies_bf16`.
    """
    from weightctl.kernels import _native

    _native.multiply_bf16(rows, columns, vectors, out, threads)

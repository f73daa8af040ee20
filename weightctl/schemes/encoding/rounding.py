"""Rounding of values to codes, with a scale for each block of a matrix.

A rounding takes a tile of a weight, and restores the values that its codes represent. Scales are
rounded to their stored type first, so codes are chosen for the scales that are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from weightctl.codecs import transcode
from weightctl.codecs.scalar import convert, pack
from weightctl.dtype import ENCODINGS, DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

# More columns than a row can have.
WHOLE_ROW = 1 << 60
# The largest number of neighbors for which halves are compared.
_FEW = 32


class Codes(NamedTuple):
    """A tile of a weight: `codes` of shape (r, c), and tables with a cell for each block.

    `scales` and `offsets` are bytes as they are stored, along the last axis. Offsets are zero
    points as codes, or biases.
    """

    codes: U8
    scales: U8
    offsets: U8 | None = None


class Clips(NamedTuple):
    """Factors of the smallest and the largest value of each block, from which scales are computed.

    If the scale depends on the largest magnitude, only `high` applies.
    """

    low: F32
    high: F32


class Rounding(Protocol):
    """A way to round the values of a weight, in tiles of whole blocks."""

    def round(self, values: F32, peak: np.float32, clips: Clips | None = None, /) -> Codes:
        """Round a tile, shape (r, c); `peak` is the largest magnitude of the whole weight.

        With `clips`, scales are computed for other ranges, and values beyond them are clipped.
        """
        ...

    def restore(self, made: Codes, peak: np.float32, /) -> F32:
        """Return the values that the codes represent."""
        ...


class RoundedBlocks(NamedTuple):
    """The blocks of a rounding, `rows` x `columns` values, and what their codes are.

    `columns` is 0 if the whole weight is a block, and can be larger than a row. `kind` is that of
    `kernels.BlockRounder`; integers are at most `most`. Scales are chosen for the minimum and the
    maximum of a block if it `has_ranges`, otherwise for its largest magnitude. If codes are places
    in a table, it is `table`.
    """

    kind: str
    rows: int
    columns: int
    most: int = 0
    has_ranges: bool = False
    table: tuple[float, ...] = ()


class Scales(NamedTuple):
    """A table of scales, and one of zero points or biases: as they are stored, and as float32."""

    stored: U8
    held: F32
    offsets: U8 | None = None
    zeros: F32 | None = None


class BlockRounding:
    """A rounding whose codes depend only on the scale of a block, so that kernels can find them."""

    __slots__ = ()

    @property
    def grid(self) -> RoundedBlocks:
        raise NotImplementedError

    def choose(self, edges: tuple[F32, ...], peak: np.float32, /) -> Scales:
        """Return the scales for the extremes of blocks; `peak` is that of the whole weight."""
        raise NotImplementedError


def clip(edges: F32, factors: F32 | None) -> F32:
    """Return the largest or smallest values of blocks, multiplied by factors if there are any."""
    return edges if factors is None else edges * factors


def reduce_blocks(reduction: np.ufunc, values: F32, size: int, axis: int) -> F32:
    """Reduce each `size` neighbors along an axis; the last of them can be fewer."""
    length = values.shape[axis]
    if size >= length:
        whole: F32 = reduction.reduce(values, axis=axis, keepdims=True)
        return whole
    if length % size:
        made: F32 = reduction.reduceat(values, range(0, length, size), axis=axis)
        return made
    shape = (*values.shape[:axis], length // size, size, *values.shape[axis + 1 :])
    blocks: F32 = reduction.reduce(values.reshape(shape), axis=axis + 1)
    return blocks


def find_peaks(values: F32, rows: int, columns: int) -> F32:
    """Return the largest magnitude in each block of `rows` x `columns`."""
    peaks = np.abs(values)
    # A reduction of few neighbors takes longer than halves of all values at once.
    while columns <= _FEW and columns % 2 == 0 and peaks.shape[1] % 2 == 0:
        peaks = np.maximum(peaks[:, ::2], peaks[:, 1::2])
        columns //= 2
    if columns > 1:
        peaks = reduce_blocks(np.maximum, peaks, columns, 1)
    return peaks if rows == 1 else reduce_blocks(np.maximum, peaks, rows, 0)


def find_ranges(values: F32, columns: int, clips: Clips | None) -> tuple[F32, F32]:
    """Return the smallest and the largest values of blocks of a row, multiplied by ratios."""
    low = reduce_blocks(np.minimum, values, columns, 1)
    high = reduce_blocks(np.maximum, values, columns, 1)
    return (low, high) if clips is None else (low * clips.low, high * clips.high)


def spread(table: NDArray[Any], shape: tuple[int, int], rows: int, columns: int) -> NDArray[Any]:
    """Return a table with a cell for each block of a tile, as `view_blocks` broadcasts it."""
    if rows > 1 and table.shape[0] > 1:
        table = np.repeat(table, rows, axis=0)[: shape[0]]
    if table.shape[1] > 1 and shape[1] % columns:
        table = np.repeat(table, columns, axis=1)[:, : shape[1]]
    return table[..., None]


def view_blocks(tile: NDArray[Any], table: NDArray[Any]) -> NDArray[Any]:
    """Return a view of a tile, shape (r, c), with which a table from `spread` broadcasts."""
    return tile.reshape(tile.shape[0], table.shape[1], -1)


def store(numbers: F32, encoding: str, *, zero: int = 1) -> tuple[U8, F32]:
    """Return the bytes of values in an encoding, and the stored values; 0 becomes `zero`.

    A block whose scale is too small for the type is stored as zeros, so that any scale is right.
    """
    dtype = _dtype(encoding)
    stored = convert(numbers, dtype)
    held: F32 = convert(stored, DType.float32)
    if zero and not held.all():
        held = np.where(held == 0, np.float32(zero), held)
        stored = convert(held, dtype)
    return pack(stored), held


def restore_numbers(raw: U8, encoding: str) -> F32:
    held = transcode(raw, ENCODINGS[encoding], ENCODINGS["F32"]).raw.view(np.float32)
    # Values that are stored as float32 are not changed in place.
    return held.copy() if encoding == "F32" else held


def _dtype(encoding: str) -> DType:
    found = ENCODINGS[encoding].dtype
    return DType.float32 if found is None else found


def shape_of(tile: NDArray[Any]) -> tuple[int, int]:
    """Return the number of rows and of columns."""
    rows, columns = tile.shape
    return rows, columns

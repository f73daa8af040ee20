"""Conversion of plain values to a type that cannot hold all of them, and its loss."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.loss import Loss, measure_loss, sum_squares_and_error
from weightctl.codecs.narrow import LAYOUTS, narrow, widen
from weightctl.codecs.scalar import convert, numpy_dtype, overflow
from weightctl.dtype import DType

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.codecs.scalar import Numbers

# Values per tile: few enough that the work arrays stay in cache, and enough that the interpreter,
# which only one thread uses at a time, takes a small part of the time.
_TILE = 1 << 17


def recast(numbers: Numbers, dtype: DType, *, measure: bool) -> tuple[Numbers, Loss]:
    """Return the result of `scalar.convert` and the loss, which is complete with `measure`."""
    if dtype not in LAYOUTS or numbers.dtype.kind not in "fV" or numbers.itemsize > 4:
        made = convert(numbers, dtype)
        return made, _measure(numbers.reshape(-1), made.reshape(-1), measure=measure)
    made = np.empty(numbers.shape, numpy_dtype(dtype))
    before, after = numbers.reshape(-1), made.reshape(-1)
    space = np.empty((5, min(_TILE, before.size)), np.uint32)
    total = Loss(0)
    for start in range(0, before.size, _TILE):
        part, out = before[start : start + _TILE], after[start : start + _TILE]
        wide, *rest = space[:, : part.size]
        values = part if part.dtype == np.float32 else widen(part, wide.view(np.float32))
        loss = _narrow(values, dtype, out, rest, measure=measure)
        if loss is None:
            out[...] = convert(part, dtype)
            loss = _measure(part, out, measure=measure)
        total += loss
    return made, total


def _narrow(
    numbers: F32, dtype: DType, out: Numbers, space: list[NDArray[np.uint32]], *, measure: bool
) -> Loss | None:
    """Fill `out` and return the loss; None if a value is too large or not finite."""
    # For bfloat16, the sums of squares reveal such values if they are measured.
    if dtype is not DType.bfloat16 or not measure:
        greatest = max(numbers.max(), -numbers.min())
        if not greatest <= LAYOUTS[dtype].largest:  # also true for NaN
            return None
    held = narrow(numbers, dtype, out, space)
    if not measure:
        return Loss.from_counts(numbers.size)
    underflows = int(np.count_nonzero(held == 0))
    if underflows:
        underflows -= int(np.count_nonzero(numbers == 0))
    squares, squared_error = sum_squares_and_error(numbers, held)
    if not (isfinite(squares) and isfinite(squared_error)):
        return None
    return Loss(numbers.size, 0, underflows, squares, squared_error)


def _measure(numbers: Numbers, made: Numbers, *, measure: bool) -> Loss:
    """Return the loss of values of any type, shape (n,), that became `made`."""
    if measure:
        return measure_loss(numbers, made)
    return Loss.from_counts(numbers.size, overflow(numbers, made))

"""Conversion in whole arrays, the definition of what the kernels do in one pass.

Raises errors for values that a block cannot hold, and measures the loss.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.exact import is_exact
from weightctl.codecs.loss import Loss, measure_loss, sum_squares_and_error
from weightctl.codecs.narrow import LAYOUTS, narrow, widen
from weightctl.codecs.scalar import convert, numpy_dtype, overflow, pack, unpack
from weightctl.dtype import DType
from weightctl.errors import NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8, Codec
    from weightctl.codecs.scalar import Numbers
    from weightctl.dtype import Encoding

# Values per tile: few enough that the work arrays stay in cache, and enough that the interpreter,
# which only one thread uses at a time, takes a small part of the time.
# The scale of a block can overflow float16 only if a value exceeds this. Such values are usually at
# least 65504, but a fit of scale and minimum may reach further than the values, and much further if
# some of them have hardly any importance.
_HARMLESS = 256.0
# No block holds a larger value: the largest scales and levels of a type are a float16 scale, a
# 7-bit scale and a 6-bit level. NVFP4 saturates much earlier, and the search for IQ4_XS turns its
# own infinities into zeros. A scale of MXFP4 can be any power of two.
_LARGEST = 2.0**28
_LARGEST_OF = {"NVFP4": 2688.0, "MXFP4": inf}
# Values that are decoded at a time to measure the loss.
_TILE = 1 << 17


def transcode_arrays(
    raw: U8,
    source: Encoding,
    target: Encoding,
    importance: F32 | None,
    codec: Callable[[Encoding], Codec],
    *,
    measure: bool,
    zero_nonfinite: bool,
) -> tuple[U8, Loss | None]:
    """Return the result of `codecs.transcode`; `codec` returns the codec of an encoding."""
    if target.dtype is None:
        numbers = decode_rows(raw, source, codec)
        return _encode_blocks(
            numbers, target, codec(target), importance,
            measure=measure, zero_nonfinite=zero_nonfinite,
        )  # fmt: skip
    plain = source.dtype
    numbers = decode_rows(raw, source, codec) if plain is None else unpack(raw, plain)
    if is_exact(source, target):
        return pack(convert(numbers, target.dtype)), None
    made, loss = recast(numbers, target.dtype, measure=measure)
    return pack(made), loss


def decode_rows(raw: U8, encoding: Encoding, codec: Callable[[Encoding], Codec]) -> F32:
    """Return the values of encoded rows, shape (rows, columns)."""
    # Scales of damaged blocks can have any value; callers check the decoded values.
    with np.errstate(all="ignore"):
        if encoding.dtype is not None:
            return convert(unpack(raw, encoding.dtype), DType.float32)
        columns = raw.shape[1] // encoding.size * encoding.block
        numbers = np.empty((raw.shape[0], columns), np.float32)
        decoder = codec(encoding)
        if raw.size:
            decoder.decode(raw, numbers)
    return numbers


def _encode_blocks(
    numbers: F32,
    target: Encoding,
    codec: Codec,
    importance: F32 | None,
    *,
    measure: bool,
    zero_nonfinite: bool,
) -> tuple[U8, Loss]:
    """Return the blocks for rows of values, and the loss, which is complete with `measure`.

    `importance` is one weight per column, or None. Raises `NonFiniteError` if a block would have to
    hold a value that overflows its scale or, without `zero_nonfinite`, a NaN or an infinity.
    """
    rows, columns = numbers.shape
    blocks = np.empty((rows, columns // target.block * target.size), np.uint8)
    if not numbers.size:
        return blocks, Loss(0)
    greatest, nonfinite = _find_greatest(numbers), 0
    if not np.isfinite(greatest):
        finite = np.isfinite(numbers)
        if not zero_nonfinite:
            raise _make_refusal(numbers, np.argmin(finite), target)
        nonfinite = numbers.size - int(np.count_nonzero(finite))
        numbers = np.where(finite, numbers, np.float32(0))
        greatest = _find_greatest(numbers)
    codec.encode(numbers, importance, blocks)
    if greatest > _HARMLESS or importance is not None:
        _require_held(numbers, blocks, target, codec)
    if measure:
        return blocks, replace(_measure(numbers, blocks, target, codec), nonfinite=nonfinite)
    return blocks, Loss.from_counts(numbers.size, nonfinite=nonfinite)


def _find_greatest(numbers: F32) -> np.float32:
    return max(numbers.max(), -numbers.min())


def _require_held(numbers: F32, blocks: U8, target: Encoding, codec: Codec) -> None:
    held = np.empty_like(numbers)
    codec.decode(blocks, held)
    lost = ~np.isfinite(held)
    lost |= np.abs(numbers) > _LARGEST_OF.get(target.name, _LARGEST)
    if lost.any():
        raise _make_refusal(numbers, np.argmax(np.where(lost, np.abs(numbers), -1)), target)


def _make_refusal(numbers: F32, index: np.intp, target: Encoding) -> NonFiniteError:
    return NonFiniteError(int(index), float(numbers.reshape(-1)[index]), target.name)


def _measure(numbers: F32, blocks: U8, target: Encoding, codec: Codec) -> Loss:
    total = Loss(0)
    step = _TILE // target.block
    flat, table = numbers.reshape(-1), blocks.reshape(-1, target.size)
    space = np.empty(min(_TILE, flat.size), np.float32)
    for start in range(0, len(table), step):
        part = table[start : start + step].reshape(1, -1)
        x = flat[start * target.block :][: step * target.block]
        held = space[: x.size]
        codec.decode(part, held.reshape(1, -1))
        total += Loss(x.size, 0, 0, *sum_squares_and_error(x, held))
    return total


def recast(numbers: Numbers, dtype: DType, *, measure: bool) -> tuple[Numbers, Loss]:
    """Return the result of `scalar.convert` and the loss, which is complete with `measure`."""
    if dtype not in LAYOUTS or numbers.dtype.kind not in "fV" or numbers.itemsize > 4:
        made = convert(numbers, dtype)
        return made, _measure_numbers(numbers.reshape(-1), made.reshape(-1), measure=measure)
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
            loss = _measure_numbers(part, out, measure=measure)
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


def _measure_numbers(numbers: Numbers, made: Numbers, *, measure: bool) -> Loss:
    """Return the loss of values of any type, shape (n,), that became `made`."""
    if measure:
        return measure_loss(numbers, made)
    return Loss.from_counts(numbers.size, overflow(numbers, made))

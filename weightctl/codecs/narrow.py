"""Conversion between float32 and narrower floats, in whole-array arithmetic.

`scalar.convert` is the definition. NumPy and ml_dtypes need three to nine nanoseconds per value,
this module one or two.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.dtype import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32


class FloatLayout(NamedTuple):
    """A float type: stored significand bits, smallest exponent and largest value."""

    stored: int
    least: int
    largest: float


LAYOUTS = {
    DType.float16: FloatLayout(10, -14, 65504.0),
    DType.bfloat16: FloatLayout(7, -126, (2 - 2.0**-7) * 2.0**127),
    DType.float8_e4m3fn: FloatLayout(3, -6, 448.0),
    DType.float8_e5m2: FloatLayout(2, -14, 57344.0),
}
_SIGN, _EXPONENT = np.uint32(0x80000000), np.uint32(0x7F800000)


def widen(numbers: NDArray[Any], out: F32 | None = None) -> F32:
    """Return floats of at most 32 bits as float32, in `out` of the same shape if given.

    Without `out`, float32 is returned unchanged.
    """
    if out is None:
        if numbers.dtype == np.float32:
            return numbers
        out = np.empty(numbers.shape, np.float32)
    if numbers.itemsize == 1 or numbers.dtype == np.float16:
        codes = numbers.view(f"u{numbers.itemsize}")
        np.take(_values(numbers.dtype), codes, out=out, mode="clip")
    else:
        np.copyto(out, numbers)
    return out


@lru_cache
def _values(kind: np.dtype[Any]) -> F32:
    """Return the value of each bit pattern of a type."""
    codes = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}")
    with np.errstate(invalid="ignore"):
        values: F32 = codes.view(kind).astype(np.float32)
    if kind == np.float16:
        # This is what processors do; NumPy may leave a signaling NaN unchanged.
        values.view(np.uint32)[np.isnan(values)] |= np.uint32(1 << 22)
    return values


def narrow(
    numbers: F32, dtype: DType, out: NDArray[Any], space: Sequence[NDArray[np.uint32]]
) -> F32:
    """Fill `out` with values rounded to nearest even, and return the rounded values as float32.

    `numbers`, `out` and the four arrays of `space` have shape (n,). bfloat16 accepts any value; the
    other types of `LAYOUTS` accept neither NaN nor values beyond their largest. Zeros in the result
    have lost their sign.
    """
    sign, power, sums, code = space
    held = sums.view(np.float32)
    if dtype is DType.bfloat16:
        with np.errstate(over="ignore", invalid="ignore"):
            np.copyto(out, numbers, casting="unsafe")
        return widen(out, held)
    stored, least, _ = LAYOUTS[dtype]
    dropped = 23 - stored
    width = 8 * out.itemsize
    bits = numbers.view(np.uint32)
    # Add to each value a power of two that is so much larger that the last bit of the sum is the
    # last bit that the type keeps: the addition itself rounds. All subnormal values use the same
    # power.
    np.bitwise_and(bits, _EXPONENT, out=power)
    np.maximum(power, np.uint32(least + 127 << 23), out=power)
    power += np.uint32(dropped << 23)
    np.bitwise_and(bits, _SIGN, out=sign)
    power |= sign
    np.add(numbers, power.view(np.float32), out=held)
    # The sum has an exponent, and a significand whose last bits include the leading one. Shift the
    # exponent down to the position of the leading one: adding that one gives the difference between
    # the exponents of normal and subnormal values.
    np.right_shift(sums, np.uint32(dropped), out=code)
    code += sums
    sign >>= np.uint32(32 - width)
    code += sign
    codes = out.view(f"u{out.itemsize}")
    np.copyto(codes, code, casting="unsafe")
    codes -= codes.dtype.type((least + dropped + 127 << stored) % (1 << width))
    held -= power.view(np.float32)
    return held

"""Float32 from narrower floats and back, in whole-array arithmetic.

`scalar.convert` is the definition; NumPy and ml_dtypes take three to nine nanoseconds for a number,
this one or two.
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

__all__ = ["LAYOUTS", "narrow", "widen"]


class FloatLayout(NamedTuple):
    """A float type: bits of the significand that it stores, least exponent, largest number."""

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
    """Return the value of each code of a type."""
    codes = np.arange(1 << 8 * kind.itemsize, dtype=f"u{kind.itemsize}")
    with np.errstate(invalid="ignore"):
        values: F32 = codes.view(kind).astype(np.float32)
    if kind == np.float16:
        # This is what processors do; NumPy may leave a signalling NaN unchanged.
        values.view(np.uint32)[np.isnan(values)] |= np.uint32(1 << 22)
    return values


def narrow(
    numbers: F32, dtype: DType, out: NDArray[Any], space: Sequence[NDArray[np.uint32]]
) -> F32:
    """Fill `out` with numbers rounded to nearest even, and return what it then holds as float32.

    `out` has the shape (n,) of `numbers`, as have the four arrays where the work is done. To
    bfloat16 any number may go; no other type of `LAYOUTS` takes one that is beyond its largest or
    a NaN. Zeros that are returned have lost their sign.
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
    # Each number is added to a power of two so much larger that the sum's last bit is the last that
    # the type keeps: the addition itself rounds. Subnormal numbers all have the same power.
    np.bitwise_and(bits, _EXPONENT, out=power)
    np.maximum(power, np.uint32(least + 127 << 23), out=power)
    power += np.uint32(dropped << 23)
    np.bitwise_and(bits, _SIGN, out=sign)
    power |= sign
    np.add(numbers, power.view(np.float32), out=held)
    # The sum ends in the significand with its leading one, and begins with an exponent. That is
    # brought down to where the leading one stands, which adds the one that an exponent of normal
    # numbers has over that of subnormal ones.
    np.right_shift(sums, np.uint32(dropped), out=code)
    code += sums
    sign >>= np.uint32(32 - width)
    code += sign
    codes = out.view(f"u{out.itemsize}")
    np.copyto(codes, code, casting="unsafe")
    codes -= codes.dtype.type((least + dropped + 127 << stored) % (1 << width))
    held -= power.view(np.float32)
    return held

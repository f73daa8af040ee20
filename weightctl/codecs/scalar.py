"""Plain numbers: every `DType` as a NumPy type, and conversions that round once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from weightctl.dtype import DType
from weightctl.errors import EncodingError

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["Numbers", "Scalar", "convert", "numpy_dtype", "overflow", "pack", "unpack"]

Numbers = NDArray[Any]

_ML_DTYPES = {
    DType.bfloat16: ml_dtypes.bfloat16,
    DType.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    DType.float8_e5m2: ml_dtypes.float8_e5m2,
    DType.float8_e4m3fnuz: ml_dtypes.float8_e4m3fnuz,
    DType.float8_e5m2fnuz: ml_dtypes.float8_e5m2fnuz,
    DType.float8_e8m0fnu: ml_dtypes.float8_e8m0fnu,
    DType.float4_e2m1fn: ml_dtypes.float4_e2m1fn,
}
_HAS_INFINITY = {DType.float16, DType.bfloat16, DType.float32, DType.float64, DType.float8_e5m2}
_PACKED = ml_dtypes.float4_e2m1fn


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of a `DType`; those NumPy lacks come from `ml_dtypes`."""
    made: np.dtype[Any] = np.dtype(_ML_DTYPES.get(dtype, dtype.value))
    return made


def unpack(raw: U8, dtype: DType) -> Numbers:
    """Return the numbers stored in bytes: a view, but for float4, which stores two in a byte."""
    if dtype is not DType.float4_e2m1fn:
        return raw.view(numpy_dtype(dtype))
    nibbles = np.stack([raw & 15, raw >> 4], axis=-1)
    return nibbles.reshape(*raw.shape[:-1], -1).view(_PACKED)


def pack(numbers: Numbers) -> U8:
    """Return the bytes that store numbers: a view, but for float4."""
    raw = np.ascontiguousarray(numbers).view(np.uint8)
    if numbers.dtype != _PACKED:
        return raw
    packed: U8 = raw[..., ::2] & np.uint8(15) | raw[..., 1::2] << np.uint8(4)
    return packed


def convert(numbers: Numbers, dtype: DType) -> Numbers:
    """Round numbers to another type, once and to nearest even.

    What is too large becomes an infinity where the type has one, and the largest finite number of
    its sign where it has none (float8_e4m3fn, the fnuz forms, float4).
    """
    target = numpy_dtype(dtype)
    if numbers.dtype == target:
        return numbers
    if target.kind != "V" and numbers.dtype.kind != "V" and target.type.__module__ == "numpy":
        with np.errstate(over="ignore", invalid="ignore"):
            return numbers.astype(target)
    if numbers.dtype.kind in "iub":
        numbers = numbers.astype(np.float64)
    if numbers.dtype == np.float64:
        numbers = _round_to_odd(numbers)
    elif numbers.dtype != np.float32:
        numbers = numbers.astype(np.float32)
    if dtype.is_float and dtype not in _HAS_INFINITY:
        largest = np.float32(_largest(target))
        numbers = np.clip(numbers, -largest, largest)
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(target)


def _largest(kind: np.dtype[Any]) -> float:
    limits: Any = ml_dtypes.finfo  # ml_dtypes leaves it without types
    return float(limits(kind).max)


def _round_to_odd(numbers: NDArray[np.float64]) -> F32:
    """Return float32 from which a further rounding gives what one rounding would have given.

    An inexact result gets its last bit set (S. Boldo, G. Melquiond, "When double rounding is
    odd", 2005).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = numbers.astype(np.float32)
    back = nearest.astype(np.float64)
    inexact = np.isfinite(numbers) & (back != numbers)
    # Step back towards zero where the rounding went away from it; infinities become the largest.
    away = inexact & (np.abs(back) > np.abs(numbers))
    bits = nearest.view(np.uint32)
    bits = np.where(away, bits - np.uint32(1), bits)
    return np.where(inexact, bits | np.uint32(1), bits).view(np.float32)


def overflow(numbers: Numbers, converted: Numbers) -> int:
    """Count the finite numbers that became an infinity or were held at the largest number."""
    if numbers.dtype.kind in "iub" or converted.dtype.kind in "iub":
        return 0
    wide = numbers if numbers.dtype == np.float64 else numbers.astype(np.float32)
    largest = _largest(converted.dtype)
    magnitude = np.abs(wide)
    over = (magnitude > largest) & np.isfinite(wide)
    if not over.any():
        return 0
    # A number between the largest and the next step may still round down to the largest.
    back = np.abs(converted.astype(np.float64))
    has_infinity = not np.isfinite(back[over]).all()
    return int(np.count_nonzero(over & ~np.isfinite(back)) if has_infinity else over.sum())


class Scalar:
    """The codec of plain numbers of one type; the values pass through float32."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG002
        """Fill `out` with rows of float32 rounded to the type."""
        if self._dtype.is_integer or self._dtype is DType.bool:
            raise EncodingError(f"numbers with fractions cannot become {self._dtype.value}")
        out[...] = pack(convert(rows, self._dtype))

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the numbers stored in `blocks`."""
        out[...] = convert(unpack(blocks, self._dtype), DType.float32)

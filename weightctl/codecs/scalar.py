"""Plain values: each `DType` as a NumPy type, and conversions that round once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from weightctl.dtype import DType
from weightctl.errors import EncodingError

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

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
HAS_INFINITY = {DType.float16, DType.bfloat16, DType.float32, DType.float64, DType.float8_e5m2}
_PACKED = ml_dtypes.float4_e2m1fn
_CLIP = "clip the values first, or use a wider dtype"


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """Return the NumPy type of a `DType`; `ml_dtypes` provides those that NumPy does not have."""
    made: np.dtype[Any] = np.dtype(_ML_DTYPES.get(dtype, dtype.value))
    return made


def unpack(raw: U8, dtype: DType) -> Numbers:
    """Return the values in bytes: a view, except for float4, which stores two values per byte."""
    if dtype is not DType.float4_e2m1fn:
        return raw.view(numpy_dtype(dtype))
    nibbles = np.stack([raw & 15, raw >> 4], axis=-1)
    return nibbles.reshape(*raw.shape[:-1], -1).view(_PACKED)


def pack(numbers: Numbers) -> U8:
    """Return the bytes that store values: a view, except for float4.

    Raises `EncodingError` for float4 rows with an odd number of elements.
    """
    raw = np.ascontiguousarray(numbers).view(np.uint8)
    if numbers.dtype != _PACKED:
        return raw
    if raw.shape[-1] % 2:
        raise EncodingError(
            "float4 stores two values in each byte, so a row must have an even number of "
            f"elements, not {raw.shape[-1]}"
        )
    packed: U8 = raw[..., ::2] & np.uint8(15) | raw[..., 1::2] << np.uint8(4)
    return packed


def convert(numbers: Numbers, dtype: DType) -> Numbers:
    """Convert values to another type, rounded once, to nearest even.

    A value that is too large becomes infinity, or the largest finite value of its sign if the type
    has no infinity (float8_e4m3fn, the fnuz types, float4); `overflow` counts both. NaN stays NaN,
    and a signaling NaN from or to float16 becomes quiet. Raises `EncodingError` if floats would
    become integers, if an integer does not fit, for complex types, and for values that
    float8_e8m0fnu or float4 cannot represent.
    """
    target = numpy_dtype(dtype)
    if numbers.dtype == target:
        return numbers
    _require_convertible(numbers, dtype)
    if numbers.itemsize <= 2 and numbers.dtype.kind in "fV" and dtype is not DType.float64:
        from weightctl.codecs.narrow import widen

        numbers = widen(numbers)
        if dtype is DType.float32:
            return numbers
    if target.kind != "V" and numbers.dtype.kind != "V" and target.type.__module__ == "numpy":
        with np.errstate(over="ignore", invalid="ignore"):
            made = numbers.astype(target)
        if dtype is DType.float16 and numbers.dtype.kind == "f":
            _make_quiet(numbers, made)
        return made
    if numbers.dtype.kind in "iub":
        numbers = _to_float64(numbers)
    if numbers.dtype == np.float64:
        numbers = _round_to_odd(numbers)
    elif numbers.dtype != np.float32:
        numbers = numbers.astype(np.float32)
    if dtype not in HAS_INFINITY:
        _require_representable(numbers, dtype)
        largest = np.float32(_largest(target))
        numbers = np.clip(numbers, -largest, largest)
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(target)


def truncate(numbers: Numbers, dtype: DType) -> Numbers:
    """Return floats as integers, rounded towards zero, or as bool: whether they are not 0.

    Raises `EncodingError` if the integer type cannot hold a value, or for NaN.
    """
    target = numpy_dtype(dtype)
    if dtype is DType.bool:
        made: Numbers = numbers != 0
        return made
    limits = np.iinfo(target)
    whole = np.trunc(numbers)
    # The bounds as floats: the largest integer plus 1 is exact even where the largest integer is
    # not.
    fits = (whole >= float(limits.min)) & (whole < float(limits.max) + 1)
    if not fits.all():
        index = int((~fits).argmax())
        raise EncodingError(
            f"element {index} is {numbers.reshape(-1)[index]:g}, which {dtype.value} cannot hold",
            hint=_CLIP,
        )
    return whole.astype(target)


def _make_quiet(numbers: Numbers, made: Numbers) -> None:
    """Give NaNs that became float16 the bits that processors set; NumPy's are not defined."""
    nan = np.isnan(numbers)
    if nan.any():
        bits = numbers[nan].astype(np.float32).view(np.uint32)
        codes = bits >> np.uint32(13) & np.uint32(0x1FF) | np.uint32(0x7E00)
        made.view(np.uint16)[nan] = bits >> np.uint32(16) & np.uint32(0x8000) | codes


def _require_convertible(numbers: Numbers, dtype: DType) -> None:
    is_whole = numbers.dtype.kind in "iub"
    is_complex = "c" in {numbers.dtype.kind, numpy_dtype(dtype).kind}
    if is_complex or not (is_whole or dtype.is_float):
        raise EncodingError(
            f"{numbers.dtype} cannot be converted to {dtype.value}",
            hint="complex numbers can only be copied"
            if is_complex
            else "floats cannot be converted to integers or bool",
        )
    if dtype.is_integer and numbers.size:
        limits = np.iinfo(dtype.value)
        low, high = int(numbers.min()), int(numbers.max())
        if low < limits.min or high > limits.max:
            beyond = low if low < limits.min else high
            index = int((numbers.reshape(-1) == beyond).argmax())
            raise EncodingError(
                f"element {index} is {beyond}, which {dtype.value} cannot hold", hint=_CLIP
            )


def _require_representable(numbers: F32, dtype: DType) -> None:
    """Raise `EncodingError` for NaN in float4, and for values <= 0 in float8_e8m0fnu."""
    if dtype is DType.float4_e2m1fn:
        refused = np.isnan(numbers)
    elif dtype is DType.float8_e8m0fnu:
        refused = numbers <= 0
    else:
        return
    if refused.any():
        index = int(refused.argmax())
        raise EncodingError(
            f"element {index} is {numbers.reshape(-1)[index]}, which {dtype.value} cannot hold"
        )


def _largest(kind: np.dtype[Any]) -> float:
    limits: Any = ml_dtypes.finfo  # has no annotations
    return float(limits(kind).max)


def _to_float64(numbers: Numbers) -> NDArray[np.float64]:
    """Return integers as float64 values that round to 24 bits or fewer as the integers do."""
    if numbers.dtype.itemsize == 8:
        # Beyond 53 bits, it only matters whether the last twelve bits are all zero.
        is_large = (numbers >= 1 << 53) | (numbers <= -(1 << 53))
        rest = (numbers & 0xFFF != 0).astype(numbers.dtype)
        numbers = np.where(is_large, numbers >> 12 << 12 | rest << 11, numbers)
    return numbers.astype(np.float64)


def _round_to_odd(numbers: NDArray[np.float64]) -> F32:
    """Return float32 values that round to narrower types as the given values do.

    The last bit of an inexact result is set (S. Boldo, G. Melquiond, "When double rounding is odd",
    2005).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = numbers.astype(np.float32)
    back = nearest.astype(np.float64)
    inexact = np.isfinite(numbers) & (back != numbers)
    # If a value was rounded away from zero, take the float before it; infinity becomes the largest
    # value.
    away = inexact & (np.abs(back) > np.abs(numbers))
    bits = nearest.view(np.uint32)
    bits = np.where(away, bits - np.uint32(1), bits)
    return np.where(inexact, bits | np.uint32(1), bits).view(np.float32)


def overflow(numbers: Numbers, converted: Numbers) -> int:
    """Return the number of values that were too large.

    These are finite values that became infinity, or, in a type without infinity, all values that
    exceed its largest value.
    """
    if converted.dtype.kind in "iub" or converted.dtype == np.float64:
        return 0
    is_wide = numbers.dtype == np.float64 or numbers.dtype.kind in "iub"
    with np.errstate(invalid="ignore"):  # a signaling NaN, on arm64
        wide = numbers.astype(np.float64 if is_wide else np.float32, copy=False)
    over = np.abs(wide) > _largest(converted.dtype)
    if over.any() and DType(converted.dtype.name) in HAS_INFINITY:
        # A value between the largest and the next step may still be rounded down to the largest.
        with np.errstate(invalid="ignore"):
            over &= np.isfinite(wide) & np.isinf(converted.astype(np.float64))
    return int(np.count_nonzero(over))


class ScalarCodec:
    """The codec of plain values of one type; values are converted through float32."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = dtype

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG002
        """Fill `out` with float32 rows rounded to the type, as `convert` does."""
        out[...] = pack(convert(rows, self._dtype))

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the values stored in `blocks`."""
        out[...] = convert(unpack(blocks, self._dtype), DType.float32)

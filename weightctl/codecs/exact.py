"""Conversions that are exact for all values."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import ml_dtypes
import numpy as np

from weightctl.codecs.scalar import HAS_INFINITY, numpy_dtype
from weightctl.dtype import DType

if TYPE_CHECKING:
    from weightctl.dtype import Encoding


class _Range(NamedTuple):
    """The range of a type: significand bits, smallest positive value and largest value."""

    precision: int
    least: float
    largest: float


@cache
def is_exact(source: Encoding, target: Encoding) -> bool:
    """Whether a conversion keeps all values exactly, or raises an error for those it cannot.

    The values of a block encoding are float32.
    """
    if source == target:
        return True
    before, after = source.dtype or DType.float32, target.dtype
    if after is None or after is DType.bool or before.is_complex or after.is_complex:
        return False
    if after.is_integer:
        return before.is_integer or before is DType.bool
    if before in HAS_INFINITY and after not in HAS_INFINITY:
        return False
    own, other = _range(before), _range(after)
    return (
        own.precision <= other.precision
        and own.least >= other.least
        and own.largest <= other.largest
    )


@cache
def _range(dtype: DType) -> _Range:
    if dtype is DType.bool:
        return _Range(1, 1, 1)
    if dtype.is_integer:
        whole = np.iinfo(dtype.value)
        # The only value with one more bit, such as -128 for int8, is a power of two.
        return _Range(int(whole.max).bit_length(), 1, -float(whole.min) or float(whole.max))
    limits: Any = ml_dtypes.finfo  # has no annotations
    found = limits(numpy_dtype(dtype))
    return _Range(found.nmant + 1, float(found.smallest_subnormal), float(found.max))


def holds_all(source: Encoding, target: Encoding) -> bool:
    """Whether `target` can hold every value of `source` exactly."""
    before, after = source.dtype, target.dtype
    if before is not None and after is not None and before.is_integer and after.is_integer:
        low, high = _integer_limits(before)
        least, largest = _integer_limits(after)
        return least <= low and high <= largest
    return is_exact(source, target)


def _integer_limits(dtype: DType) -> tuple[int, int]:
    found = np.iinfo(dtype.value)
    return int(found.min), int(found.max)

"""The fast ways between float32 and narrower floats give the bits of NumPy and ml_dtypes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np
import pytest

from weightctl import DType
from weightctl.codecs.narrow import LAYOUTS, narrow, widen
from weightctl.codecs.recasting import recast
from weightctl.codecs.scalar import convert, numpy_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

NARROW = [d for d in DType if d.is_float and d.encoding.size <= 2]
to_each = pytest.mark.parametrize("dtype", LAYOUTS, ids=lambda dtype: dtype.value)
from_each = pytest.mark.parametrize("source", NARROW, ids=lambda dtype: dtype.value)


def bits(numbers: NDArray[np.generic]) -> NDArray[np.generic]:
    return numbers.view(f"u{numbers.itemsize}")


def codes(dtype: DType) -> NDArray[np.generic]:
    """Return a number for each code of a type; of float4 there are sixteen."""
    size = dtype.encoding.size
    count = 16 if dtype is DType.float4_e2m1fn else 1 << 8 * size
    numbers: NDArray[np.generic] = np.arange(count, dtype=f"u{size}").view(numpy_dtype(dtype))
    return numbers


def hard_numbers() -> NDArray[np.float32]:
    """Return float32 of all exponents and both signs, one exponent to a row.

    The significands are those between which rounding to fewer bits decides, and some at random.
    """
    middles = [(odd << bit + 1) + (1 << bit) for bit in range(8, 23) for odd in range(4)]
    chosen = [m + more for m in middles for more in (-1, 0, 1)] + [0, 1, (1 << 23) - 1]
    chosen += np.random.default_rng(1).integers(0, 1 << 23, 300).tolist()
    significands = np.array(chosen, np.uint32) & np.uint32((1 << 23) - 1)
    exponents = np.arange(256, dtype=np.uint32)[:, None] << np.uint32(23)
    positive = exponents | significands
    return np.concatenate([positive, positive | np.uint32(1 << 31)], axis=1).view(np.float32)


def narrowed(numbers: F32, dtype: DType) -> tuple[NDArray[np.generic], F32]:
    out = np.empty(numbers.shape, numpy_dtype(dtype))
    space = np.empty((4, numbers.size), np.uint32)
    return out, narrow(numbers, dtype, out, list(space))


@from_each
def test_every_code_is_widened_as_ml_dtypes_does(source: DType) -> None:
    numbers = codes(source)
    with np.errstate(invalid="ignore"):
        expected = numbers.astype(np.float32)
    if source is DType.float16:
        expected.view(np.uint32)[np.isnan(expected)] |= np.uint32(1 << 22)  # quiet
    assert np.array_equal(bits(widen(numbers)), bits(expected))
    out = np.empty(numbers.shape, np.float32)
    assert widen(numbers, out) is out
    assert np.array_equal(bits(out), bits(expected))


def test_float32_is_as_wide_as_it_gets() -> None:
    numbers = np.ones(3, np.float32)
    assert widen(numbers) is numbers


@to_each
def test_layouts_are_those_of_ml_dtypes(dtype: DType) -> None:
    limits = ml_dtypes.finfo(numpy_dtype(dtype))
    assert LAYOUTS[dtype] == (limits.nmant, limits.minexp, float(limits.max))


@to_each
def test_numbers_of_every_exponent_are_rounded_as_defined(dtype: DType) -> None:
    numbers = hard_numbers().reshape(-1)
    if dtype is not DType.bfloat16:
        numbers = numbers[np.abs(numbers) <= LAYOUTS[dtype].largest]
        assert LAYOUTS[dtype].largest / 2 < numbers.max()
    made, held = narrowed(numbers, dtype)
    assert np.array_equal(bits(made), bits(convert(numbers, dtype)))
    with np.errstate(invalid="ignore"):
        assert np.array_equal(held, made.astype(np.float32), equal_nan=True)


@to_each
def test_random_bits_are_rounded_as_defined(dtype: DType) -> None:
    numbers = np.random.default_rng(2).integers(0, 1 << 32, 1 << 20, np.uint32).view(np.float32)
    numbers = numbers[np.abs(numbers) <= LAYOUTS[dtype].largest]
    made, _ = narrowed(numbers, dtype)
    assert np.array_equal(bits(made), bits(convert(numbers, dtype)))


@to_each
@pytest.mark.parametrize("measure", [False, True])
def test_numbers_that_are_too_large_or_not_finite_change_nothing(
    dtype: DType, measure: bool
) -> None:
    # Each row by itself: it takes one such number for another way.
    for numbers in hard_numbers():
        made, _ = recast(numbers, dtype, measure=measure)
        assert np.array_equal(bits(made), bits(convert(numbers, dtype)))


@to_each
@from_each
def test_every_code_is_recast_as_defined(source: DType, dtype: DType) -> None:
    numbers = codes(source)
    made, _ = recast(numbers, dtype, measure=True)
    assert np.array_equal(bits(made), bits(convert(numbers, dtype)))
    with np.errstate(invalid="ignore"):
        finite = numbers[np.isfinite(numbers.astype(np.float32))]
    made, _ = recast(finite, dtype, measure=False)
    assert np.array_equal(bits(made), bits(convert(finite, dtype)))


@pytest.mark.parametrize("size", [1, (1 << 17) - 1, 1 << 17, (1 << 18) + 3])
def test_numbers_of_any_count_are_recast(size: int) -> None:
    numbers = np.random.default_rng(3).standard_normal((3, size), np.float32)
    for dtype in LAYOUTS:
        made, loss = recast(numbers, dtype, measure=True)
        assert made.shape == numbers.shape
        assert np.array_equal(bits(made), bits(convert(numbers, dtype)))
        assert loss.count == 3 * size

"""Casts round once, from all bits of the numbers that are cast."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from each import each
from runs import run
from weightctl.dtype import DType

Array = np.ndarray[Any, Any]

# Half a step of float16 and of bfloat16 above 1, and so little more that float32 does not hold it.
ABOVE = {DType.float16: 2.0**-11, DType.bfloat16: 2.0**-8}


def cast(array: Array, dtype: DType) -> Array:
    return run(lambda x: x.cast(dtype), array).astype(np.float64)


@each("dtype", ABOVE)
@each("sign", [1, -1])
def test_what_is_just_beside_a_tie_goes_to_the_nearest(dtype: DType, sign: int) -> None:
    half, little = ABOVE[dtype], 2.0**-40
    given = sign * np.array([1 + half - little, 1 + half, 1 + half + little])
    expected = sign * np.array([1, 1, 1 + 2 * half])
    np.testing.assert_array_equal(cast(given, dtype), expected)


def test_doubles_become_halves_as_numpys_do() -> None:
    random = np.random.default_rng(5)
    halves = random.integers(0, 2**16, 20000).astype(np.uint16).view(np.float16).astype(np.float64)
    halves = halves[np.isfinite(halves)]
    ties = halves + np.abs(np.spacing(halves.astype(np.float16))).astype(np.float64) / 2
    given = np.concatenate([halves, ties, ties * (1 + 2.0**-45), ties * (1 - 2.0**-45)])
    edges = [0.0, -0.0, 65519.999999999, 65520.0, 1e300, -1e300, 1e-300, np.inf, -np.inf, np.nan]
    given = np.concatenate([given, edges])
    with np.errstate(over="ignore"):
        expected = given.astype(np.float16)
    found = run(lambda x: x.cast(DType.float16), given)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@each("kind", [np.int32, np.int64])
def test_integers_just_beside_a_tie_go_to_the_nearest(kind: Any) -> None:
    # Steps of bfloat16 are 2**22 here, of which 1 more than a half is lost in float32.
    tie = 2**29 + 2**21
    given = np.array([tie - 1, tie, tie + 1, -tie - 1], kind)
    expected = np.array([2**29, 2**29, 2**29 + 2**22, -(2**29) - 2**22])
    np.testing.assert_array_equal(cast(given, DType.bfloat16), expected)


def test_the_largest_integers_are_rounded_once_too() -> None:
    tie = 2**62 + 2**54
    given = np.array([tie - 1, tie, tie + 1, -tie - 1, 2**63 - 1, -(2**63)])
    expected = [2.0**62, 2.0**62, 2.0**62 + 2.0**55, -(2.0**62) - 2.0**55, 2.0**63, -(2.0**63)]
    np.testing.assert_array_equal(cast(given, DType.bfloat16), expected)


@each(
    "dtype, expected",
    [
        (DType.float8_e4m3fn, [448, -448, 448]),
        (DType.float8_e5m2, [np.inf, -np.inf, np.inf]),
        (DType.float16, [np.inf, -np.inf, np.inf]),
    ],
)
def test_what_is_too_large_is_what_the_cast_says(dtype: DType, expected: list[float]) -> None:
    np.testing.assert_array_equal(cast(np.array([1e9, -1e9, np.inf], np.float32), dtype), expected)


def test_small_floats_of_8_bits_are_rounded_once() -> None:
    given = np.array([1 + 2.0**-4 + 2.0**-40, 1 + 2.0**-4])
    found = run(lambda x: x.cast(DType.float8_e4m3fn), given)
    np.testing.assert_array_equal(found, np.array([1.125, 1], ml_dtypes.float8_e4m3fn))

"""Plain numbers are converted as ml_dtypes and exact arithmetic round them."""

from __future__ import annotations

from fractions import Fraction
from math import frexp, inf, isinf, isnan, nan
from typing import TYPE_CHECKING, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from weightctl import DType
from weightctl.codecs import codec, definition, is_exact
from weightctl.codecs.narrow import LAYOUTS, narrow, widen
from weightctl.codecs.scalar import ScalarCodec, convert, numpy_dtype, overflow, pack, unpack
from weightctl.codecs.transcoding import recast
from weightctl.dtype import ENCODINGS
from weightctl.errors import EncodingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.codecs.scalar import Numbers


class Kind(NamedTuple):
    """A floating-point type: bits of its significand, least exponent, largest number."""

    precision: int
    least: int
    largest: float
    has_infinity: bool = False
    has_negative_zero: bool = True


KINDS = {
    DType.float64: Kind(53, -1022, float(np.finfo(np.float64).max), has_infinity=True),
    DType.float32: Kind(24, -126, (2 - 2.0**-23) * 2.0**127, has_infinity=True),
    DType.float16: Kind(11, -14, 65504, has_infinity=True),
    DType.bfloat16: Kind(8, -126, (2 - 2.0**-7) * 2.0**127, has_infinity=True),
    DType.float8_e5m2: Kind(3, -14, 57344, has_infinity=True),
    DType.float8_e4m3fn: Kind(4, -6, 448),
    DType.float8_e5m2fnuz: Kind(3, -15, 57344, has_negative_zero=False),
    DType.float8_e4m3fnuz: Kind(4, -7, 240, has_negative_zero=False),
    DType.float4_e2m1fn: Kind(2, 0, 6),
}
NARROW = [d for d in KINDS if d not in {DType.float32, DType.float64}]
each_kind = each("dtype", KINDS, ids=lambda d: d.value)
each_narrow = each("dtype", NARROW, ids=lambda d: d.value)


def rounded(number: float, kind: Kind) -> float:
    """Round exactly: to a whole number of the type's steps, half to even."""
    if isnan(number):
        return nan
    made = number
    if number and not isinf(number):
        exact = Fraction(number)
        exponent = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
        exponent -= abs(exact) < Fraction(2) ** exponent
        step = Fraction(2) ** (max(exponent, kind.least) - kind.precision + 1)
        whole = round(exact / step) * step
        made = inf if abs(whole) > Fraction(kind.largest) else abs(float(whole))
        made = float(np.copysign(made, number))
    if isinf(made) and not kind.has_infinity:
        made = float(np.copysign(kind.largest, number))
    return made if kind.has_negative_zero or made else 0.0


def every_number(dtype: DType) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return all numbers of a type of 4 or 8 bits, some of a wider one; no NaN, no infinity."""
    size = dtype.encoding.size
    codes = np.arange(1 << 8, dtype=np.uint8)
    if size > 1:
        codes = np.random.default_rng(3).integers(0, 256, 300 * size, np.uint8)
    with np.errstate(invalid="ignore"):
        numbers = unpack(codes, dtype).astype(np.float64)
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = np.unique(numbers[np.isfinite(numbers)])
    return found


def hard_numbers(dtype: DType) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what is hardest to round to a type: its numbers, the middles, and their neighbors."""
    numbers = every_number(dtype)
    largest = KINDS[dtype].largest
    # The middle between the largest and what would be next.
    edge = largest + 2.0 ** (frexp(largest)[1] - 1 - KINDS[dtype].precision)
    exact = np.concatenate([numbers, numbers[:-1] / 2 + numbers[1:] / 2, [edge, -edge, largest]])
    with np.errstate(over="ignore"):
        near = [np.nextafter(exact, inf), np.nextafter(exact, -inf), exact * (1 + 2.0**-40)]
    return np.concatenate([exact, *near, [5e-324, -5e-324, 1e300, -1e300, inf, -inf, nan, -0.0]])


def assert_rounded(numbers: np.ndarray, dtype: DType) -> None:
    with np.errstate(invalid="ignore"):
        wide = numbers.astype(np.float64)
    found = convert(numbers, dtype)
    assert found.dtype == numpy_dtype(dtype)
    expected = np.array([rounded(float(number), KINDS[dtype]) for number in wide])
    back = found.astype(np.float64)
    wrong = ~((back == expected) | np.isnan(back) & np.isnan(expected))
    assert not wrong.any(), list(zip(wide[wrong], back[wrong], expected[wrong], strict=True))[:5]
    signed = ~np.isnan(wide)
    assert np.array_equal(np.signbit(back[signed]), np.signbit(expected[signed]))


@each_narrow
def test_float64_is_rounded_to_nearest_even_exactly_once(dtype: DType) -> None:
    numbers = hard_numbers(dtype)
    if dtype is DType.float4_e2m1fn:
        numbers = numbers[~np.isnan(numbers)]
    assert_rounded(numbers, dtype)


@each_kind
@each("source", KINDS, ids=lambda d: d.value)
def test_every_float_is_rounded_to_every_other(source: DType, dtype: DType) -> None:
    own = every_number(source)[:: 1 if source in NARROW else 4]
    hard = hard_numbers(dtype)
    hard = hard[np.isfinite(hard)][::7]
    with np.errstate(over="ignore"):
        numbers = np.concatenate([own, hard]).astype(numpy_dtype(source))
    assert_rounded(numbers[np.isfinite(numbers.astype(np.float64))], dtype)


@given(st.floats(allow_nan=False), st.sampled_from(NARROW))
def test_any_float64_is_rounded_exactly_once(number: float, dtype: DType) -> None:
    assert_rounded(np.array([number]), dtype)


@each("dtype", [DType.float16, DType.bfloat16, DType.float8_e5m2], ids=str)
def test_float32_is_rounded_as_torch_does(dtype: DType) -> None:
    import torch

    numbers = np.random.default_rng(5).integers(0, 1 << 32, 50_000, np.uint32).view(np.float32)
    expected = torch.from_numpy(numbers).to(getattr(torch, dtype.value)).double().numpy()
    assert np.array_equal(convert(numbers, dtype).astype(np.float64), expected, equal_nan=True)


def test_float32_becomes_float8_e8m0fnu_as_in_torch() -> None:
    import torch

    numbers = 2 ** np.random.default_rng(5).uniform(-126, 127, 5000).astype(np.float32)
    expected = torch.from_numpy(numbers).to(torch.float8_e8m0fnu).double().numpy()
    assert np.array_equal(convert(numbers, DType.float8_e8m0fnu).astype(np.float64), expected)


@each("source", [d for d in DType if d.is_integer], ids=str)
@each_kind
def test_integers_are_rounded_exactly_once(source: DType, dtype: DType) -> None:
    kind = numpy_dtype(source)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max
    ends = [low, high, low + 1, high - 1, 0, 1]
    # Beside the middle of two bfloat16, by less than float64 can tell at that size.
    middles = [(257 << shift) + more for shift in range(1, 55) for more in (-1, 0, 1)]
    numbers = np.array([n for n in ends + middles if low <= n <= high], kind)
    found = convert(numbers, dtype).astype(np.float64)
    for number, back in zip(numbers.tolist(), found.tolist(), strict=True):
        assert back == exact_integer(number, KINDS[dtype])


def exact_integer(number: int, kind: Kind) -> float:
    exponent = max(abs(number).bit_length() - 1, kind.least)
    step = Fraction(2) ** (exponent - kind.precision + 1)
    whole = round(number / step) * step
    if abs(whole) <= kind.largest:
        return float(whole)
    return float(np.copysign(inf if kind.has_infinity else kind.largest, number))


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_any_integer_becomes_the_nearest_bfloat16(number: int) -> None:
    found = float(convert(np.array([number]), DType.bfloat16)[0])
    assert found == exact_integer(number, KINDS[DType.bfloat16])


def test_integers_that_fit_stay_what_they_are() -> None:
    numbers = np.array([0, 127, -128], np.int64)
    assert convert(numbers, DType.int8).tolist() == numbers.tolist()
    assert convert(np.array([1 << 63], np.uint64), DType.uint64)[0] == 1 << 63


@each(
    "number, kind, target",
    [(128, "i2", "int8"), (-1, "i1", "uint64"), (1 << 63, "u8", "int64"), (256, "u4", "uint8")],
)
def test_integers_that_do_not_fit_are_refused(number: int, kind: str, target: str) -> None:
    with pytest.raises(EncodingError, match=f"element 1 is {number}, which {target} cannot hold"):
        convert(np.array([0, number], kind), DType(target))


def test_the_own_type_comes_back_uncopied() -> None:
    numbers = np.ones(3, ml_dtypes.bfloat16)
    assert convert(numbers, DType.bfloat16) is numbers


@each("dtype", [d for d in KINDS if KINDS[d].has_infinity], ids=str)
def test_overflow_counts_finite_numbers_that_became_infinite(dtype: DType) -> None:
    largest = KINDS[dtype].largest
    kind = np.float32 if dtype is DType.float64 else np.float64
    numbers = np.array([1, -1e30, inf, -inf, nan, 0, min(largest * (1 + 1e-6), 1e30)], kind)
    found = convert(numbers, dtype)
    became = np.isinf(found.astype(np.float64)) & np.isfinite(numbers)
    assert overflow(numbers, found) == became.sum()


def test_what_rounds_down_to_the_largest_is_not_an_overflow() -> None:
    numbers = np.array([65504, 65519.9, -65519.9])
    found = convert(numbers, DType.float16)
    assert found.tolist() == [65504, 65504, -65504]
    assert overflow(numbers, found) == 0
    numbers = np.array([65519.9, 65520, -1e9])
    assert overflow(numbers, convert(numbers, DType.float16)) == 2


@each("dtype", [d for d in KINDS if not KINDS[d].has_infinity], ids=str)
def test_overflow_counts_what_is_held_at_the_largest(dtype: DType) -> None:
    largest = KINDS[dtype].largest
    numbers = np.array([0, 1, largest, -largest, 2 * largest, -1e300, inf, -inf])
    assert overflow(numbers, convert(numbers, dtype)) == 4


def test_overflow_counts_integers_too() -> None:
    numbers = np.array([65504, -70000, 1 << 40])
    assert overflow(numbers, convert(numbers, DType.float16)) == 2


@each("dtype", DType, ids=lambda d: d.value)
def test_unpacked_numbers_pack_into_the_same_bytes(dtype: DType) -> None:
    raw = np.random.default_rng(1).integers(0, 2, (3, 16), np.uint8)
    numbers = unpack(raw, dtype)
    assert numbers.dtype == numpy_dtype(dtype)
    assert numbers.shape == (3, 16 // dtype.encoding.size * dtype.encoding.block)
    assert np.array_equal(pack(numbers), raw)


def test_float4_comes_in_pairs_the_first_in_the_low_bits() -> None:
    raw = np.array([[0x21, 0xF7]], np.uint8)
    assert unpack(raw, DType.float4_e2m1fn).astype(float).tolist() == [[0.5, 1, 6, -6]]
    with pytest.raises(EncodingError, match="so a row must have an even number of elements, not 3"):
        pack(np.ones((2, 3), ml_dtypes.float4_e2m1fn))


@each("dtype", [d for d in DType if d.is_float], ids=lambda d: d.value)
def test_the_codec_of_a_float_encodes_what_it_decodes(dtype: DType) -> None:
    rows = np.array([[1, 2, 4, 0.5], [4, 2, 1, 1]], np.float32)
    raw = np.empty((2, dtype.encoding.nbytes((4,))), np.uint8)
    scalar = definition(dtype.encoding)
    assert isinstance(scalar, ScalarCodec)
    scalar.encode(rows, None, raw)
    back = np.empty_like(rows)
    scalar.decode(raw, back)
    assert np.array_equal(back, rows)


@each("dtype", [DType.int8, DType.bool, DType.complex64], ids=str)
def test_the_codec_of_other_numbers_encodes_no_fractions(dtype: DType) -> None:
    with pytest.raises(EncodingError, match=f"float32 cannot be converted to {dtype.value}"):
        codec(dtype.encoding).encode(np.ones((1, 2), np.float32), None, np.empty((1, 2), np.uint8))


@each("source", [np.float32, np.float64])
def test_every_nan_is_a_quiet_one_in_float16(source: type[np.floating]) -> None:
    payloads = np.array([0x7F800001, 0xFF800001, 0x7FC00000, 0xFFE54321, 0x7FFFFFFF], np.uint32)
    with np.errstate(invalid="ignore"):
        numbers = payloads.view(np.float32).astype(source)
    found = convert(numbers, DType.float16).view(np.uint16).tolist()
    assert found == [0x7E00, 0xFE00, 0x7E00, 0xFF2A, 0x7FFF]


# What `is_exact` says is so for every number of the types that have few enough to try.


REAL = [dtype for dtype in DType if not dtype.is_complex]
SMALL = [dtype for dtype in REAL if dtype.encoding.size <= 2]


def all_codes(dtype: DType) -> Numbers:
    if dtype is DType.bool:
        return np.array([False, True])
    count = 1 << 8 * dtype.encoding.size
    return unpack(np.arange(count, dtype=f"u{dtype.encoding.size}").view(np.uint8), dtype)


def not_refused(numbers: Numbers, target: DType) -> Numbers:
    """Return those numbers that `convert` takes."""
    with np.errstate(invalid="ignore"):
        values = numbers.astype(np.float64)
    if target is DType.float8_e8m0fnu:
        return numbers[~(values <= 0)]
    if target is DType.float4_e2m1fn:
        return numbers[~np.isnan(values)]
    if target.is_integer:
        limits = np.iinfo(target.value)
        return numbers[(values >= limits.min) & (values <= limits.max)]
    return numbers


@each("target", REAL, ids=lambda dtype: dtype.value)
@each("source", SMALL, ids=lambda dtype: dtype.value)
def test_a_conversion_is_exact_if_it_changes_no_number(source: DType, target: DType) -> None:
    if source.is_float and not target.is_float:
        assert not is_exact(source.encoding, target.encoding)
        return
    numbers = not_refused(all_codes(source), target)
    with np.errstate(invalid="ignore"):
        before = numbers.astype(np.float64)
        after = convert(numbers, target).astype(np.float64)
    is_unchanged = np.array_equal(before, after, equal_nan=True)
    assert is_exact(source.encoding, target.encoding) is is_unchanged


@each(
    "source, target, expected",
    [
        ("F32", "F64", True), ("F64", "F32", False), ("F32", "F16", False), ("F32", "BF16", False),
        ("F32", "F8_E8M0", False), ("F64", "F8_E4M3", False), ("F64", "F64", True),
        ("I32", "F64", True), ("U32", "F64", True), ("I32", "F32", False), ("U32", "F32", False),
        ("I64", "F64", False), ("U64", "F64", False), ("I64", "I8", True), ("U64", "I64", True),
        ("I64", "BOOL", False), ("F32", "I32", False), ("C64", "F64", False), ("F32", "C64", False),
    ],
)  # fmt: skip
def test_of_wide_types_too(source: str, target: str, expected: bool) -> None:
    assert is_exact(ENCODINGS[source], ENCODINGS[target]) is expected


@each("target", ENCODINGS.values(), ids=str)
@each("source", ["Q8_0", "Q4_K", "IQ2_XS", "MXFP4"])
def test_blocks_are_float32_numbers(source: str, target: object) -> None:
    assert target in ENCODINGS.values()
    expected = str(target) in {source, "F32", "F64"}
    assert is_exact(ENCODINGS[source], ENCODINGS[str(target)]) is expected


@each("source", ENCODINGS.values(), ids=str)
def test_to_blocks_only_the_same_blocks_are_exact(source: object) -> None:
    for target in ("Q8_0", "Q5_0", "Q4_K"):
        assert is_exact(ENCODINGS[str(source)], ENCODINGS[target]) is (str(source) == target)


# The fast ways between float32 and narrower floats give the bits of NumPy and ml_dtypes.


OF_UP_TO_16_BITS = [d for d in DType if d.is_float and d.encoding.size <= 2]
to_each = each("dtype", LAYOUTS, ids=lambda dtype: dtype.value)
from_each = each("source", OF_UP_TO_16_BITS, ids=lambda dtype: dtype.value)


def bits(numbers: NDArray[np.generic]) -> NDArray[np.generic]:
    return numbers.view(f"u{numbers.itemsize}")


def codes(dtype: DType) -> NDArray[np.generic]:
    """Return a number for each code of a type; of float4 there are sixteen."""
    size = dtype.encoding.size
    count = 16 if dtype is DType.float4_e2m1fn else 1 << 8 * size
    numbers: NDArray[np.generic] = np.arange(count, dtype=f"u{size}").view(numpy_dtype(dtype))
    return numbers


def float32_of_all_exponents() -> NDArray[np.float32]:
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
    numbers = float32_of_all_exponents().reshape(-1)
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
@each("measure", [False, True])
def test_numbers_that_are_too_large_or_not_finite_change_nothing(
    dtype: DType, measure: bool
) -> None:
    # Each row by itself: it takes one such number for another way.
    for numbers in float32_of_all_exponents():
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


@each("size", [1, (1 << 17) - 1, 1 << 17, (1 << 18) + 3])
def test_numbers_of_any_count_are_recast(size: int) -> None:
    numbers = np.random.default_rng(3).standard_normal((3, size), np.float32)
    for dtype in LAYOUTS:
        made, loss = recast(numbers, dtype, measure=True)
        assert made.shape == numbers.shape
        assert np.array_equal(bits(made), bits(convert(numbers, dtype)))
        assert loss.count == 3 * size

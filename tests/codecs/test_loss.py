from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import isnan, sqrt
from typing import TYPE_CHECKING

import numpy as np
import pytest

from rows import required
from weightctl.codecs import Loss, Transcoded, codec, is_exact, transcode
from weightctl.codecs.recasting import recast
from weightctl.codecs.scalar import convert, numpy_dtype, overflow, pack, unpack
from weightctl.dtype import ENCODINGS, DType, Encoding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

FLOATS = [e for e in ENCODINGS.values() if e.dtype is not None and e.dtype.is_float]
BLOCKS = [e for e in ENCODINGS.values() if e.codec]
LOSSY = [
    (source, target)
    for source in [*FLOATS, *BLOCKS]
    for target in [*FLOATS, *BLOCKS]
    # What float8_e8m0fnu and float4 cannot hold at all is refused; see `test_scalar.py`.
    if not is_exact(source, target) and target.name not in {"F8_E8M0", "F4"}
]
each_lossy = pytest.mark.parametrize(("source", "target"), LOSSY, ids=str)
COUNT = 2 * 256 * 263  # more than a tile, and no whole number of chunks
F32_ = ENCODINGS["F32"]


def transcoded(raw: U8, source: Encoding, target: Encoding, *, measure: bool = False) -> Transcoded:
    """Transcode rows, with equal importance of all columns where a type needs some."""
    columns = np.empty((0, raw.shape[1] // source.size * source.block), np.float32)
    return transcode(raw, source, target, required(target.name, columns, None), measure=measure)


def rows_of(encoding: Encoding, numbers: NDArray[np.floating]) -> U8:
    """Return numbers encoded, as two rows."""
    rows = numbers.reshape(2, -1)
    if encoding.dtype is DType.float8_e8m0fnu:
        rows = np.abs(rows) + 1e-9
    if encoding.dtype is DType.float4_e2m1fn:
        rows = rows * 100
    if encoding.dtype is None:
        return transcoded(rows.astype(np.float32).view(np.uint8), F32_, encoding).raw
    if encoding.dtype.is_integer:
        rows = rows.astype(np.int64)
    return pack(convert(rows, encoding.dtype))


def numbers_of(raw: U8, encoding: Encoding) -> NDArray[np.float64]:
    if encoding.dtype is None:
        made: F32 = np.empty((len(raw), raw.shape[1] // encoding.size * encoding.block), np.float32)
        codec(encoding).decode(raw, made)
        return made.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return unpack(raw, encoding.dtype).astype(np.float64)


def defined(raw: U8, source: Encoding, target: Encoding) -> Loss:
    """Measure in the plainest way, all in float64."""
    made = transcoded(raw, source, target).raw
    x, held = numbers_of(raw, source), numbers_of(made, target)
    overflows = 0
    if target.dtype is not None:
        overflows = overflow(x, unpack(made, target.dtype))
    counted = np.isfinite(x) & np.isfinite(held)
    underflows = 0 if target.dtype is None else int(np.sum((x != 0) & (held == 0)))
    x, held = x[counted], held[counted]
    squares, error = float(np.sum(x**2)), float(np.sum((x - held) ** 2))
    return Loss(made.size // target.size * target.block, overflows, underflows, squares, error)


def measured(raw: U8, source: Encoding, target: Encoding) -> Loss:
    loss = transcoded(raw, source, target, measure=True).loss
    assert loss is not None
    return loss


def assert_same(loss: Loss, expected: Loss) -> None:
    sums = ("squares", "squared_error")
    for name in sums:
        assert getattr(loss, name) == pytest.approx(getattr(expected, name), rel=2e-6, abs=0)
    both = (replace(each, squares=0, squared_error=0) for each in (loss, expected))
    assert next(both) == next(both)


def weights(size: float = 0.02) -> NDArray[np.float64]:
    return np.random.default_rng(1).standard_normal(COUNT) * size


@each_lossy
def test_weights_are_measured_as_defined(source: Encoding, target: Encoding) -> None:
    raw = rows_of(source, weights())
    loss = measured(raw, source, target)
    assert_same(loss, defined(raw, source, target))
    assert loss.relative_rmse == pytest.approx(sqrt(loss.squared_error / loss.squares))


@each_lossy
def test_measuring_changes_no_bytes(source: Encoding, target: Encoding) -> None:
    raw = rows_of(source, weights())
    made = transcoded(raw, source, target, measure=True).raw
    assert np.array_equal(made, transcoded(raw, source, target).raw)


PLAIN = [(source, target) for source, target in LOSSY if source.dtype and target.dtype]


@pytest.mark.parametrize(("source", "target"), PLAIN, ids=str)
def test_what_is_not_finite_or_too_large_is_measured_as_defined(
    source: Encoding, target: Encoding
) -> None:
    numbers = weights()
    numbers[::1000] *= 1e30
    numbers[5::7000] = np.inf
    numbers[6::7000] = -np.inf
    # In one tile alone, the last.
    numbers[-5::300] = 0 if source.name in {"F4", "F8_E8M0"} else np.nan
    raw = rows_of(source, numbers)
    loss = measured(raw, source, target)
    assert_same(loss, defined(raw, source, target))
    assert np.isfinite(loss.relative_rmse)
    unmeasured = transcoded(raw, source, target).loss
    assert unmeasured is not None
    assert unmeasured.overflows == loss.overflows
    assert unmeasured.count == loss.count


@pytest.mark.parametrize("target", ["F16", "BF16", "F8_E4M3", "F8_E5M2", "Q8_0", "Q5_0", "Q4_K"])
@pytest.mark.parametrize("exponent", [-46, -44, -38, -30, -22, -19, -15, -3, 0, 2, 4])
def test_numbers_of_any_size_are_measured(exponent: int, target: str) -> None:
    raw = rows_of(F32_, weights(10.0**exponent))
    assert_same(measured(raw, F32_, ENCODINGS[target]), defined(raw, F32_, ENCODINGS[target]))


@pytest.mark.parametrize("exponent", [15, 18, 19, 20, 30, 37])
def test_numbers_whose_squares_float32_cannot_hold_are_measured(exponent: int) -> None:
    raw = rows_of(F32_, weights(10.0**exponent))
    for target in ("BF16", "F8_E4M3"):
        assert_same(measured(raw, F32_, ENCODINGS[target]), defined(raw, F32_, ENCODINGS[target]))


def test_one_large_number_hides_no_others() -> None:
    numbers = weights()
    numbers[-1] = 1e25
    numbers = numbers.astype(np.float32)
    loss = measured(numbers.view(np.uint8).reshape(1, -1), F32_, ENCODINGS["BF16"])
    squares = (numbers.astype(np.float64) ** 2).sum()
    error = (numbers[-1].astype(np.float64) - float(convert(numbers[-1:], DType.bfloat16)[0])) ** 2
    assert loss.squares == pytest.approx(squares)
    assert loss.squared_error == pytest.approx(error)


def test_weights_that_fit_lose_nothing() -> None:
    numbers = convert(weights(), DType.bfloat16).astype(np.float32)
    loss = measured(numbers.view(np.uint8).reshape(1, -1), F32_, ENCODINGS["BF16"])
    assert (loss.squared_error, loss.overflows, loss.underflows) == (0, 0, 0)
    assert loss.relative_rmse == 0
    assert loss.squares > 0


@pytest.mark.parametrize("target", ["F16", "Q8_0", "Q4_K", "F64", "F8_E4M3FNUZ"])
def test_zeros_and_no_numbers_lose_nothing(target: str) -> None:
    for count in (0, 512):
        raw = np.zeros((1, 8 * count), np.uint8)
        source = ENCODINGS["I64" if target == "F64" else "F64"]
        loss = measured(raw, source, ENCODINGS[target])
        assert loss == Loss(count)
        assert loss.relative_rmse == 0


def test_underflows_are_counted_and_zeros_are_none() -> None:
    numbers = np.array([[1, 1e-9, -1e-9, 0, -0.0, 1e-40, 2.0**-24, 2.0**-25]], np.float32)
    loss = measured(numbers.view(np.uint8), F32_, ENCODINGS["F16"])
    assert loss.underflows == 4
    assert measured(numbers.view(np.uint8), F32_, ENCODINGS["BF16"]).underflows == 0


def test_a_zero_in_a_block_is_not_an_underflow() -> None:
    numbers = np.full((1, 32), 1e-9, np.float32)
    numbers[0, 0] = 1
    loss = measured(numbers.view(np.uint8), F32_, ENCODINGS["Q8_0"])
    assert loss.underflows == 0
    assert loss.squared_error > 0


def test_what_is_held_at_the_largest_number_is_in_the_sums() -> None:
    numbers = np.array([[1, 1000, np.inf]], np.float32)
    loss = measured(numbers.view(np.uint8), F32_, ENCODINGS["F8_E4M3"])
    assert loss == Loss(3, 2, 0, 1 + 1000.0**2, (1000 - 448.0) ** 2)


def test_what_became_infinite_is_not() -> None:
    numbers = np.array([[1, 1e6, np.inf, np.nan]], np.float32)
    loss = measured(numbers.view(np.uint8), F32_, ENCODINGS["F16"])
    assert loss == Loss(4, 1, 0, 1, 0)


def test_float64_beyond_all_measure_is_measured() -> None:
    huge, tiny = (np.full((1, 4), number).view(np.uint8) for number in (1e300, 1e-300))
    assert measured(huge, ENCODINGS["F64"], ENCODINGS["F8_E4M3"]).relative_rmse == 1
    assert measured(tiny, ENCODINGS["F64"], F32_).relative_rmse == 1


@pytest.mark.parametrize("source", ["I64", "U64"])
@pytest.mark.parametrize("target", ["F64", "F32", "BF16", "F8_E5M2FNUZ"])
def test_integers_too_wide_for_float64_are_measured(source: str, target: str) -> None:
    numbers = np.random.default_rng(3).integers(1 << 40, (1 << 63) - 1, (1, 99))
    numbers[0, :9] = 2**53 + np.arange(9)
    if source == "I64":
        numbers[0, 20:] *= -1
    made, loss = transcoded(
        numbers.view(np.uint8), ENCODINGS[source], ENCODINGS[target], measure=True
    )
    held = made.view(numpy_dtype(DType(ENCODINGS[target].dtype))).astype(np.float64)[0]
    pairs = list(zip(numbers[0].tolist(), held.tolist(), strict=True))
    assert loss is not None
    assert loss.squares == pytest.approx(float(sum(n**2 for n, _ in pairs)))
    error = sum((n - Fraction(h)) ** 2 for n, h in pairs)
    assert loss.squared_error == pytest.approx(float(error))


def test_integers_that_become_truth_values_are_measured() -> None:
    raw = np.array([[0, 1, 5]], np.uint8)
    assert measured(raw, ENCODINGS["U8"], ENCODINGS["BOOL"]) == Loss(3, 0, 0, 26, 16)


@each_lossy
def test_only_overflows_are_counted_unless_asked(source: Encoding, target: Encoding) -> None:
    loss = transcoded(rows_of(source, weights()), source, target).loss
    assert loss is not None
    assert isnan(loss.relative_rmse)


@pytest.mark.parametrize("measure", [False, True])
def test_what_is_exact_has_no_loss(measure: bool) -> None:
    for source in [*FLOATS, *BLOCKS]:
        raw = rows_of(source, weights())
        for target in FLOATS:
            if is_exact(source, target):
                assert transcoded(raw, source, target, measure=measure).loss is None


@pytest.mark.parametrize("target", ["F16", "BF16", "Q8_0"])
def test_the_losses_of_pieces_add_up(target: str) -> None:
    raw = rows_of(F32_, weights()).reshape(1, -1)
    whole = measured(raw, F32_, ENCODINGS[target])
    cuts = [0, 4 * 32, 4 * 3200, 4 * 77_760, raw.size]
    parts = [measured(raw[:, cut:end], F32_, ENCODINGS[target]) for cut, end in pairwise(cuts)]
    assert_same(sum(parts, Loss(0)), whole)


def test_relative_rmse_is_defined_without_squares() -> None:
    assert Loss(5).relative_rmse == 0
    assert Loss(5, underflows=1).relative_rmse == 1
    assert Loss(5, squared_error=1e-9).relative_rmse == 1
    assert Loss(5, squares=4.0, squared_error=1.0).relative_rmse == 0.5


def test_rows_that_do_not_follow_one_another_are_measured() -> None:
    raw = rows_of(F32_, weights()).reshape(8, -1)
    for target in ("F16", "BF16", "Q8_0"):
        apart = measured(raw[::2], F32_, ENCODINGS[target])
        assert_same(apart, measured(raw[::2].copy(), F32_, ENCODINGS[target]))


def test_recasting_leaves_the_numbers_alone() -> None:
    numbers = weights().astype(np.float32)
    before = numbers.copy()
    numbers.flags.writeable = False
    for dtype in (DType.float16, DType.bfloat16, DType.float8_e4m3fn):
        recast(numbers, dtype, measure=True)
    assert np.array_equal(numbers, before)

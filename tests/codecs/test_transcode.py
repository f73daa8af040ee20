"""Rows of one encoding become rows of another, and what is lost is measured."""

from __future__ import annotations

import pickle
import tracemalloc
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import isnan, sqrt
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from each import each
from rows import required
from weightctl import DType, QuantizationEncoding
from weightctl.codecs import Loss, Transcoded, can_decode, can_encode, codec, is_exact, transcode
from weightctl.codecs.scalar import convert, numpy_dtype, overflow, pack, unpack
from weightctl.codecs.transcoding import recast
from weightctl.dtype import ENCODINGS, Encoding, unknown_encoding
from weightctl.errors import EncodingError, NonFiniteError
from weightctl.write.tasks import _WORKING

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

DECODED = [e for e in ENCODINGS.values() if can_decode(e)]
ENCODED = [e for e in ENCODINGS.values() if can_encode(e)]
BLOCKS = [e for e in ENCODINGS.values() if e.codec]
ROWS, COLUMNS = 4, 512


# The gguf package decodes all others.
UNKNOWN = {"Q1_0", "Q2_0"}


def reference(raw: U8, encoding: Encoding) -> F32:
    if encoding.name in UNKNOWN:
        values = np.empty((len(raw), raw.shape[1] // encoding.size * encoding.block), np.float32)
        codec(encoding).decode(raw, values)
        return values
    with np.errstate(all="ignore"):
        return dequantize(raw, GGMLQuantizationType[encoding.name])


@each("encoding, levels", [("Q1_0", [-1, 1]), ("Q2_0", [-1, 0, 1, 2])], ids=["Q1_0", "Q2_0"])
def test_levels_are_in_order_of_the_bits(encoding: str, levels: list[int]) -> None:
    kind = ENCODINGS[encoding]
    chosen = np.random.default_rng(6).integers(0, len(levels), kind.block)
    number = sum(int(level) << i * (len(levels) // 2) for i, level in enumerate(chosen))
    raw = np.frombuffer(np.float16(0.25).tobytes() + number.to_bytes(16, "little"), np.uint8)
    values = np.empty((1, kind.block), np.float32)
    codec(kind).decode(raw.reshape(1, -1), values)
    assert np.array_equal(values[0], np.array(levels)[chosen] * np.float32(0.25))


def random_blocks(encoding: Encoding) -> U8:
    """Return rows of random blocks, none of which gives an infinity, NaN or huge numbers."""
    need = ROWS * COLUMNS // encoding.block
    raw = np.random.default_rng(int(encoding.ids["gguf"])).integers(
        0, 256, (4 * need, encoding.size), np.uint8
    )
    values = reference(raw, encoding)
    finite = np.isfinite(values).all(axis=1)
    # Nor a number that could overflow the scale of another block.
    sound = raw[finite & (np.abs(np.where(finite[:, None], values, 0)).max(axis=1) < 65504)]
    assert len(sound) >= need
    return np.ascontiguousarray(sound[:need]).reshape(ROWS, -1)


def random_numbers(dtype: DType) -> NDArray[np.float64]:
    """Return rows of numbers that every type has room for; those of a scale are powers of two."""
    generator = np.random.default_rng(5)
    if dtype is DType.float8_e8m0fnu:
        return 2.0 ** generator.integers(0, 6, (ROWS, COLUMNS))
    if dtype.is_float:
        return generator.uniform(0.25, 6, (ROWS, COLUMNS))
    return generator.integers(1, 2 if dtype is DType.bool else 100, (ROWS, COLUMNS)).astype(float)


def rows_of(encoding: Encoding) -> tuple[U8, F32 | NDArray[np.float64]]:
    """Return the bytes of rows and the numbers that they stand for."""
    if encoding.dtype is None:
        raw = random_blocks(encoding)
        return raw, reference(raw, encoding)
    numbers = random_numbers(encoding.dtype).astype(numpy_dtype(encoding.dtype))
    return pack(numbers), numbers.real.astype(np.float64)


def required_by(encoding: Encoding) -> F32 | None:
    """Return importance where a type needs some."""
    return required(encoding.name, np.empty((ROWS, COLUMNS), np.float32), None)


def leads_nowhere(source: Encoding, target: Encoding) -> bool:
    """Whether the one cannot become the other."""
    from_, to = source.dtype, target.dtype
    if any(dtype is not None and dtype.is_complex for dtype in (from_, to)):
        return True
    if to is DType.float8_e8m0fnu and from_ is None:
        return True  # blocks have numbers that are not positive
    return (from_ is None or from_.is_float) and to is not None and not to.is_float


@each("source, target", [(s, t) for s in DECODED for t in ENCODED], ids=str)
def test_transcoding_is_decoding_and_encoding(source: Encoding, target: Encoding) -> None:
    raw, numbers = rows_of(source)
    if source == target:
        assert transcode(raw, source, target).raw is raw
        return
    if leads_nowhere(source, target):
        with pytest.raises(EncodingError):
            transcode(raw, source, target)
        return
    if target.name == "NVFP4" and np.abs(numbers.astype(np.float64)).max() > 2688:
        with pytest.raises(NonFiniteError):
            transcode(raw, source, target)
        return
    made, _ = transcode(raw, source, target, required_by(target))
    expected = np.empty((ROWS, COLUMNS // target.block * target.size), np.uint8)
    if target.dtype is None:
        codec(target).encode(numbers.astype(np.float32), required_by(target), expected)
    elif target.dtype.is_float:
        expected = pack(convert(numbers, target.dtype))
    else:
        expected = pack(numbers.astype(numpy_dtype(target.dtype)))
    assert made.dtype == np.uint8
    assert made.shape == expected.shape
    assert np.array_equal(made, expected)


@each("encoding", BLOCKS, ids=str)
def test_blocks_are_decoded_as_the_gguf_package_does(encoding: Encoding) -> None:
    raw = random_blocks(encoding)
    found = np.empty((ROWS, COLUMNS), np.float32)
    codec(encoding).decode(raw, found)
    assert np.array_equal(found, reference(raw, encoding))
    as_float64 = transcode(raw, encoding, DType.float64.encoding).raw.view(np.float64)
    assert np.array_equal(as_float64, found)


@each("encoding", BLOCKS, ids=str)
def test_blocks_of_any_bytes_are_decoded_without_a_warning(encoding: Encoding) -> None:
    raw = np.random.default_rng(9).integers(0, 256, (3, 40 * encoding.size), np.uint8)
    raw[0] = 255
    raw[1, : 20 * encoding.size] = 0
    found = transcode(raw, encoding, DType.float32.encoding).raw.view(np.float32)
    assert np.array_equal(found, reference(raw, encoding), equal_nan=True)


@each("encoding", BLOCKS, ids=str)
def test_no_rows_and_empty_rows_are_decoded(encoding: Encoding) -> None:
    for shape in ((0, encoding.size), (2, 0), (0, 0)):
        made, loss = transcode(np.empty(shape, np.uint8), encoding, DType.float16.encoding)
        assert made.shape == (shape[0], shape[1] // encoding.size * encoding.block * 2)
        assert loss is not None
        assert not loss.overflows


@each("encoding", BLOCKS, ids=str)
def test_no_rows_and_empty_rows_are_encoded(encoding: Encoding) -> None:
    for shape in ((0, 4 * encoding.block), (2, 0), (0, 0)):
        made, _ = transcode(np.empty(shape, np.uint8), DType.float32.encoding, encoding)
        assert made.shape == (shape[0], shape[1] // 4 // encoding.block * encoding.size)


def test_every_block_type_that_the_gguf_package_decodes_is_decoded() -> None:
    unread = {kind for kind in QuantizationEncoding if not can_decode(kind.encoding)}
    assert unread == {QuantizationEncoding.Q8_1, QuantizationEncoding.Q8_K}


@each("encoding", [e for e in ENCODINGS.values() if not can_decode(e)], ids=str)
def test_what_cannot_be_decoded_is_reported(encoding: Encoding) -> None:
    with pytest.raises(EncodingError, match=f"weightctl cannot read {encoding} data"):
        transcode(np.zeros((1, encoding.size), np.uint8), encoding, DType.float32.encoding)


def test_an_encoding_that_the_table_lacks_has_no_codec() -> None:
    with pytest.raises(EncodingError, match="weightctl cannot read gguf type 99 data"):
        codec(unknown_encoding("gguf", 99, 4, 8))


@each("target", [e for e in BLOCKS if e.needs_importance], ids=str)
def test_a_type_that_needs_importance_is_not_encoded_without(target: Encoding) -> None:
    rows = np.zeros((1, 4 * target.block), np.uint8)
    with pytest.raises(EncodingError, match=f"{target} needs an importance matrix"):
        transcode(rows, DType.float32.encoding, target)


@each("target", BLOCKS, ids=str)
@each("number", [np.nan, np.inf, -np.inf], ids=str)
def test_blocks_refuse_what_is_not_finite_and_name_it(target: Encoding, number: float) -> None:
    rows = np.zeros((2, target.block), np.float32)
    rows[1, 7:9] = number
    with pytest.raises(NonFiniteError, match=f"which {target} cannot hold") as caught:
        transcode(rows.view(np.uint8), DType.float32.encoding, target)
    assert caught.value.index == target.block + 7
    assert str(caught.value.value) == str(number)
    assert caught.value.encoding == target.name
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_what_is_too_large_for_float32_is_not_finite_in_blocks() -> None:
    rows = np.full((1, 32), 1e300)
    with pytest.raises(NonFiniteError, match="element 0 is inf"):
        transcode(rows.view(np.uint8), DType.float64.encoding, ENCODINGS["Q8_0"])


@each("target", [e for e in BLOCKS if e.name != "MXFP4"], ids=str)
def test_blocks_refuse_what_overflows_their_scale_and_name_it(target: Encoding) -> None:
    rows = np.zeros((2, target.block), np.float32)
    rows[1, 3] = 1e9
    with pytest.raises(NonFiniteError, match=r"is 1e\+09, which") as caught:
        transcode(
            rows.view(np.uint8), DType.float32.encoding, target, required(target.name, rows, None)
        )
    assert caught.value.index == target.block + 3


def test_blocks_of_mxfp4_hold_any_number() -> None:
    rows = np.zeros((2, 32), np.float32)
    rows[:, 3] = 1e9, -3e38
    made = transcode(rows.view(np.uint8), DType.float32.encoding, ENCODINGS["MXFP4"]).raw
    held = transcode(made, ENCODINGS["MXFP4"], DType.float32.encoding).raw.view(np.float32)
    np.testing.assert_allclose(held[:, 3], rows[:, 3], rtol=0.35)


@each("target, largest", [("NVFP4", 2688.0), ("IQ4_XS", 2.0**27)])
def test_what_would_saturate_or_vanish_in_blocks_is_refused(target: str, largest: float) -> None:
    kind = ENCODINGS[target]
    for number in (largest, -4 * largest, 1e20):
        rows = np.zeros((1, kind.block), np.float32)
        rows[0, 5] = number
        raw = rows.view(np.uint8)
        if abs(number) <= largest:
            transcode(raw, DType.float32.encoding, kind)
            continue
        with pytest.raises(NonFiniteError) as caught:
            transcode(raw, DType.float32.encoding, kind)
        assert caught.value.index == 5


@each("target, count", [("F16", 2), ("BF16", 0), ("F32", 0), ("F8_E4M3", 4), ("F8_E5M2", 2)])
def test_overflows_are_counted(target: str, count: int) -> None:
    rows = np.array([[1, 500, -70000], [np.nan, np.inf, 70000]], np.float64)
    made = transcode(rows.view(np.uint8), DType.float64.encoding, ENCODINGS[target])
    assert made.loss is not None
    assert made.loss.overflows == count


def test_importance_reaches_the_codec() -> None:
    target = ENCODINGS["Q4_K"]
    generator = np.random.default_rng(2)
    rows = generator.standard_normal((2, 512)).astype(np.float32)
    importance = generator.uniform(0, 9, 512).astype(np.float32)
    expected = np.empty((2, 288), np.uint8)
    codec(target).encode(rows, importance, expected)
    raw = rows.view(np.uint8)
    made = transcode(raw, DType.float32.encoding, target, importance).raw
    assert np.array_equal(made, expected)
    assert not np.array_equal(made, transcode(raw, DType.float32.encoding, target).raw)


FLOATS = [e for e in ENCODINGS.values() if e.dtype is not None and e.dtype.is_float]
LOSSY = [
    (source, target)
    for source in [*FLOATS, *BLOCKS]
    for target in [*FLOATS, *BLOCKS]
    # What float8_e8m0fnu and float4 cannot hold at all is refused; see `test_scalar.py`.
    if not is_exact(source, target) and target.name not in {"F8_E8M0", "F4"}
]
# One of each kind: wide and narrow, with and without infinity, and blocks.
SOME = ["F32", "BF16", "F8_E4M3", "Q4_K"]
COUNT = 2 * 256 * 263  # more than a tile, and no whole number of chunks
F32_ = ENCODINGS["F32"]


def transcoded(raw: U8, source: Encoding, target: Encoding, *, measure: bool = False) -> Transcoded:
    """Transcode rows, with equal importance of all columns where a type needs some."""
    columns = np.empty((0, raw.shape[1] // source.size * source.block), np.float32)
    return transcode(raw, source, target, required(target.name, columns, None), measure=measure)


def encoded(encoding: Encoding, numbers: NDArray[np.floating]) -> U8:
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


@cache
def weights_as(encoding: Encoding) -> U8:
    return encoded(encoding, weights())


def assert_measured_as_defined(source: Encoding, target: Encoding) -> None:
    raw = weights_as(source)
    made, loss = transcoded(raw, source, target, measure=True)
    unmeasured, counted = transcoded(raw, source, target)
    assert np.array_equal(made, unmeasured)
    assert loss is not None
    assert_same(loss, defined(raw, source, target))
    assert loss.relative_rmse == pytest.approx(sqrt(loss.squared_error / loss.squares))
    # Only overflows are counted unless asked.
    assert counted is not None
    assert isnan(counted.relative_rmse)


@each("source, target", [(s, t) for s, t in LOSSY if s.name in SOME or t.name in SOME], ids=str)
def test_weights_are_measured_as_defined(source: Encoding, target: Encoding) -> None:
    assert_measured_as_defined(source, target)


@pytest.mark.long
@pytest.mark.parametrize("source", [*FLOATS, *BLOCKS], ids=str)
@each("target", [*FLOATS, *BLOCKS], ids=str)
def test_weights_of_any_encoding_are_measured_as_defined(
    source: Encoding, target: Encoding
) -> None:
    if (source, target) in LOSSY:
        assert_measured_as_defined(source, target)


PLAIN = [(source, target) for source, target in LOSSY if source.dtype and target.dtype]


@each("source, target", PLAIN, ids=str)
def test_what_is_not_finite_or_too_large_is_measured_as_defined(
    source: Encoding, target: Encoding
) -> None:
    numbers = weights()
    numbers[::1000] *= 1e30
    numbers[5::7000] = np.inf
    numbers[6::7000] = -np.inf
    # In one tile alone, the last.
    numbers[-5::300] = 0 if source.name in {"F4", "F8_E8M0"} else np.nan
    raw = encoded(source, numbers)
    loss = measured(raw, source, target)
    assert_same(loss, defined(raw, source, target))
    assert np.isfinite(loss.relative_rmse)
    unmeasured = transcoded(raw, source, target).loss
    assert unmeasured is not None
    assert unmeasured.overflows == loss.overflows
    assert unmeasured.count == loss.count


@each("target", ["F16", "BF16", "F8_E4M3", "F8_E5M2", "Q8_0", "Q5_0", "Q4_K"])
@each("exponent", [-46, -44, -38, -30, -22, -19, -15, -3, 0, 2, 4])
def test_numbers_of_any_size_are_measured(exponent: int, target: str) -> None:
    raw = encoded(F32_, weights(10.0**exponent))
    assert_same(measured(raw, F32_, ENCODINGS[target]), defined(raw, F32_, ENCODINGS[target]))


@each("exponent", [15, 18, 19, 20, 30, 37])
def test_numbers_whose_squares_float32_cannot_hold_are_measured(exponent: int) -> None:
    raw = encoded(F32_, weights(10.0**exponent))
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


@each("target", ["F16", "Q8_0", "Q4_K", "F64", "F8_E4M3FNUZ"])
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


@each("source", ["I64", "U64"])
@each("target", ["F64", "F32", "BF16", "F8_E5M2FNUZ"])
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


@each("measure", [False, True])
def test_what_is_exact_has_no_loss(measure: bool) -> None:
    for source in [*FLOATS, *BLOCKS]:
        raw = weights_as(source)
        for target in FLOATS:
            if is_exact(source, target):
                assert transcoded(raw, source, target, measure=measure).loss is None


@each("target", ["F16", "BF16", "Q8_0"])
def test_the_losses_of_pieces_add_up(target: str) -> None:
    raw = encoded(F32_, weights()).reshape(1, -1)
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
    raw = encoded(F32_, weights()).reshape(8, -1)
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


# Conversions keep to the memory that the executor reckons with.


SOURCES = [*FLOATS, *BLOCKS, ENCODINGS["I64"], ENCODINGS["U8"]]
F64 = ENCODINGS["F64"]


# In their blocks the scale is the greatest number, or the greatest number has its limit.
SMALL = {"Q2_0", "TQ1_0", "TQ2_0", "NVFP4"}


def is_impossible(source: Encoding, target: Encoding) -> bool:
    # Blocks have zeros, and an exponent alone is none.
    return source.dtype is None and target.name == "F8_E8M0"


PIECES = [
    *((s, t) for s in SOURCES for t in FLOATS if s != t and not is_impossible(s, t)),
    *((ENCODINGS[s], t) for s in ("F64", "BF16", "Q4_K") for t in BLOCKS if s != t.name),
]


def assert_within_memory(source: Encoding, target: Encoding) -> None:
    # As many numbers as the executor takes at a time; fewer where it is slow.
    numbers = np.random.default_rng(4).uniform(1, 6, (1, 1 << (17 if target.codec else 18)))
    made = [of(source, numbers)]
    if source.name in {"F64", "F32", "BF16", "I64"}:
        # What the fast ways leave to the slow ones, and what could overflow the scale of a block.
        numbers[0, ::1000] = 1e5 if target.name not in SMALL else 1e3
        made.append(of(source, numbers))
    importance = np.ones(numbers.size, np.float32) if target.codec else None
    # The tables of a type, which are made once in a process, do not count.
    first = made[0][:, : 1024 // source.block * source.size]
    transcode(first, source, target, None if importance is None else importance[:1024])
    for raw in made:
        tracemalloc.start()
        transcode(raw, source, target, importance, measure=True)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak + raw.nbytes <= _WORKING * numbers.size


# Every target from the widest source, and every source.
@each(
    "source, target", [(s, t) for s, t in PIECES if s == F64 or t.name in {"F64", "F16"}], ids=str
)
def test_a_piece_is_converted_and_measured_within_its_memory(
    source: Encoding, target: Encoding
) -> None:
    assert_within_memory(source, target)


@pytest.mark.long
@each("source, target", PIECES, ids=str)
def test_every_piece_is_converted_and_measured_within_its_memory(
    source: Encoding, target: Encoding
) -> None:
    assert_within_memory(source, target)


def of(encoding: Encoding, numbers: np.ndarray) -> np.ndarray:
    if encoding.dtype is not None and encoding.dtype.is_integer:
        return numbers.astype(encoding.dtype.value).view(np.uint8)
    importance = np.ones(numbers.size, np.float32) if encoding.needs_importance else None
    return transcode(numbers.view(np.uint8), F64, encoding, importance).raw

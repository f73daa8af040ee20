from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from rows import required
from weightctl import DType, QuantizationEncoding
from weightctl.codecs import can_decode, can_encode, codec, transcode
from weightctl.codecs.scalar import convert, numpy_dtype, pack
from weightctl.dtype import ENCODINGS, Encoding, unknown_encoding
from weightctl.errors import EncodingError, NonFiniteError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    U8 = NDArray[np.uint8]
    F32 = NDArray[np.float32]

DECODED = [e for e in ENCODINGS.values() if can_decode(e)]
ENCODED = [e for e in ENCODINGS.values() if can_encode(e)]
BLOCKS = [e for e in DECODED if e.quantization is not None]
ROWS, COLUMNS = 4, 512
PAIRS = pytest.mark.parametrize(
    ("source", "target"), [(s, t) for s in DECODED for t in ENCODED], ids=str
)


# The gguf package decodes all others.
UNKNOWN = {"Q1_0", "Q2_0"}


def reference(raw: U8, encoding: Encoding) -> F32:
    if encoding.name in UNKNOWN:
        values = np.empty((len(raw), raw.shape[1] // encoding.size * encoding.block), np.float32)
        codec(encoding).decode(raw, values)
        return values
    with np.errstate(all="ignore"):
        return dequantize(raw, GGMLQuantizationType[encoding.name])


@pytest.mark.parametrize(
    ("encoding", "levels"), [("Q1_0", [-1, 1]), ("Q2_0", [-1, 0, 1, 2])], ids=["Q1_0", "Q2_0"]
)
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


@PAIRS
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


@pytest.mark.parametrize("encoding", BLOCKS, ids=str)
def test_blocks_are_decoded_as_the_gguf_package_does(encoding: Encoding) -> None:
    raw = random_blocks(encoding)
    found = np.empty((ROWS, COLUMNS), np.float32)
    codec(encoding).decode(raw, found)
    assert np.array_equal(found, reference(raw, encoding))
    as_float64 = transcode(raw, encoding, DType.float64.encoding).raw.view(np.float64)
    assert np.array_equal(as_float64, found)


@pytest.mark.parametrize("encoding", BLOCKS, ids=str)
def test_blocks_of_any_bytes_are_decoded_without_a_warning(encoding: Encoding) -> None:
    raw = np.random.default_rng(9).integers(0, 256, (3, 40 * encoding.size), np.uint8)
    raw[0] = 255
    raw[1, : 20 * encoding.size] = 0
    found = transcode(raw, encoding, DType.float32.encoding).raw.view(np.float32)
    assert np.array_equal(found, reference(raw, encoding), equal_nan=True)


@pytest.mark.parametrize("encoding", BLOCKS, ids=str)
def test_no_rows_and_empty_rows_are_decoded(encoding: Encoding) -> None:
    for shape in ((0, encoding.size), (2, 0), (0, 0)):
        made, loss = transcode(np.empty(shape, np.uint8), encoding, DType.float16.encoding)
        assert made.shape == (shape[0], shape[1] // encoding.size * encoding.block * 2)
        assert loss is not None
        assert not loss.overflows


@pytest.mark.parametrize("encoding", [e for e in BLOCKS if can_encode(e)], ids=str)
def test_no_rows_and_empty_rows_are_encoded(encoding: Encoding) -> None:
    for shape in ((0, 4 * encoding.block), (2, 0), (0, 0)):
        made, _ = transcode(np.empty(shape, np.uint8), DType.float32.encoding, encoding)
        assert made.shape == (shape[0], shape[1] // 4 // encoding.block * encoding.size)


def test_every_block_type_that_the_gguf_package_decodes_is_decoded() -> None:
    unread = {kind for kind in QuantizationEncoding if not can_decode(kind.encoding)}
    assert unread == {QuantizationEncoding.Q8_1, QuantizationEncoding.Q8_K}


@pytest.mark.parametrize("encoding", [e for e in ENCODINGS.values() if not can_decode(e)], ids=str)
def test_what_cannot_be_decoded_is_reported(encoding: Encoding) -> None:
    with pytest.raises(EncodingError, match=f"weightctl cannot read {encoding} data"):
        transcode(np.zeros((1, encoding.size), np.uint8), encoding, DType.float32.encoding)


def test_an_encoding_that_the_table_lacks_has_no_codec() -> None:
    with pytest.raises(EncodingError, match="weightctl cannot read gguf type 99 data"):
        codec(unknown_encoding("gguf", 99, 4, 8))


@pytest.mark.parametrize("target", [e for e in BLOCKS if e.needs_importance], ids=str)
def test_a_type_that_needs_importance_is_not_encoded_without(target: Encoding) -> None:
    rows = np.zeros((1, 4 * target.block), np.uint8)
    with pytest.raises(EncodingError, match=f"{target} needs an importance matrix"):
        transcode(rows, DType.float32.encoding, target)


@pytest.mark.parametrize("target", [e for e in BLOCKS if can_encode(e)], ids=str)
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf], ids=str)
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


@pytest.mark.parametrize(
    "target", [e for e in BLOCKS if can_encode(e) and e.name != "MXFP4"], ids=str
)
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


@pytest.mark.parametrize(("target", "largest"), [("NVFP4", 2688.0), ("IQ4_XS", 2.0**27)])
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


@pytest.mark.parametrize(
    ("target", "count"), [("F16", 2), ("BF16", 0), ("F32", 0), ("F8_E4M3", 4), ("F8_E5M2", 2)]
)
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

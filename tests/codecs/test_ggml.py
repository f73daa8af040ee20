"""The NumPy encoders give the bytes that ggml gives, and decode them as the gguf package does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oracles import ggml_quantize
from weightctl.codecs import q4_k, q5_0, q8_0

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator

    from weightctl.codecs.base import F32, U8, Codec

CODECS: dict[str, Codec] = {"Q8_0": q8_0, "Q5_0": q5_0, "Q4_K": q4_k}
LAYOUTS = {"Q8_0": q8_0.BLOCK, "Q5_0": q5_0.BLOCK, "Q4_K": q4_k.BLOCK}
SCALES = {"Q8_0": ["scale"], "Q5_0": ["scale"], "Q4_K": ["scale", "min"]}
BLOCK = {"Q8_0": 32, "Q5_0": 32, "Q4_K": 256}
SHAPE = (40, 2560)
COLUMNS = SHAPE[1]


def normal(rng: Generator, size: float = 1.0) -> F32:
    with np.errstate(all="ignore"):
        numbers = (rng.standard_normal(SHAPE) * size).astype(np.float32)
    greatest = np.finfo(np.float32).max
    return np.clip(numbers, -greatest, greatest)


def bfloat16(rng: Generator) -> F32:
    return (normal(rng).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def outlier(rng: Generator) -> F32:
    rows = normal(rng)
    rows[:, 3::256] *= 1000
    return rows


def alone(rng: Generator) -> F32:
    rows = np.zeros(SHAPE, np.float32)
    rows[:, 7::256] = normal(rng)[:, 7::256]
    return rows


def sizes(rng: Generator, each: int, most: int) -> F32:
    """Normal numbers, every `each` of them of another order of magnitude, up to 10**`most`."""
    exponents = rng.uniform(-44, most, (SHAPE[0], COLUMNS // each)).repeat(each, axis=1)
    return (rng.standard_normal(SHAPE) * 10**exponents).astype(np.float32)


def halves(rng: Generator) -> F32:
    """Numbers between two levels of Q8_0, and their neighbours on either side."""
    rows = (rng.integers(-127, 127, SHAPE) + 0.5).astype(np.float32)
    rows = np.nextafter(rows, rows + rng.integers(-1, 2, SHAPE).astype(np.float32))
    rows[:, ::32] = 127
    return rows


def of_size(size: float) -> Callable[[Generator], F32]:
    return lambda rng: normal(rng, size)


def constant(value: float) -> Callable[[Generator], F32]:
    return lambda _: np.full(SHAPE, value, np.float32)


ROWS: dict[str, Callable[[Generator], F32]] = {
    "normal": normal,
    "bfloat16": bfloat16,
    "laplace": lambda rng: rng.laplace(size=SHAPE).astype(np.float32),
    "uniform": lambda rng: rng.uniform(-1, 1, SHAPE).astype(np.float32),
    "whole": lambda rng: np.round(normal(rng, 3)),
    "ternary": lambda rng: rng.integers(-1, 2, SHAPE).astype(np.float32),
    "sparse": lambda rng: normal(rng) * (rng.random(SHAPE) < 0.02),
    "zeros": constant(0.0),
    "negative-zeros": constant(-0.0),
    "both-zeros": lambda rng: np.copysign(np.float32(0), normal(rng)),
    "constant": constant(0.37),
    "negative-constant": constant(-0.37),
    "constant-blocks": lambda rng: normal(rng)[:, ::32].repeat(32, axis=1),
    "positive": lambda rng: np.abs(normal(rng)),
    "negative": lambda rng: -np.abs(normal(rng)),
    "near-one": lambda rng: 1 + normal(rng, 1e-6),
    "near-minus-one": lambda rng: -1 + normal(rng, 1e-6),
    "outlier": outlier,
    "alone": alone,
    "halves": halves,
    "sizes": lambda rng: sizes(rng, 1, 4),
    "block-sizes": lambda rng: sizes(rng, 32, 4),
    "huge-block-sizes": lambda rng: sizes(rng, 32, 37),
    **{
        f"1e{exponent}": of_size(10.0**exponent)
        for exponent in (-44, -40, -38, -36, -30, -20, -15, -8, 4, 6, 10, 18, 19, 30, 38)
    },
}
IMPORTANCE: dict[str, Callable[[Generator], F32 | None]] = {
    "none": lambda _: None,
    "ones": lambda _: np.ones(COLUMNS, np.float32),
    "gamma": lambda rng: rng.gamma(0.5, 1, COLUMNS).astype(np.float32),
    "some-zero": lambda rng: (rng.random(COLUMNS) * (rng.random(COLUMNS) < 0.5)).astype(np.float32),
    "all-zero": lambda _: np.zeros(COLUMNS, np.float32),
    "sizes": lambda rng: (10 ** rng.uniform(-12, 12, COLUMNS)).astype(np.float32),
}


def encoded(encoding: str, rows: F32, importance: F32 | None) -> U8:
    # Filled with a pattern, so that a byte left unwritten shows.
    columns = rows.shape[1] // BLOCK[encoding] * LAYOUTS[encoding].itemsize
    out = np.full((len(rows), columns), 0xA5, np.uint8)
    CODECS[encoding].encode(rows, importance, out)
    return out


def assert_as_ggml(encoding: str, rows: F32, importance: F32 | None) -> None:
    ours = encoded(encoding, rows, importance)
    theirs = ggml_quantize(encoding, rows, importance)
    layout = LAYOUTS[encoding]
    scales = [theirs.view(layout)[name] for name in SCALES[encoding]]
    finite = np.isfinite(scales).all(axis=0).repeat(layout.itemsize, axis=1)
    np.testing.assert_array_equal(ours[finite], theirs[finite])


@pytest.mark.parametrize("encoding", CODECS)
@pytest.mark.parametrize("importance", IMPORTANCE)
@pytest.mark.parametrize("rows", ROWS)
def test_encoding_gives_the_bytes_of_ggml(encoding: str, importance: str, rows: str) -> None:
    rng = np.random.default_rng(20)
    assert_as_ggml(encoding, ROWS[rows](rng), IMPORTANCE[importance](rng))


def test_many_blocks_of_q4_k_have_the_bytes_of_ggml() -> None:
    rng = np.random.default_rng(21)
    assert_as_ggml("Q4_K", rng.standard_normal((1024, 16 * 256), np.float32), None)


def test_many_sparse_blocks_of_q4_k_have_the_bytes_of_ggml() -> None:
    # In one block of ten thousand, the last of five passes over the sub-blocks' scales counts.
    rng = np.random.default_rng(28)
    rows = rng.standard_normal((1024, 16 * 256), np.float32)
    rows[rng.random(rows.shape, np.float32) > 0.02] = 0
    assert_as_ggml("Q4_K", rows, (10 ** rng.uniform(-12, 12, 16 * 256)).astype(np.float32))


@pytest.mark.parametrize("encoding", CODECS)
@pytest.mark.parametrize("shape", [(1, 256), (3, 256), (1, 64 * 1024 + 256), (2, 256 * 1024)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_any_length_have_the_bytes_of_ggml(
    encoding: str, shape: tuple[int, int], weighted: bool
) -> None:
    rng = np.random.default_rng(22)
    importance = rng.gamma(0.5, 1, shape[1]).astype(np.float32) if weighted else None
    assert_as_ggml(encoding, rng.standard_normal(shape).astype(np.float32), importance)


@pytest.mark.parametrize("encoding", CODECS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_part_of_a_larger_array_is_encoded_in_place(encoding: str, weighted: bool) -> None:
    rng = np.random.default_rng(23)
    importance = rng.random(COLUMNS, np.float32) if weighted else None
    rows = normal(rng)
    expected = encoded(encoding, rows, importance)
    wide_rows = np.concatenate([rows, rows], axis=1)
    wide_out = np.zeros((2 * len(rows), 2 * expected.shape[1]), np.uint8)
    part = wide_out[::2, : expected.shape[1]]
    CODECS[encoding].encode(wide_rows[:, :COLUMNS], importance, part)
    np.testing.assert_array_equal(part, expected)
    assert not wide_out[1::2].any()
    assert not wide_out[:, expected.shape[1] :].any()


finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("encoding", CODECS)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    rows=arrays(np.float32, (2, 256), elements=finite_floats),
    importance=st.none() | arrays(np.float32, 256, elements=st.floats(0, 1e6, width=32)),
)
def test_any_finite_numbers_have_the_bytes_of_ggml(
    encoding: str, rows: F32, importance: F32 | None
) -> None:
    assert_as_ggml(encoding, rows, importance)


def decoded(encoding: str, blocks: U8) -> F32:
    shape = (len(blocks), blocks.shape[1] // LAYOUTS[encoding].itemsize * BLOCK[encoding])
    out = np.full(shape, np.nan, np.float32)
    CODECS[encoding].decode(blocks, out)
    return out


def assert_decodes_as_gguf(encoding: str, blocks: U8) -> None:
    theirs = dequantize(blocks, GGMLQuantizationType[encoding])
    np.testing.assert_array_equal(decoded(encoding, blocks).view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize("encoding", CODECS)
@pytest.mark.parametrize("rows", ["normal", "negative", "1e-8", "both-zeros"])
def test_encoded_blocks_decode_as_in_the_gguf_package(encoding: str, rows: str) -> None:
    numbers = ROWS[rows](np.random.default_rng(24))
    assert_decodes_as_gguf(encoding, encoded(encoding, numbers, None))


@pytest.mark.parametrize("encoding", CODECS)
def test_any_blocks_with_finite_scales_decode_as_in_the_gguf_package(encoding: str) -> None:
    rng = np.random.default_rng(25)
    layout = LAYOUTS[encoding]
    blocks = rng.integers(0, 256, (40, 120 * layout.itemsize), np.uint8)
    for name in SCALES[encoding]:
        scale = blocks.view(layout)[name]
        scale[~np.isfinite(scale)] = 1
    assert_decodes_as_gguf(encoding, blocks)


@pytest.mark.parametrize("encoding", CODECS)
def test_a_part_of_a_larger_array_is_decoded_in_place(encoding: str) -> None:
    blocks = encoded(encoding, normal(np.random.default_rng(26)), None)
    expected = decoded(encoding, blocks)
    wide_blocks = np.concatenate([blocks, blocks], axis=1)
    wide_out = np.zeros((2 * len(blocks), 2 * COLUMNS), np.float32)
    part = wide_out[::2, :COLUMNS]
    CODECS[encoding].decode(wide_blocks[:, : blocks.shape[1]], part)
    np.testing.assert_array_equal(part, expected)
    assert not wide_out[1::2].any()
    assert not wide_out[:, COLUMNS:].any()


@pytest.mark.parametrize("encoding", CODECS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_neither_raise_nor_warn(
    encoding: str, weighted: bool, value: float
) -> None:
    rows = normal(np.random.default_rng(27))
    rows[::2, ::100] = value
    encoded(encoding, rows, np.ones(COLUMNS, np.float32) if weighted else None)


@pytest.mark.parametrize("encoding", CODECS)
def test_any_bytes_decode_without_a_warning(encoding: str) -> None:
    rng = np.random.default_rng(29)
    decoded(encoding, rng.integers(0, 256, (400, 120 * LAYOUTS[encoding].itemsize), np.uint8))


@pytest.mark.parametrize("encoding", CODECS)
@pytest.mark.parametrize("weighted", [False, True])
def test_no_rows_encode_and_decode_to_no_rows(encoding: str, weighted: bool) -> None:
    rows = np.empty((0, COLUMNS), np.float32)
    blocks = encoded(encoding, rows, np.ones(COLUMNS, np.float32) if weighted else None)
    assert len(blocks) == 0
    assert len(decoded(encoding, blocks)) == 0

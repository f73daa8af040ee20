"""The kernels of every instruction set give the bytes of the definition in NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from rows import (
    BLOCKS,
    COLUMNS,
    GRIDS,
    IMPORTANCE,
    ROWS,
    blocks_of_example,
    decoded,
    encoded,
    example,
    normal,
    required,
    twins,
)
from weightctl.codecs import definition
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8


def assert_twins_agree(encoding: str, rows: F32, importance: F32 | None) -> None:
    expected = encoded(definition(ENCODINGS[encoding]), encoding, rows, importance)
    assert_twins_give(expected, encoding, rows, importance)


def assert_twins_give(
    expected: U8, encoding: str, rows: F32, importance: F32 | None, about: str = ""
) -> None:
    (_, plain), *compiled = twins(encoding)
    numbers = decoded(plain, encoding, expected)
    for name, codec in compiled:
        ours = encoded(codec, encoding, rows, importance)
        np.testing.assert_array_equal(ours, expected, f"{name} {about}")
        held = decoded(codec, encoding, ours)
        np.testing.assert_array_equal(held.view(np.uint32), numbers.view(np.uint32), name)


@pytest.mark.parametrize("encoding", BLOCKS)
@pytest.mark.parametrize("rows", ROWS)
def test_twins_make_the_same_bytes(encoding: str, rows: str) -> None:
    for name in IMPORTANCE:
        expected = blocks_of_example(encoding, rows, name)
        assert_twins_give(expected, encoding, *example(rows, name), name)


@pytest.mark.parametrize("encoding", BLOCKS)
@pytest.mark.parametrize("weighted", [False, True])
def test_twins_make_the_same_bytes_of_many_blocks(encoding: str, weighted: bool) -> None:
    rng = np.random.default_rng(21)
    importance = rng.gamma(0.5, 1, 2048).astype(np.float32) if weighted else None
    count = 16 if encoding in GRIDS else 256
    assert_twins_agree(encoding, rng.standard_normal((count, 2048), np.float32), importance)


@pytest.mark.parametrize("encoding", BLOCKS)
def test_any_bytes_decode_to_the_same_numbers(encoding: str) -> None:
    rng = np.random.default_rng(32)
    blocks = rng.integers(0, 256, (40, 120 * ENCODINGS[encoding].size), np.uint8)
    (_, plain), *compiled = twins(encoding)
    expected = decoded(plain, encoding, blocks)
    for name, codec in compiled:
        ours = decoded(codec, encoding, blocks)
        np.testing.assert_array_equal(np.isnan(ours), np.isnan(expected), name)
        held = ~np.isnan(ours)
        np.testing.assert_array_equal(ours.view("u4")[held], expected.view("u4")[held], name)


@pytest.mark.parametrize("encoding", BLOCKS)
def test_any_number_of_blocks_is_decoded(encoding: str) -> None:
    rng = np.random.default_rng(30)
    size = ENCODINGS[encoding].size
    blocks = rng.integers(0, 256, (1, 40 * size), np.uint8)
    whole = decoded(definition(ENCODINGS[encoding]), encoding, blocks)
    for name, codec in twins(encoding):
        for count in range(1, 40):
            some = decoded(codec, encoding, blocks[:, : count * size])
            expected = whole[:, : some.shape[1]]
            np.testing.assert_array_equal(some, expected, err_msg=f"{name}, {count} blocks")


@pytest.mark.parametrize("encoding", BLOCKS)
def test_any_number_of_blocks_is_encoded(encoding: str) -> None:
    rng = np.random.default_rng(31)
    kind = ENCODINGS[encoding]
    rows = rng.standard_normal((1, 40 * kind.block), np.float32)
    whole = encoded(definition(kind), encoding, rows, None)
    for name, codec in twins(encoding):
        for count in range(1, 40):
            some = encoded(codec, encoding, rows[:, : count * kind.block], None)
            expected = whole[:, : count * kind.size]
            np.testing.assert_array_equal(some, expected, err_msg=f"{name}, {count} blocks")


@pytest.mark.parametrize("encoding", BLOCKS)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_part_of_a_larger_array_is_encoded_in_place(encoding: str, weighted: bool) -> None:
    rng = np.random.default_rng(23)
    importance = rng.random(COLUMNS, np.float32) if weighted else None
    rows = normal(rng)
    for _, codec in twins(encoding):
        expected = encoded(codec, encoding, rows, importance)
        wide_rows = np.concatenate([rows, rows], axis=1)
        wide_out = np.zeros((2 * len(rows), 2 * expected.shape[1]), np.uint8)
        part = wide_out[::2, : expected.shape[1]]
        codec.encode(wide_rows[:, :COLUMNS], required(encoding, rows, importance), part)
        np.testing.assert_array_equal(part, expected)
        assert not wide_out[1::2].any()
        assert not wide_out[:, expected.shape[1] :].any()


@pytest.mark.parametrize("encoding", BLOCKS)
def test_a_part_of_a_larger_array_is_decoded_in_place(encoding: str) -> None:
    for _, codec in twins(encoding):
        blocks = encoded(codec, encoding, normal(np.random.default_rng(26)), None)
        expected = decoded(codec, encoding, blocks)
        wide_blocks = np.concatenate([blocks, blocks], axis=1)
        wide_out = np.zeros((2 * len(blocks), 2 * COLUMNS), np.float32)
        part = wide_out[::2, :COLUMNS]
        codec.decode(wide_blocks[:, : blocks.shape[1]], part)
        np.testing.assert_array_equal(part, expected)
        assert not wide_out[1::2].any()
        assert not wide_out[:, COLUMNS:].any()


@pytest.mark.parametrize("encoding", BLOCKS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_neither_raise_nor_warn(
    encoding: str, weighted: bool, value: float
) -> None:
    rows = normal(np.random.default_rng(27))
    rows[::2, ::100] = value
    for _, codec in twins(encoding):
        encoded(codec, encoding, rows, np.ones(COLUMNS, np.float32) if weighted else None)


@pytest.mark.parametrize("encoding", BLOCKS)
@pytest.mark.parametrize("weighted", [False, True])
def test_no_rows_encode_and_decode_to_no_rows(encoding: str, weighted: bool) -> None:
    rows = np.empty((0, COLUMNS), np.float32)
    for _, codec in twins(encoding):
        weights = np.ones(COLUMNS, np.float32) if weighted else None
        blocks = encoded(codec, encoding, rows, weights)
        assert len(blocks) == 0
        assert len(decoded(codec, encoding, blocks)) == 0

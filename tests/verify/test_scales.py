"""Scales in blocks that no healthy tensor has are found, in every encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from build import Gguf, Tensor
from weightctl.codecs import can_encode, transcode
from weightctl.dtype import ENCODINGS
from weightctl.verify import Request, Subject
from weightctl.verify.checks.finite import check
from weightctl.verify.checks.finite.scales import form_of, read_codes

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.verify import Problem

    U8 = NDArray[np.uint8]

ROWS, COLUMNS = 40, 512
BLOCKS = [name for name, encoding in ENCODINGS.items() if encoding.quantization is not None]
# IQ1_M has the bits of its scale in those of others.
ENCODED = [
    name
    for name in BLOCKS
    if can_encode(ENCODINGS[name]) and not ENCODINGS[name].needs_importance and name != "IQ1_M"
]
# The field at the beginning of a block is a float16 scale that is never below zero.
POSITIVE = ["Q8_0", "Q4_1", "Q5_1", "Q4_K", "Q5_K"]


def blocks_of(encoding: str, spread: float = 0.05) -> U8:
    """Return the blocks of a matrix of bell-shaped numbers, some of them far out, in rows."""
    random = np.random.default_rng(8)
    numbers = random.standard_normal((ROWS, COLUMNS)).astype(np.float32) * np.float32(spread)
    numbers[random.random(numbers.shape) < 0.001] *= 8
    raw = numbers.view(np.uint8)
    return transcode(raw, ENCODINGS["F32"], ENCODINGS[encoding]).raw


def found_in(path: Path, encoding: str, raw: U8) -> tuple[Problem, ...]:
    """Return the problems of a GGUF file with one matrix of such blocks."""
    number = int(ENCODINGS[encoding].ids["gguf"])
    matrix = Tensor("blk.0.ffn_up.weight", (ROWS, COLUMNS), number, raw.tobytes())
    (path / "matrix.gguf").write_bytes(Gguf().file([matrix]))
    return check(Request(subject=Subject(path / "matrix.gguf"))).problems


def flipped(raw: U8, block: int, offset: int, bits: int, encoding: str) -> U8:
    """Return blocks of which one has other bits in the 16 at an offset."""
    changed = raw.copy().reshape(-1, ENCODINGS[encoding].size)
    changed[block, offset : offset + 2].view("<u2")[...] ^= np.uint16(bits)
    return changed.reshape(raw.shape)


@pytest.mark.parametrize("encoding", BLOCKS)
def test_it_is_known_where_the_scales_of_every_block_encoding_are(encoding: str) -> None:
    fields = ENCODINGS[encoding].scales
    size = ENCODINGS[encoding].size
    assert fields
    for field in fields:
        assert read_codes(field, np.zeros(3 * size, np.uint8), size).shape == (3, field.width)


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_healthy_matrix_has_no_problem(tmp_path: Path, encoding: str) -> None:
    assert not found_in(tmp_path, encoding, blocks_of(encoding))


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_scale_that_is_not_finite_is_found(tmp_path: Path, encoding: str) -> None:
    raw = blocks_of(encoding)
    field = ENCODINGS[encoding].scales[0]
    rows = raw.reshape(-1, ENCODINGS[encoding].size)
    form = form_of(field)
    width = np.dtype(form.kind).itemsize
    code = np.array([form.limit], form.kind).view(np.uint8)
    rows[70, field.offset : field.offset + width] = code
    (problem,) = found_in(tmp_path, encoding, rows.reshape(raw.shape))
    assert problem.where == "blk.0.ffn_up.weight"
    assert problem.cause is not None
    assert problem.cause.name == "scale"
    row = 70 * ENCODINGS[encoding].block // COLUMNS
    assert f"at [{row}, " in problem.text


@pytest.mark.parametrize("encoding", POSITIVE)
def test_a_sign_that_no_encoder_writes_is_found(tmp_path: Path, encoding: str) -> None:
    raw = flipped(blocks_of(encoding), 5, 0, 0x8000, encoding)
    (problem,) = found_in(tmp_path, encoding, raw)
    assert "negative" in problem.text


@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q4_K", "IQ4_NL", "IQ4_XS"])
def test_a_flipped_bit_that_makes_a_scale_enormous_is_found(tmp_path: Path, encoding: str) -> None:
    raw = flipped(blocks_of(encoding), 7, 0, 0x4000, encoding)
    (problem,) = found_in(tmp_path, encoding, raw)
    assert "1 block is implausibly large" in problem.text


def test_a_flipped_bit_that_makes_one_scale_vanish_is_found(tmp_path: Path) -> None:
    raw = flipped(blocks_of("Q8_0", spread=300), 7, 0, 0x4000, "Q8_0")
    (problem,) = found_in(tmp_path, "Q8_0", raw)
    assert "1 block is implausibly small" in problem.text


def test_blocks_whose_numbers_are_all_tiny_are_not_a_problem_beside_their_like(
    tmp_path: Path,
) -> None:
    random = np.random.default_rng(8)
    numbers = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    numbers[3] *= np.float32(1e-3)
    raw = transcode(numbers.view(np.uint8), ENCODINGS["F32"], ENCODINGS["Q8_0"]).raw
    assert not found_in(tmp_path, "Q8_0", raw)


def test_numbers_that_are_too_small_for_their_scales_are_reported(tmp_path: Path) -> None:
    (problem,) = found_in(tmp_path, "Q8_0", blocks_of("Q8_0", spread=3e-6))
    assert "too small for float16" in problem.text


def test_a_tensor_of_negative_scales_is_that_of_another_encoder(tmp_path: Path) -> None:
    blocks = blocks_of("Q8_0").reshape(-1, 34)
    blocks[::2, 1] |= 0x80
    assert not found_in(tmp_path, "Q8_0", blocks.reshape(ROWS, -1))


def test_rows_whose_scales_are_zero_are_found_where_numbers_cannot_be_decoded(
    tmp_path: Path,
) -> None:
    blocks = np.random.default_rng(8).integers(0, 256, (ROWS, 2 * 66), np.uint8)
    scales = blocks.reshape(-1, 66)[:, :2].view("<f2")
    scales[...] = 0.01
    assert not found_in(tmp_path, "IQ2_XXS", blocks)
    blocks[9].reshape(-1, 66)[:, :2] = 0
    (problem,) = found_in(tmp_path, "IQ2_XXS", blocks)
    assert "row 9" in problem.text


def test_rows_of_zeros_are_found_whatever_their_scales_are(tmp_path: Path) -> None:
    rows = blocks_of("Q8_0").reshape(ROWS, -1, 34)
    rows[11, :, 2:] = 0
    rows[12, 0, 2:] = 0
    (problem,) = found_in(tmp_path, "Q8_0", rows.reshape(ROWS, -1))
    assert problem.text == "1 of 40 rows is all zeros: row 11"


def test_a_constant_matrix_of_blocks_is_found(tmp_path: Path) -> None:
    raw = transcode(
        np.full((ROWS, COLUMNS), 0.5, np.float32).view(np.uint8),
        ENCODINGS["F32"],
        ENCODINGS["Q4_1"],
    ).raw
    (problem,) = found_in(tmp_path, "Q4_1", raw)
    assert "values are 0.5" in problem.text


def test_the_scale_in_the_nibbles_of_iq1_m_is_that_of_ggml() -> None:
    blocks = np.random.default_rng(8).integers(0, 256, (64, 56), np.uint8)
    (field,) = ENCODINGS["IQ1_M"].scales
    scales = form_of(field).as_float32(read_codes(field, blocks.reshape(-1), 56))
    with np.errstate(all="ignore"):
        numbers = dequantize(blocks, GGMLQuantizationType.IQ1_M)
        # All of a block are its scale times some number of sixteenths.
        ratios = numbers / scales * 16
    finite = np.isfinite(scales[:, 0]) & (np.abs(scales[:, 0]) > 1e-3)
    assert finite.sum() > 10
    assert np.allclose(ratios[finite], np.round(ratios[finite]), atol=1e-3)

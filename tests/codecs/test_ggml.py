"""The definition of each encoding gives the bytes of ggml, and decodes as the gguf package does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from oracles import ggml_needs_importance, ggml_quantize
from rows import (
    BLOCKS,
    GRIDS,
    IMPORTANCE,
    ROWS,
    blocks_of_example,
    decoded,
    encoded,
    example,
    required,
)
from weightctl import open_weights
from weightctl.codecs import definition
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8


# With larger numbers the sums of ggml's searches overflow, and it ends the process. weightctl
# refuses them.
LARGEST_IN_GRIDS = 2.0**28


def has_zeros_first(rows: F32) -> NDArray[np.bool_]:
    """Return which blocks have a sub-block of zeros before one that has other numbers.

    ggml stores the levels and signs of sub-blocks of IQ3_S after one of zeros in the wrong place
    (`weightctl/codecs/signed_grids.py`).
    """
    some: NDArray[np.bool_] = rows.reshape(-1, 8, 32).any(axis=2)
    return (~some[:, :-1] & (np.cumsum(some[:, ::-1], axis=1)[:, ::-1] > 0)[:, 1:]).any(axis=1)


def assert_as_ggml(encoding: str, rows: F32, importance: F32 | None) -> None:
    ours = encoded(definition(ENCODINGS[encoding]), encoding, rows, importance)
    assert_those_of_ggml(ours, encoding, rows, importance)


def assert_those_of_ggml(
    ours: U8, encoding: str, rows: F32, importance: F32 | None, about: str = ""
) -> None:
    """Compare the blocks whose scales did not overflow in ggml."""
    kind = ENCODINGS[encoding]
    codec = definition(kind)
    if encoding in GRIDS and np.abs(rows).max() > LARGEST_IN_GRIDS:
        return
    theirs = ggml_quantize(encoding, rows, required(encoding, rows, importance))
    held = decoded(codec, encoding, theirs).reshape(-1, kind.block)
    finite = np.isfinite(held).all(axis=1)
    if encoding == "MXFP4":
        # Of such blocks ggml makes undefined exponents (`weightctl/codecs/e2m1.py`).
        peak = np.abs(rows).reshape(-1, kind.block).max(axis=1)
        finite &= (peak == 0) | (peak >= 2.0**-125)
    if encoding == "IQ3_S":
        finite &= ~has_zeros_first(rows)
    np.testing.assert_array_equal(
        ours.reshape(-1, kind.size)[finite], theirs.reshape(-1, kind.size)[finite], about
    )


@pytest.mark.parametrize("encoding", BLOCKS)
@pytest.mark.parametrize("rows", ROWS)
def test_encoding_gives_the_bytes_of_ggml(encoding: str, rows: str) -> None:
    for name in IMPORTANCE:
        ours = blocks_of_example(encoding, rows, name)
        assert_those_of_ggml(ours, encoding, *example(rows, name), name)


@pytest.mark.parametrize("encoding", BLOCKS)
def test_many_blocks_have_the_bytes_of_ggml(encoding: str) -> None:
    rng = np.random.default_rng(21)
    count = 16 if encoding in GRIDS else 256
    assert_as_ggml(encoding, rng.standard_normal((count, 8 * 256), np.float32), None)


@pytest.mark.parametrize("encoding", BLOCKS)
def test_many_sparse_blocks_have_the_bytes_of_ggml(encoding: str) -> None:
    # In one block of ten thousand, the last of five passes over the sub-blocks' scales counts.
    rng = np.random.default_rng(28)
    count = 4 if encoding in GRIDS else 512 if encoding == "Q4_K" else 64
    rows = rng.standard_normal((count, 16 * 256), np.float32)
    rows[rng.random(rows.shape, np.float32) > 0.02] = 0
    assert_as_ggml(encoding, rows, (10 ** rng.uniform(-12, 12, 16 * 256)).astype(np.float32))


@pytest.mark.parametrize("encoding", BLOCKS)
@pytest.mark.parametrize("shape", [(1, 256), (3, 256), (1, 16 * 1024 + 256), (2, 32 * 1024)])
@pytest.mark.parametrize("weighted", [False, True])
def test_rows_of_any_length_have_the_bytes_of_ggml(
    encoding: str, shape: tuple[int, int], weighted: bool
) -> None:
    rng = np.random.default_rng(22)
    importance = rng.gamma(0.5, 1, shape[1]).astype(np.float32) if weighted else None
    assert_as_ggml(encoding, rng.standard_normal(shape).astype(np.float32), importance)


finite_floats = st.floats(width=32, allow_nan=False, allow_infinity=False)


@pytest.mark.parametrize("encoding", BLOCKS)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    rows=arrays(np.float32, (2, 256), elements=finite_floats),
    importance=st.none() | arrays(np.float32, 256, elements=st.floats(0, 1e6, width=32)),
)
def test_any_finite_numbers_have_the_bytes_of_ggml(
    encoding: str, rows: F32, importance: F32 | None
) -> None:
    if encoding in GRIDS:
        rows = np.clip(rows, -LARGEST_IN_GRIDS, LARGEST_IN_GRIDS)
    assert_as_ggml(encoding, rows, importance)


@pytest.mark.parametrize("encoding", BLOCKS)
def test_the_types_that_need_importance_are_those_of_ggml(encoding: str) -> None:
    assert ENCODINGS[encoding].needs_importance == ggml_needs_importance(encoding)


@pytest.mark.real
@pytest.mark.parametrize("encoding", GRIDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_real_weights_have_the_bytes_of_ggml(smollm2: Path, encoding: str, weighted: bool) -> None:
    weights = open_weights(smollm2).blk[12].ffn_down.weight.data().astype("float32")
    rows = np.asarray(weights)[:16]
    importance = np.square(np.random.default_rng(5).standard_normal(1536)).astype(np.float32)
    assert_as_ggml(encoding, rows, importance if weighted else None)


def test_zeros_do_not_displace_what_follows_in_iq3_s() -> None:
    rows = np.random.default_rng(29).standard_normal((4, 256), np.float32)
    rows[:, :32] = 0
    codec = definition(ENCODINGS["IQ3_S"])
    ours = decoded(codec, "IQ3_S", encoded(codec, "IQ3_S", rows))
    theirs = decoded(codec, "IQ3_S", ggml_quantize("IQ3_S", rows, None))
    assert np.square(ours - rows).sum() < 0.03 * np.square(rows).sum()
    assert np.square(theirs - rows).sum() > np.square(rows).sum()


# The gguf package does not decode the others.
KNOWN = [name for name in BLOCKS if name not in {"Q1_0", "Q2_0"}]


def assert_decodes_as_gguf(encoding: str, blocks: U8) -> None:
    with np.errstate(all="ignore"):
        theirs = dequantize(blocks, GGMLQuantizationType[encoding])
    held = np.isfinite(theirs)
    ours = decoded(definition(ENCODINGS[encoding]), encoding, blocks)
    np.testing.assert_array_equal(ours.view(np.uint32)[held], theirs.view(np.uint32)[held])
    assert not np.isfinite(ours[~held]).any()


@pytest.mark.parametrize("encoding", KNOWN)
@pytest.mark.parametrize("rows", ["normal", "negative", "1e-8", "both-zeros"])
def test_encoded_blocks_decode_as_in_the_gguf_package(encoding: str, rows: str) -> None:
    numbers = ROWS[rows](np.random.default_rng(24))
    codec = definition(ENCODINGS[encoding])
    assert_decodes_as_gguf(encoding, encoded(codec, encoding, numbers, None))


@pytest.mark.parametrize("encoding", KNOWN)
def test_any_blocks_decode_as_in_the_gguf_package(encoding: str) -> None:
    rng = np.random.default_rng(25)
    assert_decodes_as_gguf(
        encoding, rng.integers(0, 256, (40, 120 * ENCODINGS[encoding].size), np.uint8)
    )

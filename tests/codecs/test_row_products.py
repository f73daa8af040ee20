"""The kernels that multiply vectors with rows of blocks give what NumPy gives, at every level."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from weightctl.codecs import can_decode, codec, transcode
from weightctl.codecs.transcoding import decode_rows
from weightctl.dtype import ENCODINGS
from weightctl.kernels import active, levels, row_multiplier

pytestmark = pytest.mark.skipif(active() is None, reason="there are no kernels, or they are off")

each_level = pytest.mark.parametrize("level", range(len(levels())), ids=levels())

NAMES = [
    name for name, each in ENCODINGS.items()
    if can_decode(each) and row_multiplier(name) is not None
]  # fmt: skip
ROWS = 5


def blocks_of(name: str, columns: int) -> np.ndarray:
    """Return rows of blocks whose values are finite and not all zero."""
    kind = ENCODINGS[name]
    rng = np.random.default_rng(7)
    while True:
        made = rng.integers(0, 60, (ROWS, kind.row_bytes(columns)), np.uint8)
        values = decode_rows(made, kind, codec)
        if np.isfinite(values).all() and values.any():
            return made


@each_level
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 3, 21])
def test_products_are_those_with_decoded_values(name: str, count: int, level: int) -> None:
    # More values than are decoded at a time, and fewer; the same of vectors that are arranged.
    for columns in (1280, 256):
        blocks = blocks_of(name, columns)
        vectors = np.random.default_rng(1).standard_normal((count, columns), np.float32)
        held = decode_rows(blocks, ENCODINGS[name], codec).astype(np.float64)
        out = np.full((count, ROWS + 4), np.nan, np.float32)
        kernel = row_multiplier(name, level)
        assert kernel is not None
        kernel.multiply(blocks, columns, vectors, 2, out)
        expected = vectors.astype(np.float64) @ held.T
        close = 1e-5 * (np.abs(vectors.astype(np.float64)) @ np.abs(held).T).max()
        np.testing.assert_allclose(out[:, 2:-2], expected, rtol=0, atol=close)
        assert np.isnan(out[:, [0, 1, -2, -1]]).all()


@each_level
def test_rows_of_any_width_are_multiplied(level: int) -> None:
    kernel = row_multiplier("F16", level)
    assert kernel is not None
    for columns, count in itertools.product((1, 17, 1029), (1, 7)):
        rows = np.random.default_rng(2).standard_normal((3, columns)).astype(np.float16)
        vectors = np.random.default_rng(3).standard_normal((count, columns), np.float32)
        out = np.empty((count, 3), np.float32)
        kernel.multiply(rows.view(np.uint8), columns, vectors, 0, out)
        np.testing.assert_allclose(out, vectors @ rows.astype(np.float32).T, rtol=1e-4, atol=1e-4)


@each_level
@pytest.mark.parametrize(
    ("name", "count"),
    [("Q4_K", 530), *itertools.product(["Q4_K", "Q5_K", "Q6_K", "Q8_0"], [1, 2, 4, 5])],
)
def test_threads_share_the_rows(name: str, count: int, level: int) -> None:
    # More vectors and rows than are multiplied together, and more columns than are read at a time.
    columns, rows = 4352, 115
    values = np.random.default_rng(4).standard_normal((rows, columns), np.float32)
    blocks, _ = transcode(values.view(np.uint8), ENCODINGS["F32"], ENCODINGS[name])
    vectors = np.random.default_rng(5).standard_normal((count, columns), np.float32)
    held = decode_rows(blocks, ENCODINGS[name], codec)
    kernel = row_multiplier(name, level)
    assert kernel is not None
    for threads in (1, 3):
        out = np.empty((count, rows), np.float32)
        kernel.multiply(blocks, columns, vectors, 0, out, threads=threads)
        np.testing.assert_allclose(out, vectors @ held.T, rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("columns", "nbytes", "vectors", "first", "outputs"),
    [
        (33, 34, 33, 0, 1), (0, 34, 32, 0, 1), (32, 33, 32, 0, 1), (32, 34, 31, 0, 1),
        (32, 34, 32, 1, 1), (32, 34, 32, -1, 1), (32, 68, 32, 0, 1), (32, 34, 0, 0, 1),
    ],
)  # fmt: skip
def test_buffers_that_do_not_fit_are_refused(
    columns: int, nbytes: int, vectors: int, first: int, outputs: int
) -> None:
    kernel = row_multiplier("Q8_0")
    assert kernel is not None
    blocks, left = np.zeros(nbytes, np.uint8), np.zeros(vectors, np.float32)
    with pytest.raises(ValueError, match="do not fit together"):
        kernel.multiply(blocks, columns, left, first, np.zeros(outputs, np.float32))

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from each import each
from runs import run
from weightctl.graph import ops

Array = np.ndarray[Any, Any]


def tables(seq: int, pairs: int, base: float = 10000.0) -> tuple[Array, Array]:
    angles = np.outer(np.arange(seq), base ** -(np.arange(pairs) / pairs)).astype(np.float32)
    return np.cos(angles), np.sin(angles)


def rotated(x: Array, pairs: int, *, interleaved: bool) -> Array:
    """One pair after another, by a rotation matrix, in float64."""
    result = x.astype(float)
    for position in range(x.shape[-2]):
        for pair in range(pairs):
            angle = position * 10000.0 ** -(pair / pairs)
            turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
            places = [2 * pair, 2 * pair + 1] if interleaved else [pair, pair + pairs]
            result[..., position, places] = x[..., position, places].astype(float) @ turn.T
    return result


def rope(interleaved: bool) -> Any:
    return lambda x, cos, sin: ops.rope(x, cos, sin, interleaved=interleaved)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 3),
    st.booleans(),
)
def test_pairs_are_rotated_and_the_rest_passes_through(
    leading: list[int], seq: int, pairs: int, rest: int, interleaved: bool
) -> None:
    shape = (*leading, seq, 2 * pairs + rest)
    x = np.random.default_rng(1).standard_normal(shape, np.float32)
    found = run(rope(interleaved), x, *tables(seq, pairs))
    np.testing.assert_allclose(found, rotated(x, pairs, interleaved=interleaved), atol=2e-6)
    np.testing.assert_array_equal(found[..., 2 * pairs :], x[..., 2 * pairs :])


@each("interleaved", [False, True])
def test_positions_may_differ_between_the_rows_of_a_batch(interleaved: bool) -> None:
    x = np.random.default_rng(2).standard_normal((2, 3, 4, 6), np.float32)
    cos, sin = (table.reshape(2, 1, 4, 3) for table in tables(8, 3))
    shapes = [("batch", 3, "seq", 6), ("batch", 1, "seq", 3), ("batch", 1, "seq", 3)]
    found = run(rope(interleaved), x, cos, sin, shapes=shapes)
    # The second row is at positions 4 to 7.
    later = np.concatenate([x[1], x[1]], 1)
    np.testing.assert_allclose(found[0], rotated(x[0], 3, interleaved=interleaved), atol=2e-6)
    np.testing.assert_allclose(
        found[1], rotated(later, 3, interleaved=interleaved)[:, 4:], atol=2e-6
    )


def test_halves_pair_as_in_hugging_faces_llama() -> None:
    x = np.random.default_rng(4).standard_normal((1, 2, 5, 8), np.float32)
    cos, sin = tables(5, 4)
    wide = (torch.tensor(np.concatenate([table, table], -1))[None] for table in (cos, sin))
    expected, _ = apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), *wide)
    np.testing.assert_allclose(run(rope(interleaved=False), x, cos, sin), expected, atol=1e-6)


@each("interleaved", [False, True])
@each("kind", [np.float16, ml_dtypes.bfloat16])
def test_small_floats_are_rotated_in_float32_and_rounded_once(kind: Any, interleaved: bool) -> None:
    x = np.random.default_rng(5).standard_normal((3, 8)).astype(kind)
    found = run(rope(interleaved), x, *tables(3, 3))
    wide = run(rope(interleaved), x.astype(np.float32), *tables(3, 3))
    np.testing.assert_array_equal(found, wide.astype(kind))

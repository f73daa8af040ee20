"""The order of query and key rows in the two dialects."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from small_models import rope_rows
from weightctl.archs.steps import TRANSPOSED, RopeRows, half_split_order, interleaved_order

SIZES = [(1, 2), (4, 8), (9, 64), (3, 6)]


@pytest.mark.parametrize(("heads", "head_dim"), SIZES)
def test_rows_go_into_pairs_as_llama_cpps_own_script_has_them(heads: int, head_dim: int) -> None:
    rows = np.arange(heads * head_dim * 3).reshape(-1, 3)
    assert (rows[interleaved_order(heads, head_dim)] == rope_rows(rows, heads)).all()


def test_an_interleaved_head_has_its_pairs_side_by_side() -> None:
    assert interleaved_order(2, 4) == [0, 2, 1, 3, 4, 6, 5, 7]
    assert interleaved_order(1, 8) == [0, 4, 1, 5, 2, 6, 3, 7]
    assert half_split_order(1, 8) == [0, 2, 4, 6, 1, 3, 5, 7]


def test_rows_that_are_not_rotated_stay() -> None:
    assert interleaved_order(2, 6, 4) == [0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11]


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4))
def test_the_way_there_and_back_changes_nothing(heads: int, pairs: int, still: int) -> None:
    rotated, head_dim = 2 * pairs, 2 * pairs + still
    rows = np.arange(heads * head_dim)
    there = rows[interleaved_order(heads, head_dim, rotated)]
    assert (there[half_split_order(heads, head_dim, rotated)] == rows).all()
    assert sorted(there) == list(rows)


CONFIG = SimpleNamespace(heads=6, kv_heads=2, head_dim=4, rope_dimensions=4)


@pytest.mark.parametrize("heads", ["heads", "kv_heads"])
def test_grouped_heads_and_biases_go_both_ways(heads: str) -> None:
    step, rows = RopeRows(heads), getattr(CONFIG, heads) * 4
    for array in (np.arange(rows * 5).reshape(rows, 5), np.arange(rows)):
        there = step.to_gguf(array, CONFIG)
        assert (there == rope_rows(array, getattr(CONFIG, heads))).all()
        assert (step.to_hugging_face(there, CONFIG) == array).all()


def test_the_rows_of_blocks_are_moved_as_bytes() -> None:
    from gguf import GGMLQuantizationType, quants

    numbers = np.random.default_rng(6).normal(size=(24, 64)).astype(np.float32)
    blocks = quants.quantize(numbers, GGMLQuantizationType.Q8_0)
    moved = RopeRows("heads").to_gguf(blocks, CONFIG)
    expected = quants.quantize(rope_rows(numbers, 6), GGMLQuantizationType.Q8_0)
    assert moved.tobytes() == expected.tobytes()


def test_a_transposed_matrix_goes_both_ways() -> None:
    array = np.arange(6).reshape(2, 3)
    assert (TRANSPOSED.to_gguf(array, None) == array.T).all()
    assert (TRANSPOSED.to_hugging_face(TRANSPOSED.to_gguf(array, None), None) == array).all()

"""The order of query and key rows in the two naming conventions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from arrays import weights_of
from each import each
from small_models import rope_rows
from weightctl.families.changes import (
    PLUS_ONE,
    TRANSPOSED,
    RopeRows,
    half_split_order,
    interleaved_order,
)
from weightctl.weights.derived import DerivedTensor, tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.weights.derived import Step

SIZES = [(1, 2), (4, 8), (9, 64), (3, 6)]


@each("heads, head_dim", SIZES)
def test_rows_go_into_pairs_as_llama_cpps_own_script_has_them(heads: int, head_dim: int) -> None:
    rows = np.arange(heads * head_dim * 3).reshape(-1, 3)
    assert (rows[list(interleaved_order(heads, head_dim))] == rope_rows(rows, heads)).all()


def test_an_interleaved_head_has_its_pairs_side_by_side() -> None:
    assert interleaved_order(2, 4) == (0, 2, 1, 3, 4, 6, 5, 7)
    assert interleaved_order(1, 8) == (0, 4, 1, 5, 2, 6, 3, 7)
    assert half_split_order(1, 8) == (0, 2, 4, 6, 1, 3, 5, 7)


def test_rows_that_are_not_rotated_stay() -> None:
    assert interleaved_order(2, 6, 4) == (0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11)


@given(st.integers(1, 5), st.integers(1, 9), st.integers(0, 4))
def test_the_way_there_and_back_changes_nothing(heads: int, pairs: int, still: int) -> None:
    rotated, head_dim = 2 * pairs, 2 * pairs + still
    rows = np.arange(heads * head_dim)
    there = rows[list(interleaved_order(heads, head_dim, rotated))]
    assert (there[list(half_split_order(heads, head_dim, rotated))] == rows).all()
    assert sorted(there) == list(rows)


CONFIG: Any = SimpleNamespace(heads=6, kv_heads=2, head_dim=4, rope_dimensions=4)


def done(step: Step, array: NDArray[Any]) -> NDArray[Any]:
    """Return what a step makes of an array."""
    tensor = DerivedTensor("made", step, [tensor_of(weights_of({"x": array}).source, "x")])
    buffer = bytearray(tensor.info.nbytes)
    tensor.read_into(0, memoryview(buffer))
    return np.frombuffer(buffer, array.dtype).reshape(tensor.info.shape)


@each("heads", ["heads", "kv_heads"])
def test_grouped_heads_and_biases_go_both_ways(heads: str) -> None:
    change, rows = RopeRows(heads), getattr(CONFIG, heads) * 4
    for array in (np.arange(rows * 5).reshape(rows, 5), np.arange(rows)):
        there = done(change.to_gguf(CONFIG), array)
        assert (there == rope_rows(array, getattr(CONFIG, heads))).all()
        assert (done(change.to_hugging_face(CONFIG), there) == array).all()


def test_a_transposed_matrix_goes_both_ways() -> None:
    array = np.arange(6).reshape(2, 3)
    there = done(TRANSPOSED.to_gguf(CONFIG), array)
    assert (there == array.T).all()
    assert (done(TRANSPOSED.to_hugging_face(CONFIG), there) == array).all()


def test_one_is_added_for_gguf_and_taken_away_on_the_way_back() -> None:
    array = np.array([0.25, -0.5, 3], np.float32)
    there = done(PLUS_ONE.to_gguf(CONFIG), array)
    assert there.tolist() == [1.25, 0.5, 4]
    assert done(PLUS_ONE.to_hugging_face(CONFIG), there).tolist() == array.tolist()

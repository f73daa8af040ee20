from __future__ import annotations

from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each
from runs import run
from weightctl.dtype import DType
from weightctl.errors import EngineError, GraphError
from weightctl.graph import Graph, TensorType, ops
from weightctl.shape import Dim

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.graph import Value

EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
NAMES = ("a", "b", "c")

bounds = st.none() | st.integers(-6, 6)
slices = st.builds(slice, bounds, bounds, st.none() | st.integers(1, 4))
items = st.integers(-4, 3) | slices | st.none() | st.just(...)
shapes = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
# Bounds within a dimension of 4 or more, whatever its name stands for.
near = st.none() | st.integers(0, 2)
inner = st.builds(slice, near, st.none() | st.integers(-2, -1), st.none() | st.integers(1, 3))


def array(*shape: int) -> Any:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def sliced(index: Any, shape: tuple[Any, ...]) -> Any:
    """The shape of a part of what has some shape; what refuses it."""
    with Graph("slicing", [TensorType(DType.float32, shape)]) as graph:
        return graph.inputs[0][index].shape


@EXAMPLES
@given(shapes, st.lists(items, max_size=4).map(tuple))
def test_a_part_of_known_sizes_is_numpys(shape: tuple[int, ...], index: Any) -> None:
    try:
        expected = array(*shape)[index]
    except IndexError:
        with pytest.raises(GraphError):
            sliced(index, shape)
        return
    np.testing.assert_array_equal(run(lambda x: x[index], array(*shape)), expected)
    assert sliced(index, shape) == expected.shape


@EXAMPLES
@given(st.lists(st.integers(4, 6), min_size=1, max_size=3).map(tuple), st.data())
def test_a_part_of_named_sizes_is_numpys(shape: tuple[int, ...], data: Any) -> None:
    index = tuple(data.draw(inner | st.integers(-4, 3)) for _ in shape)
    expected = array(*shape)[index]
    names = NAMES[: len(shape)]
    np.testing.assert_array_equal(run(lambda x: x[index], array(*shape), shapes=[names]), expected)
    sizes = dict(zip(names, shape, strict=True))
    assert sliced(index, names).at(sizes) == expected.shape


@EXAMPLES
@given(st.integers(0, 6), slices)
def test_a_named_size_is_the_true_one_or_the_run_is_refused(size: int, index: slice) -> None:
    x = array(size)
    try:
        found = run(lambda x: x[index], x, shapes=[["seq"]])
    except EngineError:
        return
    np.testing.assert_array_equal(found, x[index])


def test_bounds_of_a_name_are_told_in_its_arithmetic() -> None:
    seq = Dim("seq")
    assert sliced((slice(None), slice(1, None)), ("batch", "seq")) == ["batch", seq - 1]
    assert sliced((slice(None), -1), ("batch", "seq")) == ["batch"]
    assert sliced((..., slice(None, -2)), ("batch", "seq")) == ["batch", seq - 2]
    assert sliced((..., slice(-1, None)), ("batch", "seq")) == ["batch", 1]
    assert sliced((..., slice(None, 5)), ("batch", "seq")) == ["batch", 5]
    assert sliced((..., slice(5, 3)), ("batch", "seq")) == ["batch", 0]
    assert sliced((..., slice(None, None, 2)), ("batch", "seq")) == ["batch", (seq + 1) // 2]


def test_a_table_is_cut_to_the_length_of_another_input() -> None:
    def positions(table: Value, tokens: Value) -> Value:
        return table[: tokens.shape[0]]

    shapes = [[8, 2], ["seq"]]
    np.testing.assert_array_equal(
        run(positions, array(8, 2), array(3), shapes=shapes), array(8, 2)[:3]
    )


@each(
    "part",
    [
        lambda table, _: table[:5],
        lambda table, _: table[-5:],
        lambda table, _: table[3],
        lambda table, _: table[-4],
        lambda table, tokens: table[: tokens.shape[0]],
    ],
)
def test_a_name_that_turns_out_too_small_is_refused_when_it_runs(
    part: Callable[[Value, Value], Value],
) -> None:
    with pytest.raises(EngineError, match=r"(of|for) a dimension of 3") as refusal:
        run(part, array(3), array(9), shapes=[["size"], ["seq"]])
    assert refusal.value.hint


@each("index", [True, 1.5, "seq", [0, 1], (0, 1), slice(0, 4, -1), slice(0, 4, 0), slice("a", 2)])
def test_what_is_not_an_index_is_refused(index: Any) -> None:
    with pytest.raises(GraphError, match="is not a valid index"):
        sliced((index,), (1,))


def test_numbers_that_are_values_are_for_embedding() -> None:
    with Graph("indexed", [TensorType(DType.float32, [4])] * 2) as graph:
        x, _ = graph.inputs
        with pytest.raises(GraphError, match=r"ops\.embedding"):
            _ = x[ops.constant(np.array([0, 1]))]


def test_a_refused_index_names_what_it_was_asked_of() -> None:
    with pytest.raises(GraphError, match=r"slice of float32\[2, seq\]: index 2 is out of bounds"):
        sliced((2, 0), (2, "seq"))


def test_a_value_may_be_cut_hundreds_of_times_at_once() -> None:
    start = process_time()
    with Graph("cut", [TensorType(DType.float32, ["n"])]) as graph:
        (x,) = graph.inputs
        for _ in range(300):
            x = x[::2]
    assert process_time() - start < 2
    assert x.shape[0].at({"n": 2**300 + 1}) == 2

"""Operations that change shapes, and slices, against NumPy."""

from __future__ import annotations

from math import prod
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from each import each
from runs import run
from weightctl.dtype import DType
from weightctl.errors import EngineError, GraphError
from weightctl.graph import Graph, TensorType, ops
from weightctl.shape import Dim, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.graph import Value


EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True, database=None)
BATCH, SEQ = Dim("batch"), Dim("seq")
dims = st.sampled_from([BATCH, SEQ, Dim(1), Dim(2), Dim(3), Dim(4)])


def array(*shape: int) -> Any:
    return np.arange(prod(shape), dtype=np.float32).reshape(shape)


def reshaped(before: Any, after: Any) -> Shape:
    with Graph("reshaping", [TensorType(DType.float32, before)]) as graph:
        return graph.inputs[0].reshape(after).shape


@EXAMPLES
@given(st.lists(dims, min_size=1, max_size=5), st.randoms(use_true_random=False), st.data())
def test_any_order_of_the_same_dimensions_has_the_same_elements(
    before: list[Dim], random: Any, data: Any
) -> None:
    after = list(before)
    random.shuffle(after)
    # Some dimensions multiplied into one.
    cut = data.draw(st.integers(0, len(after)))
    after = [*after[:cut], Shape(after[cut:]).size]
    assert reshaped(before, after) == after
    place = data.draw(st.integers(0, len(after) - 1))
    assert reshaped(before, [-1 if i == place else dim for i, dim in enumerate(after)]) == after


@EXAMPLES
@given(st.lists(dims, max_size=4), st.lists(dims, max_size=4))
def test_shapes_of_unequal_size_for_some_names_are_refused(
    before: list[Dim], after: list[Dim]
) -> None:
    sizes = {"batch": 5, "seq": 7}  # neither divides what is made of 1 to 4
    assume(prod(Shape(before).at(sizes)) != prod(Shape(after).at(sizes)))
    with pytest.raises(GraphError, match="elements"):
        reshaped(before, after)


@each(
    "before, after, expected",
    [
        (["batch", "seq", 64], ["batch", "seq", 4, 16], None),
        (["batch", "seq", 64], [BATCH * SEQ, 64], None),
        (["batch", "seq", 64], [-1, 64], [BATCH * SEQ, 64]),
        (["batch", "seq", 64], ["batch", -1], ["batch", 64 * SEQ]),
        (["batch", SEQ + 1, 4], [SEQ + 1, -1], [SEQ + 1, 4 * BATCH]),
        ([2 * BATCH, 6], ["batch", -1], ["batch", 12]),
        (["batch", 0], ["batch", 0, 5], None),
    ],
)
def test_sizes_are_followed_through_names(before: Any, after: Any, expected: Any) -> None:
    assert reshaped(before, after) == (after if expected is None else expected)


@each("after", [[-1, 3], ["batch", -1], [-1, 0], [-1, -1]])
def test_a_size_that_is_left_but_not_whole_is_refused(after: Any) -> None:
    with pytest.raises(GraphError, match=r"reshape of float32\[seq, 4\]: .*-1"):
        reshaped(["seq", 4], after)


def test_a_size_that_is_left_is_known_also_where_a_name_is_zero() -> None:
    found = run(lambda x: x.reshape(["batch", -1]), array(0, 2, 3), shapes=[["batch", 2, 3]])
    assert found.shape == (0, 6)


def test_heads_are_split_and_brought_back() -> None:
    x = array(2, 3, 8)

    def there_and_back(value: Any) -> Any:
        heads = value.reshape(["batch", "seq", 2, 4]).transpose(1, 2)
        return heads, heads.permute([0, 2, 1, 3]).reshape(["batch", "seq", -1])

    heads, back = run(there_and_back, x, shapes=[["batch", "seq", 8]])
    np.testing.assert_array_equal(heads, np.stack([x[..., :4], x[..., 4:]], 1))
    np.testing.assert_array_equal(back, x)


@EXAMPLES
@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.integers(0, 2))
def test_what_is_split_and_joined_is_what_it_was(sizes: list[int], axis: int) -> None:
    shape = [2, 3, 2]
    shape[axis] = sum(sizes)
    x = array(*shape)

    def halves(value: Any) -> tuple[Any, ...]:
        parts = ops.split(value, sizes, axis=axis - 3)
        return (*parts, ops.concat(parts, axis=axis))

    *parts, whole = run(halves, x)
    np.testing.assert_array_equal(whole, x)
    for part, expected in zip(parts, np.split(x, np.cumsum(sizes)[:-1], axis), strict=True):
        np.testing.assert_array_equal(part, expected)


def test_a_named_dimension_is_split_into_a_known_part_and_the_rest() -> None:
    first, rest = run(lambda x: ops.split(x, [1, Dim("seq") - 1]), array(4, 2), shapes=[["seq", 2]])
    np.testing.assert_array_equal(first, array(4, 2)[:1])
    np.testing.assert_array_equal(rest, array(4, 2)[1:])


def test_named_dimensions_add_up_where_values_are_joined() -> None:
    found = run(
        lambda past, now: ops.concat([past, now]), array(2), array(3), shapes=[["past"], ["seq"]]
    )
    assert found.tolist() == [0, 1, 0, 1, 2]


def test_values_are_repeated_to_a_shape_with_names() -> None:
    found = run(
        lambda row, like: ops.broadcast_to(row, like.shape),
        array(1, 3),
        array(4, 3),
        shapes=[[1, 3], ["seq", 3]],
    )
    np.testing.assert_array_equal(found, np.broadcast_to(array(1, 3), (4, 3)))


def test_a_range_is_as_long_as_names_say() -> None:
    def made(x: Any, y: Any) -> tuple[Any, ...]:
        (seq,), (keys,) = x.shape, y.shape
        return (
            ops.range("seq"),
            ops.range(keys - seq, keys),
            ops.range(seq, -1, -2, dtype=DType.float32),
        )

    whole, last, back = run(made, array(3), array(5), shapes=[["seq"], ["keys"]])
    assert whole.tolist() == [0, 1, 2]
    assert last.tolist() == [2, 3, 4]
    assert back.tolist() == [3.0, 1.0]


@EXAMPLES
@given(st.integers(-8, 8), st.integers(-8, 8), st.integers(-4, 4).filter(bool))
def test_a_range_is_pythons(start: int, stop: int, step: int) -> None:
    with Graph("counting") as graph:
        graph.output(ops.range(start, stop, step))
    assert graph.outputs[0].shape == [len(range(start, stop, step))]


NAMES = ("a", "b", "c")

bounds = st.none() | st.integers(-6, 6)
slices = st.builds(slice, bounds, bounds, st.none() | st.integers(1, 4))
items = st.integers(-4, 3) | slices | st.none() | st.just(...)
shapes = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(tuple)
# Bounds within a dimension of 4 or more, whatever its name stands for.
near = st.none() | st.integers(0, 2)
inner = st.builds(slice, near, st.none() | st.integers(-2, -1), st.none() | st.integers(1, 3))


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
        run(positions, array(8, 2), array(3), shapes=shapes),
        array(8, 2)[:3],
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

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from each import each
from runs import run
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, ops
from weightctl.shape import Dim, Shape

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

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lazy import torch
from weightctl import Shape
from weightctl.shape import Dim

sizes = st.lists(st.integers(0, 1 << 40), max_size=5)


def test_a_shape_prints_its_dimensions() -> None:
    assert str(Shape((2, 2))) == repr(Shape([2, 2])) == "[Dim(2), Dim(2)]"
    assert f"Shape: {Shape(('batch', 4))}" == "Shape: [Dim('batch'), Dim(4)]"
    assert str(Shape()) == "[]"


@given(sizes)
def test_a_shape_equals_a_list_or_tuple_of_its_sizes(numbers: list[int]) -> None:
    shape = Shape(numbers)
    assert shape == numbers
    assert numbers == shape
    assert shape == tuple(numbers)
    assert tuple(numbers) == shape
    assert shape == Shape(numbers)
    assert shape != [*numbers, 1]
    assert (*numbers, 1) != shape


@given(sizes)
def test_a_shape_finds_what_is_filed_under_a_tuple_of_its_sizes(numbers: list[int]) -> None:
    assert hash(Shape(numbers)) == hash(tuple(numbers))
    assert {tuple(numbers): "here"}[Shape(numbers)] == "here"


def test_a_shape_is_neither_a_number_nor_text() -> None:
    assert Shape((2,)) != 2
    assert Shape(("a",)) != "a"
    with pytest.raises(TypeError, match="a shape must be a sequence of dimensions, not 'ab'"):
        Shape("ab")


def test_a_shape_of_sizes_names_and_dimensions_is_one_of_dimensions() -> None:
    shape = Shape([2, "batch", Dim(3), np.int64(4)])
    assert all(isinstance(dim, Dim) for dim in shape)
    assert shape == [2, "batch", 3, 4]


def test_a_shape_is_made_of_the_shapes_of_numpy_and_torch() -> None:
    assert Shape(np.zeros((2, 3)).shape) == torch.zeros(2, 3).shape == Shape((2, 3))


def test_sizes_are_plain_integers() -> None:
    assert Shape((2, np.int64(3))).sizes == (2, 3)
    assert all(type(size) is int for size in Shape((2, np.int64(3))).sizes)


def test_sizes_that_are_not_known_yet_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="the size of dimension `batch` is not defined yet"):
        _ = Shape(("batch", 2)).sizes


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_shape_can_be_copied(duplicate: type) -> None:
    shape = Shape(("batch", 2))
    assert duplicate(shape) == shape
    assert type(duplicate(shape)) is Shape


def test_a_shape_can_be_pickled() -> None:
    shape = Shape(("batch", 2))
    assert repr(pickle.loads(pickle.dumps(shape))) == repr(shape)


def test_a_dimension_stands_for_its_number_or_name() -> None:
    assert Dim(2) == 2
    assert Dim("batch") == "batch"
    assert Dim(Dim(2)) == Dim(2)
    assert Dim(2) != Dim("two")
    assert hash(Dim(2)) == hash(2)
    assert hash(Dim("batch")) == hash("batch")


def test_a_dimension_of_known_size_works_where_a_number_does() -> None:
    assert list(range(Dim(3))) == [0, 1, 2]
    assert int(Dim(3)) == 3
    assert np.zeros((Dim(2), Dim(3))).shape == (2, 3)


def test_a_negative_dimension_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="a dimension cannot have size -1"):
        Shape((2, -1))


def test_a_dimension_with_a_fraction_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        Dim(2.5)  # type: ignore[arg-type]


def test_messages_have_a_shape_as_its_sizes_and_names() -> None:
    assert Shape(("batch", Dim("seq") + 1, 256)).text == "[batch, seq + 1, 256]"
    assert Shape().text == "[]"

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from small_modules import Scale
from weightctl.nn import Layer, LayerList, Module, recursive_named_layers


class Numbered(Layer):
    """A layer that prints as a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"L{self.number}"


class Model(Module):
    """A model of one list."""

    def __init__(self, *layers: Any) -> None:
        self.layers = LayerList[Any](layers)


LAYERS = [Numbered(number) for number in range(6)]
layers = st.sampled_from(LAYERS)
some = st.lists(layers, max_size=4)
places = st.integers(-6, 6)
ends = st.none() | places
slices = st.builds(slice, ends, ends, ends.filter(lambda step: step != 0))
operations = st.one_of(
    st.tuples(st.just("append"), layers),
    st.tuples(st.just("extend"), some),
    st.tuples(st.just("__iadd__"), some),
    st.tuples(st.just("__imul__"), st.integers(0, 2)),
    st.tuples(st.just("insert"), places, layers),
    st.tuples(st.just("remove"), layers),
    st.tuples(st.just("pop"), places),
    st.tuples(st.just("index"), layers),
    st.tuples(st.just("count"), layers),
    st.tuples(st.just("reverse")),
    st.tuples(st.just("clear")),
    st.tuples(st.just("copy")),
    st.tuples(st.just("__getitem__"), places | slices),
    st.tuples(st.just("__setitem__"), places, layers),
    st.tuples(st.just("__setitem__"), slices, some),
    st.tuples(st.just("__delitem__"), places | slices),
    st.tuples(st.just("__add__"), some),
    st.tuples(st.just("__mul__"), st.integers(-1, 2)),
    st.tuples(st.just("__contains__"), layers),
    st.tuples(st.just("__eq__"), some),
    st.tuples(st.just("__len__")),
)


def outcome(of: list[Any], name: str, *args: Any) -> Any:
    try:
        return getattr(of, name)(*args)
    except (IndexError, ValueError) as error:
        return type(error)


@given(some, st.lists(operations, max_size=8))
def test_it_does_what_a_list_does(start: list[Layer], steps: list[tuple[Any, ...]]) -> None:
    plain, ours = list(start), LayerList(start)
    for step in steps:
        assert outcome(plain, *step) == outcome(ours, *step)
        assert list(ours) == plain
        assert ours == plain
        assert ours.sublayers == {str(place): layer for place, layer in enumerate(plain)}


def test_slices_sums_products_and_copies_are_layer_lists() -> None:
    made = LayerList(LAYERS[:3])
    others = [made[1:], made + LAYERS, LAYERS + made, made * 2, 2 * made, made.copy()]
    assert all(isinstance(other, LayerList) for other in others)
    assert LAYERS + made == [*LAYERS, *made]
    assert made[1:] == LAYERS[1:3]


def test_it_is_a_list() -> None:
    assert isinstance(LayerList(), list)
    assert LayerList() == []
    assert not LayerList()


def test_it_prints_as_what_it_is() -> None:
    assert repr(LayerList(LAYERS[:2])) == "LayerList([L0, L1])"


@each(
    "step",
    [("append", 3), ("insert", 0, 3), ("extend", [LAYERS[0], 3]), ("__iadd__", [LAYERS[0], 3]),
     ("__setitem__", 0, 3), ("__setitem__", slice(0, 1), [LAYERS[0], 3]), ("__add__", [3]),
     ("__radd__", [3])],
)  # fmt: skip
def test_what_is_not_a_layer_is_refused_and_nothing_changes(step: tuple[Any, ...]) -> None:
    made = LayerList(LAYERS[:2])
    name, *args = step
    with pytest.raises(TypeError, match="a LayerList can only contain layers, not int"):
        getattr(made, name)(*args)
    assert made == LAYERS[:2]


def test_a_class_instead_of_a_layer_is_named() -> None:
    with pytest.raises(TypeError, match="not the class Numbered"):
        LayerList([Numbered])  # type: ignore[type-var]


def test_one_layer_is_not_a_list_of_them() -> None:
    with pytest.raises(
        TypeError, match="a single Numbered is not a list of layers; use `append` to add it"
    ):
        LayerList().extend(LAYERS[0])  # type: ignore[arg-type]


def test_something_else_cannot_be_added() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        LayerList() + 3  # type: ignore[operator]


def test_the_naming_sees_every_change() -> None:
    model = Model(Scale(), Scale())
    last = model.layers[1]
    del model.layers[0]
    model.layers.extend([Scale(), Scale()])
    model.layers.insert(0, Scale())
    assert list(model.raw_state_dict()) == [f"layers.{place}.weight" for place in range(4)]
    assert model.layers[1] is last
    assert last.weight.name == "layers.1.weight"


def test_lists_in_lists_are_named_by_both_places() -> None:
    model = Model(LayerList([Scale()]), LayerList([Scale(), Scale()]))
    assert list(model.raw_state_dict()) == [
        "layers.0.0.weight", "layers.1.0.weight", "layers.1.1.weight",
    ]  # fmt: skip


def test_a_layer_that_is_there_twice_is_named_once() -> None:
    scale = Scale()
    assert list(Model(scale, scale).raw_state_dict()) == ["layers.0.weight"]


def test_walking_yields_the_list_and_then_its_layers() -> None:
    model = Model(*LAYERS[:2])
    assert list(recursive_named_layers(model, "model")) == [
        ("model", model), ("model.layers", model.layers), ("model.layers.0", LAYERS[0]),
        ("model.layers.1", LAYERS[1]),
    ]  # fmt: skip


def test_copies_and_pickles_of_a_list_are_lists_of_layers() -> None:
    made = LayerList([Scale(), Scale()])
    deep = copy.deepcopy(made)
    assert copy.copy(made) == made
    assert isinstance(deep, LayerList)
    assert deep[0] is not made[0]
    numbered = pickle.loads(pickle.dumps(LayerList(LAYERS[:2])))
    assert isinstance(numbered, LayerList)
    assert repr(numbered) == "LayerList([L0, L1])"

"""Models taken apart, copied, or nested otherwise than by attributes still compute right."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from runs import executed
from small_modules import ROWS, Scale
from weightctl.errors import GraphError
from weightctl.graph import Graph
from weightctl.nn import LayerList, Module

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.graph import Value

ONES = np.ones((1, 4), np.float32)


class Row(Module):
    """Layers side by side, which multiply by 2, 3 and 5 at first."""

    def __init__(self) -> None:
        self.layers = LayerList([Scale() for _ in range(3)])
        factors = {f"layers.{i}.weight": full(n) for i, n in enumerate((2, 3, 5))}
        self.load_state_dict(factors)

    def __call__(self, x: Value) -> tuple[Value, ...]:
        return tuple(layer(x) for layer in self.layers)


class Inner(Module):
    def __init__(self) -> None:
        self.scale = Scale()

    def __call__(self, x: Value) -> Value:
        return self.scale(x)


class Outer(Module):
    """Its own `scale` has the name that its part's has from there."""

    def __init__(self) -> None:
        self.scale = Scale()
        self.inner = Inner()

    def __call__(self, x: Value) -> tuple[Value, Value]:
        return self.scale(x), self.inner(x)


def full(number: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.full(4, number, np.float32)


def results(function: Callable[[Value], Any], values: Callable[[], Any]) -> list[float]:
    with Graph("model", [ROWS]) as graph:
        given = function(graph.inputs[0])
        graph.output(*(given if isinstance(given, tuple) else (given,)))
    return [float(found[0, 0]) for found in executed(graph, ONES, weights=values())]


def nested() -> Outer:
    model = Outer()
    model.load_state_dict({"scale.weight": full(5), "inner.scale.weight": full(7)})
    return model


def test_a_module_that_no_attribute_of_its_caller_leads_to_has_the_names_of_now() -> None:
    model = Row()
    model.layers.reverse()

    class Around(Module):
        def __call__(self, x: Value) -> tuple[Value, ...]:
            return model(x)

    assert results(Around(), model.state_dict) == [5, 3, 2]


def test_a_part_of_an_unpickled_model_keeps_its_names() -> None:
    model = pickle.loads(pickle.dumps(nested()))
    assert results(model.inner, model.state_dict) == [7]


def test_an_unpickled_model_sees_changes_to_itself() -> None:
    model = pickle.loads(pickle.dumps(Row()))
    model.layers.reverse()
    assert results(model, model.state_dict) == [5, 3, 2]


def test_a_part_keeps_its_names_when_its_model_is_gone() -> None:
    model = nested()
    part, values = model.inner, model.state_dict()
    del model
    assert results(part, lambda: values) == [7]


def test_a_model_that_changes_while_its_graph_is_built_is_refused() -> None:
    model = Row()
    with Graph("model", [ROWS]) as graph:
        model(graph.inputs[0])
        model.layers.reverse()
        with pytest.raises(GraphError, match=r"`layers\.2\.weight` .*was renamed to `layers\.0"):
            model(graph.inputs[0])


def test_a_weight_takes_its_value_with_it() -> None:
    model = Row()
    first, last = model.layers[0], model.layers[2]
    first.weight, last.weight = last.weight, first.weight
    assert results(model, model.state_dict) == [5, 3, 2]
    first.weight = model.layers[1].weight
    del model.layers[1]
    assert results(model, model.state_dict) == [3, 2]


def test_a_shared_weight_whose_owner_was_replaced_does_not_take_the_new_ones_numbers() -> None:
    model = Outer()
    model.inner.scale.set_shared_weight("weight", model.scale.weight)
    model.load_state_dict({"scale.weight": full(3)})
    model.scale = Scale()
    with pytest.raises(GraphError, match=r"(?s)`scale\.weight`.*set_shared_weight"):
        model.state_dict()

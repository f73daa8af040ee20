"""The names of weights in graphs, in models that were changed, copied or nested."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from runs import executed
from small_modules import ROWS, Block, Scale, Stack
from weightctl.errors import GraphError
from weightctl.graph import Graph, Weight, ops
from weightctl.nn import Layer, LayerList, Module
from weightctl.nn.weight_names import name_weights

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.graph import Value


ONES = np.ones((1, 4), np.float32)


class Chain(Module):
    """Products with 2, 3 and 5; the order of the layers shows in the result."""

    def __init__(self) -> None:
        self.layers = LayerList([Scale() for _ in range(3)])
        self.load_state_dict(
            {
                f"layers.{place}.weight": np.full(4, n, np.float32)
                for place, n in enumerate((2, 3, 5))
            }
        )

    def __call__(self, x: Value) -> Value:
        for layer in self.layers:
            x = layer(x) + 1
        return x


def graph_of(function: Callable[[Value], Any]) -> Graph:
    """A graph of a call; nothing is named for it."""
    with Graph("model", [ROWS]) as graph:
        graph.output(function(graph.inputs[0]))
    return graph


def result(function: Callable[[Value], Any], model: Module) -> float:
    (found,) = executed(graph_of(function), ONES, weights=model.state_dict())
    return float(found[0, 0])


def move_last_to_the_front(model: Chain) -> None:
    model.layers.insert(0, model.layers.pop())


def another_list(model: Chain) -> None:
    model.layers = model.layers[1:]


@each(
    "edit, expected",
    [
        (lambda _: None, (((2 + 1) * 3) + 1) * 5 + 1),
        (lambda model: model.layers.reverse(), (((5 + 1) * 3) + 1) * 2 + 1),
        (lambda model: model.layers.__delitem__(0), (3 + 1) * 5 + 1),
        (lambda model: model.layers.append(model.layers[0]), ((((2 + 1) * 3) + 1) * 5 + 1) * 2 + 1),
        (move_last_to_the_front, (((5 + 1) * 2) + 1) * 3 + 1),
        (another_list, (3 + 1) * 5 + 1),
    ],
)  # fmt: skip
def test_a_model_that_was_changed_computes_with_its_own_values(
    edit: Callable[[Chain], None], expected: float
) -> None:
    model = Chain()
    edit(model)
    assert result(model, model) == expected


def test_a_layer_that_was_put_in_has_the_name_of_its_place() -> None:
    model = Chain()
    model.layers.insert(1, Scale())
    names = [f"layers.{place}.weight" for place in range(4)]
    assert list(graph_of(model).weights_by_name) == names


def test_parts_that_are_called_alone_after_a_change_have_the_names_of_now() -> None:
    model = Chain()
    model.layers.reverse()
    assert result(lambda x: model.layers[2](model.layers[0](x) + 1) + 1, model) == (5 + 1) * 2 + 1


def test_a_part_that_is_called_alone_keeps_the_names_of_its_model() -> None:
    stack = Stack(2)
    stack.name_weights()
    graph = graph_of(stack.layers[1])
    assert list(graph.weights_by_name) == ["layers.1.up.weight", "layers.1.down.weight"]


def test_of_two_models_of_a_layer_that_is_called_the_caller_names_it() -> None:
    first, second = Chain(), Chain()
    second.layers = LayerList([Scale(), first.layers[2], first.layers[0]])
    names = [f"layers.{place}.weight" for place in range(3)]
    assert list(graph_of(second).weights_by_name) == names
    assert result(first, first) == 51
    assert result(second, second) == ((0 + 1) * 5 + 1) * 2 + 1


def test_a_model_around_one_that_was_named_names_it() -> None:
    class Around(Module):
        def __init__(self) -> None:
            self.inner = Chain()

        def __call__(self, x: Value) -> Value:
            return self.inner(x)

    model = Around()
    assert next(iter(graph_of(model).weights_by_name)) == "inner.layers.0.weight"
    assert result(model, model) == 51


def test_a_layer_that_is_not_a_module_leaves_the_names_to_the_modules_below() -> None:
    class Around(Layer):
        def __init__(self) -> None:
            self.inner = Chain()

        def __call__(self, x: Value) -> Value:
            return self.inner(x)

    layer = Around()
    layer.inner.layers.reverse()
    assert result(layer, layer.inner) == ((5 + 1) * 3 + 1) * 2 + 1


def test_weights_that_nobody_has_named_keep_the_names_they_were_made_with() -> None:
    scale = Scale()
    scale.weight.name = "model.norm.weight"
    assert list(graph_of(scale).weights_by_name) == ["model.norm.weight"]


def test_a_subgraph_of_a_changed_model_has_the_names_of_now() -> None:
    model = Chain()
    model.layers.reverse()
    with Graph("model", [ROWS]) as graph:
        part = model.layers[0].build_subgraph("part", [ROWS], weight_prefix="layers.0.")
        graph.output(*ops.call(part, graph.inputs[0], prefix="layers.0."))
    (found,) = executed(graph, ONES, weights=model.state_dict())
    assert found[0, 0] == 5


def test_a_layer_alone_is_where_its_prefix_says_for_the_subgraphs_within_it_too() -> None:
    class Outer(Module):
        def __init__(self) -> None:
            self.inner = Scale()

        def __call__(self, x: Value) -> Value:
            return ops.call(self.inner.build_subgraph("inner", [x.type]), x)[0]

    outer = Outer()
    with Graph("model", [ROWS]):
        outer.build_subgraph("outer", [ROWS], weight_prefix="layers.0.")
    assert outer.inner.weight.name == "layers.0.inner.weight"


def test_names_are_given_once_for_a_call_and_not_for_those_within_it() -> None:
    walks: list[Module] = []

    class Counted(Block):
        @property
        def sublayers(self) -> dict[str, Layer]:
            walks.append(self)
            return super().sublayers

        def __call__(self, x: Value) -> Value:
            before = len(walks)
            for _ in range(50):
                x = self.up(x)
            assert len(walks) <= before + 1  # for the paths of nodes
            return x

    block = Counted()
    block.name_weights()
    graph_of(block)
    assert walks


@each(
    "hold",
    [lambda layer: [layer], lambda layer: (layer,), lambda layer: {"a": layer},
     lambda layer: [[{"a": (layer,)}]], lambda layer: [LayerList([layer])],
     lambda layer: [layer.weight]],
    ids=["list", "tuple", "dict", "nested", "layers", "weight"],
)  # fmt: skip
@each(
    "ask",
    [Module.name_weights, Module.raw_state_dict, Module.state_dict,
     lambda model: model.load_state_dict({}, strict=False)],
)  # fmt: skip
def test_weights_in_plain_containers_are_refused(hold: Any, ask: Any) -> None:
    stack = Stack(1)
    vars(stack.layers[0])["more"] = hold(Scale())
    with pytest.raises(GraphError, match=r"(?s)`layers\.0\.more` of Stack is a .* LayerList"):
        ask(stack)
    assert stack.head.weight.name == "weight"


def test_layers_in_a_plain_container_that_are_reached_otherwise_are_named_by_that() -> None:
    stack = Stack(1)
    vars(stack)["order"] = [stack.head, *stack.layers]
    vars(stack.layers[0])["parents"] = [stack]
    expected = ["layers.0.up.weight", "layers.0.down.weight", "head.weight"]
    assert list(stack.raw_state_dict()) == expected
    assert list(stack.layers[0].raw_state_dict()) == ["up.weight", "down.weight"]


def test_plain_containers_of_what_has_no_weights_are_let_be() -> None:
    class Quiet(Layer):
        pass

    scale = Scale()
    cycle: list[Any] = [1, "a", Quiet()]
    cycle.append(cycle)
    vars(scale)["held"] = cycle
    assert list(scale.raw_state_dict()) == ["weight"]


def test_shards_in_a_list_are_not_weights_of_their_own() -> None:
    scale = Scale()
    shard = Weight("shard", scale.weight.dtype, (2,))
    shard.shard_idx = 0
    vars(scale)["shards"] = [shard]
    assert list(name_weights(scale)) == ["weight"]


# Models taken apart, copied, or nested otherwise than by attributes still compute right.


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

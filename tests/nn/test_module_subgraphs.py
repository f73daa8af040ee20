from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from runs import executed, graph_of, run
from small_modules import ROWS, Block, Scale, Stack, random_values
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, ops
from weightctl.nn import Layer, Module, add_layer_hook

if TYPE_CHECKING:
    from weightctl.graph import Value

ROW = TensorType(DType.float32, ("batch", 4))


class Repeated(Stack):
    """The same model, whose blocks are one subgraph."""

    def __call__(self, x: Value) -> Value:
        block = self.layers[0].build_subgraph("block", [x.type], weight_prefix="layers.0.")
        for place in range(len(self.layers)):
            (x,) = ops.call(block, x, prefix=f"layers.{place}.")
        return self.head(x)


def ones(rows: int = 2) -> np.ndarray[Any, Any]:
    return np.ones((rows, 4), np.float32)


def test_a_subgraph_gives_what_inlined_layers_give() -> None:
    inlined, repeated = Stack(), Repeated()
    values = random_values(inlined)
    inlined.load_state_dict(values)
    repeated.load_state_dict(values)
    assert np.array_equal(run(inlined, ones()), run(repeated, ones()))


def test_the_graph_holds_the_layer_once() -> None:
    graph = graph_of(Repeated(), [ROWS])
    assert [node.op for node in graph.nodes] == ["input", "call", "call", "call", "weight",
                                                 "arithmetic"]  # fmt: skip
    assert list(graph.subgraphs) == ["block"]
    names = [node.attributes["name"] for node in graph.subgraphs["block"].nodes
             if node.op == "weight"]  # fmt: skip
    assert names == ["up.weight", "down.weight"]


def test_a_model_need_not_be_named_before_it_builds_subgraphs_of_its_layers() -> None:
    repeated = Repeated()
    with Graph("model", [ROW]) as graph:
        graph.output(repeated(graph.inputs[0]))
    assert repeated.layers[0].up.weight.name == "layers.0.up.weight"
    repeated.load_state_dict(random_values(repeated))
    (result,) = executed(graph, ones(), weights=repeated.state_dict())
    assert np.array_equal(result, run(repeated, ones()))


def test_a_layer_alone_is_where_its_prefix_says() -> None:
    block = Block()
    with Graph("model", [ROW]) as graph:
        subgraph = block.build_subgraph("block", [ROW], weight_prefix="layers.0.")
        (x,) = ops.call(subgraph, graph.inputs[0], prefix="layers.7.")
        graph.output(x)
    values = random_values(Block())
    registry = {f"layers.7.{name}": value for name, value in values.items()}
    (result,) = executed(graph, ones(), weights=registry)
    block.load_state_dict(values)
    assert np.array_equal(result, run(block, ones()))


def test_a_prefix_may_be_of_a_part_of_the_layers_weights() -> None:
    block = Block()
    with Graph("model", [ROW]):
        subgraph = block.build_subgraph("block", [ROW], weight_prefix="up.")
    nodes = [node.attributes for node in subgraph.nodes if node.op == "weight"]
    assert [(node["name"], node["is_placeholder"]) for node in nodes] == [
        ("weight", True), ("down.weight", False),
    ]  # fmt: skip


def test_without_a_prefix_every_call_has_the_same_weights() -> None:
    block = Block()
    values = random_values(block)
    block.load_state_dict(values)
    with Graph("model", [ROW]) as graph:
        subgraph = block.build_subgraph("block", [ROW])
        (x,) = ops.call(subgraph, graph.inputs[0])
        (x,) = ops.call(subgraph, x)
        graph.output(x)
    (result,) = executed(graph, ones(), weights=values)
    assert np.array_equal(result, run(block, run(block, ones())))


def test_a_list_of_types_is_a_list_of_values() -> None:
    class Sum(Module):
        def __call__(self, x: Value, others: list[Value], last: Value) -> Value:
            assert isinstance(others, list)
            return x - others[0] * others[1] + last

    with Graph("model", [ROW] * 4) as graph:
        subgraph = Sum().build_subgraph("sum", [ROW, [ROW, ROW], ROW])
        graph.output(*ops.call(subgraph, *graph.inputs))
    inputs = [ones() * number for number in (1, 2, 3, 4)]
    (result,) = executed(graph, *inputs)
    assert result.tolist() == [[-1] * 4] * 2


def test_values_in_lists_and_tuples_are_outputs_in_their_order() -> None:
    class Several(Module):
        def __call__(self, x: Value) -> Any:
            return x, [x + 1, (x + 2,)]

    with Graph("model", [ROW]) as graph:
        graph.output(*ops.call(Several().build_subgraph("several", [ROW]), graph.inputs[0]))
    results = executed(graph, ones(1))
    assert [result[0, 0] for result in results] == [1, 2, 3]


def test_what_is_not_a_value_is_not_an_output_and_leaves_no_subgraph() -> None:
    class Nothing(Module):
        def __call__(self, _: Value) -> None:
            return None

    with Graph("model", [ROW]) as graph:
        with pytest.raises(
            GraphError, match="Nothing returned a NoneType, but a subgraph must return values"
        ):
            Nothing().build_subgraph("nothing", [ROW])
        assert graph.subgraphs == {}


def test_a_layer_that_cannot_be_built_leaves_its_name_free_and_the_graph_open() -> None:
    with Graph("model", [ROW]) as graph:
        with pytest.raises(GraphError, match="mul"):
            Scale(3).build_subgraph("scale", [ROW])
        assert Graph.current is graph
        Scale(4).build_subgraph("scale", [ROW])


def test_a_name_that_is_taken_is_an_error_and_the_first_stays() -> None:
    with Graph("model", [ROW]) as graph:
        first = Scale().build_subgraph("scale", [ROW])
        with pytest.raises(GraphError, match="graph `model` already has a subgraph `scale`"):
            Scale().build_subgraph("scale", [ROW])
        assert graph.subgraphs["scale"] is first


def test_outside_of_a_graph_there_is_nothing_to_build_a_part_of() -> None:
    with pytest.raises(GraphError, match="no graph is open"):
        Scale().build_subgraph("scale", [ROW])


def test_a_prefix_that_no_weight_has_is_an_error() -> None:
    stack = Stack()
    stack.name_weights()
    with (
        Graph("model", [ROW]),
        pytest.raises(
            GraphError,
            match=r"name that starts with `blocks\.`: the first is `layers\.1\.up\.weight`",
        ),
    ):
        stack.layers[1].build_subgraph("block", [ROW], weight_prefix="blocks.")


def test_subgraphs_nest() -> None:
    class Outer(Module):
        def __init__(self) -> None:
            self.inner = Scale()

        def __call__(self, x: Value) -> Value:
            inner = self.inner.build_subgraph("inner", [x.type], weight_prefix="inner.")
            (x,) = ops.call(inner, x, prefix="inner.")
            return x

    outer = Outer()
    outer.load_state_dict({"inner.weight": np.full(4, 3, np.float32)})
    with Graph("model", [ROW]) as graph:
        subgraph = outer.build_subgraph("outer", [ROW])
        graph.output(*ops.call(subgraph, graph.inputs[0]))
    assert list(graph.subgraphs["outer"].subgraphs) == ["inner"]
    (result,) = executed(graph, ones(1), weights=outer.state_dict())
    assert result.tolist() == [[3, 3, 3, 3]]


def test_hooks_see_the_layers_of_a_subgraph_once() -> None:
    calls: list[Layer] = []
    stack = Repeated()
    with add_layer_hook(lambda layer, *_: calls.append(layer)):
        graph_of(stack, [ROWS])
    block = stack.layers[0]
    assert calls == [block.up, block.down, block, stack.head, stack]

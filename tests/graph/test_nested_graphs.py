"""Subgraphs in subgraphs: which weights they use, and which graphs may call which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from weightctl.dtype import DType
from weightctl.engine import InferenceSession
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, Value, Weight, ops
from weightctl.nn import LayerList, Linear, Module

if TYPE_CHECKING:
    from collections.abc import Callable

PAIR = TensorType(DType.float32, [1, 2])


def scales(names: list[str]) -> dict[str, Any]:
    return {name: np.eye(2, dtype=np.float32) * 10**i for i, name in enumerate(names)}


def first_numbers(graph: Graph, registry: dict[str, Any]) -> list[float]:
    outputs = InferenceSession().load(graph, registry).execute(np.ones((1, 2), np.float32))
    return [float(output.to_numpy()[0, 0]) for output in outputs]


class Once(Module):
    """A layer that is a subgraph of its own, called once."""

    def __init__(self) -> None:
        self.linear = Linear(2, 2)

    def __call__(self, x: Value) -> Value:
        inner = self.linear.build_subgraph("linear", [x.type])
        return ops.call(inner, x)[0]


class Twice(Once):
    def __call__(self, x: Value) -> Value:
        inner = self.linear.build_subgraph("linear", [x.type])
        return ops.call(inner, ops.call(inner, x)[0])[0]


class Deep(Module):
    """A layer whose subgraph has a subgraph, which has one."""

    def __init__(self) -> None:
        self.once = Once()

    def __call__(self, x: Value) -> Value:
        return ops.call(self.once.build_subgraph("once", [x.type]), x)[0]


class Net(Module):
    def __init__(self, make: Callable[[], Module]) -> None:
        self.layers = LayerList([make() for _ in range(3)])


@each("make, expected", [(Once, [1, 10, 100]), (Twice, [1, 100, 10000]), (Deep, [1, 10, 100])])
def test_a_subgraph_inside_of_one_for_all_layers_has_each_layers_weights(
    make: Callable[[], Module], expected: list[float]
) -> None:
    net = Net(make)
    registry = scales(list(net.raw_state_dict()))
    net.load_state_dict(registry)
    with Graph("net", [PAIR]) as graph:
        block = net.layers[0].build_subgraph("block", [PAIR], weight_prefix="layers.0.")
        results = [ops.call(block, graph.inputs[0], prefix=f"layers.{i}.") for i in range(3)]
        graph.output(*[result for (result,) in results])
    assert first_numbers(graph, registry) == expected


def test_a_layer_in_no_model_may_hold_subgraphs_too() -> None:
    layer = Deep()
    with Graph("net", [PAIR]) as graph:
        block = layer.build_subgraph("block", [PAIR], weight_prefix="layers.0.")
        results = [ops.call(block, graph.inputs[0], prefix=f"layers.{i}.") for i in range(3)]
        graph.output(*[result for (result,) in results])
    names = [f"layers.{i}.once.linear.weight" for i in range(3)]
    assert first_numbers(graph, scales(names)) == [1, 10, 100]


def block_with_part(
    graph: Graph, part_prefix: str, weight: str, prefix: str = ""
) -> tuple[Graph, Graph]:
    """Return a subgraph for layers, and one in it that uses a weight."""
    with graph.add_subgraph("block", [PAIR], "layers.0.") as block:
        with block.add_subgraph("part", [PAIR], part_prefix) as part:
            part.output(part.inputs[0] @ Weight(weight, DType.float32, (2, 2)))
        block.output(*ops.call(part, block.inputs[0], prefix=prefix))
    return block, part


def test_a_part_may_have_a_longer_prefix_than_its_block() -> None:
    with Graph("net", [PAIR]) as graph:
        block, _ = block_with_part(graph, "layers.0.up.", "layers.0.up.w", "layers.0.up.")
        graph.output(*ops.call(block, graph.inputs[0], prefix="layers.1."))
    assert first_numbers(graph, scales(["layers.0.up.w", "layers.1.up.w"])) == [10]


def test_a_weight_that_all_layers_share_keeps_its_name_in_subgraphs_of_subgraphs() -> None:
    with Graph("net", [PAIR]) as graph:
        block, _ = block_with_part(graph, "", "shared.w")
        graph.output(*ops.call(block, graph.inputs[0], prefix="layers.1."))
    assert first_numbers(graph, scales(["layers.0.up.w", "shared.w"])) == [10]


def test_a_weight_of_the_block_in_a_part_with_another_prefix_is_refused() -> None:
    with (
        Graph("net", [PAIR]) as graph,
        pytest.raises(
            GraphError, match=r"`part` uses the fixed name `layers\.0\.w`, so every call of `block`"
        ),
    ):
        block_with_part(graph, "layers.0.up.", "layers.0.w", "layers.0.up.")


def test_a_part_built_outside_of_its_block_is_refused_where_it_would_be_of_one_layer() -> None:
    with Graph("net", [PAIR]) as graph:
        with graph.add_subgraph("part", [PAIR]) as part:
            part.output(part.inputs[0] @ Weight("layers.0.w", DType.float32, (2, 2)))
        with (
            graph.add_subgraph("block", [PAIR], "layers.0.") as block,
            pytest.raises(
                GraphError, match=r"uses the fixed name `layers\.0\.w`, so every call of `block`"
            ) as caught,
        ):
            ops.call(part, block.inputs[0])
    assert "weight_prefix" in caught.value.hint


def test_weights_that_are_placeholders_need_a_prefix() -> None:
    with Graph("net", [PAIR]) as graph:
        block, _ = block_with_part(graph, "", "layers.0.w")
        with pytest.raises(GraphError, match=r"^call of float32\[1, 2\].*no prefix") as caught:
            ops.call(block, graph.inputs[0])
    assert "supply a matching prefix, such as `ops.call(..., prefix" in caught.value.hint


def test_a_prefix_that_changes_no_name_is_refused() -> None:
    with Graph("net", [PAIR]) as graph:
        with graph.add_subgraph("block", [PAIR]) as block:
            block.output(block.inputs[0] @ Weight("layers.0.w", DType.float32, (2, 2)))
        with pytest.raises(
            GraphError, match=r"have full names, so the prefix `layers\.1\.` has no effect"
        ):
            ops.call(block, graph.inputs[0], prefix="layers.1.")


@each("is_outer_first", [False, True])
def test_two_weights_of_one_name_are_refused_across_subgraphs(*, is_outer_first: bool) -> None:
    first, second = (Weight("w", DType.float32, [1, size]) for size in (1, 2))
    with Graph("net", [PAIR]) as graph:
        if is_outer_first:
            graph.add_weight(first)
        with graph.add_subgraph("one", [PAIR]) as one:
            if not is_outer_first:
                one.add_weight(first)
        with (
            graph.add_subgraph("two", [PAIR]) as two,
            pytest.raises(
                GraphError, match=r"and `two` are named `w`: float32\[1, 1\] and float32\[1, 2\]"
            ),
        ):
            two.add_weight(second)


def test_one_weight_may_be_used_in_several_subgraphs() -> None:
    weight = Weight("w", DType.float32, (2, 2))
    with Graph("net", [PAIR]) as graph:
        for name in ("one", "two"):
            with graph.add_subgraph(name, [PAIR]) as subgraph:
                subgraph.add_weight(weight)
        graph.add_weight(weight)
    assert list(graph.weights_by_name) == ["w"]


def test_placeholders_of_different_subgraphs_may_have_one_name() -> None:
    with Graph("net", [PAIR]) as graph:
        for name in ("one", "two"):
            with graph.add_subgraph(name, [PAIR], "layers.0.") as subgraph:
                subgraph.add_weight(Weight("layers.0.w", DType.float32, (2, 2)))
        graph.add_weight(Weight("layers.0.w", DType.float32, (2, 2)))
    assert len(graph.subgraphs) == 2


def test_graphs_that_call_each_other_are_refused() -> None:
    with Graph("net", [PAIR]) as graph:
        first, second = (graph.add_subgraph(name, [PAIR]) for name in ("first", "second"))
        with first:
            first.output(first.inputs[0])
        with second:
            second.output(*ops.call(first, second.inputs[0]))
        with first, pytest.raises(GraphError, match="`second` calls graph `first`"):
            ops.call(second, first.inputs[0])


@each("given", [5, None, "block"])
def test_what_is_not_a_graph_is_not_called(given: Any) -> None:
    with Graph("net", [PAIR]) as graph, pytest.raises(GraphError, match="is not a graph"):
        ops.call(given, graph.inputs[0])

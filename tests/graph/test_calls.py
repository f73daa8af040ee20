"""Subgraphs in the place of their calls."""

from __future__ import annotations

import pytest

from each import each
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.shape import Dim


def f32(*shape: Dim | str | int) -> TensorType:
    return TensorType(DType.float32, shape)


def doubled(graph: Graph, *shape: Dim | str | int, prefix: str = "") -> Graph:
    """Return a subgraph that gives its input twice, one after the other."""
    made = graph.add_subgraph("doubled", [f32(*shape)], prefix)
    with made:
        (x,) = made.inputs
        made.output(ops.concat([x, x]))
    return made


def test_a_call_gives_the_outputs_with_the_callers_dimensions() -> None:
    with Graph("outer", [f32("batch", 4)]) as graph:
        (result,) = ops.call(doubled(graph, "rows", "columns"), graph.inputs[0])
    assert result.type == f32(Dim("batch") * 2, 4)
    assert result.graph is graph


def test_lists_of_values_are_taken_apart() -> None:
    with Graph("outer", [f32(2), f32(3)]) as graph:
        pair = graph.add_subgraph("pair", [f32("a"), f32("b"), f32("a")])
        with pair:
            pair.output(*pair.inputs)
        first, second = graph.inputs
        results = ops.call(pair, first, [second, (first,)])
    assert [result.type for result in results] == [f32(2), f32(3), f32(2)]


def test_a_name_stands_for_one_size_in_all_inputs() -> None:
    with Graph("outer", [f32(2), f32(3)]) as graph:
        same = graph.add_subgraph("same", [f32("n"), f32("n")])
        with same:
            same.output(same.inputs[0] + same.inputs[1])
        with pytest.raises(
            GraphError,
            match=r"input 1 of subgraph `same` must be float32\[n\], with n = 2, not float32\[3\]",
        ):
            ops.call(same, *graph.inputs)


def test_arithmetic_on_names_must_come_out() -> None:
    with Graph("outer", [f32("n"), f32(Dim("n") * 2), f32(Dim("n") * 3)]) as graph:
        made = graph.add_subgraph("made", [f32(Dim("m") * 2), f32("m")])
        with made:
            made.output(made.inputs[0])
        one, two, three = graph.inputs
        assert ops.call(made, two, one)[0].type == two.type
        with pytest.raises(GraphError, match=r"3\*n"):
            ops.call(made, three, one)


@each("given", [(), (2, 2), (2, 5)], ids=str)
def test_arguments_of_other_types_are_refused_with_both(given: tuple[int, ...]) -> None:
    with Graph("outer", [f32(*given)]) as graph:
        subgraph = doubled(graph, "n", 4)
        with pytest.raises(GraphError) as refusal:
            ops.call(subgraph, graph.inputs[0])
    assert f"must be {f32('n', 4)}" in str(refusal.value)
    assert f"call of {f32(*given)}" in str(refusal.value)


def test_another_number_of_arguments_is_refused() -> None:
    with Graph("outer", [f32(2)]) as graph:
        subgraph = doubled(graph, "n")
        with pytest.raises(GraphError, match="takes 1 input, but was called with 2"):
            ops.call(subgraph, graph.inputs * 2)


def test_a_subgraph_without_outputs_is_refused() -> None:
    with Graph("outer", [f32(2)]) as graph:
        empty = graph.add_subgraph("empty", [])
        with pytest.raises(GraphError, match="has no outputs"):
            ops.call(empty)


def test_the_subgraph_of_another_graph_is_refused() -> None:
    with Graph("other") as other:
        subgraph = doubled(other, "n")
    with (
        Graph("outer", [f32(2)]) as graph,
        pytest.raises(GraphError, match="`doubled` is not a subgraph of graph `outer`"),
    ):
        ops.call(subgraph, graph.inputs[0])


def test_a_graph_cannot_call_itself() -> None:
    with Graph("outer", [f32(2)]) as graph:
        inner = graph.add_subgraph("inner", [f32(2)])
        with inner, pytest.raises(GraphError, match="`inner` cannot call itself"):
            ops.call(inner, inner.inputs[0])


def test_a_subgraph_may_call_its_neighbor() -> None:
    with Graph("outer", [f32(2)]) as graph:
        first = doubled(graph, "n")
        second = graph.add_subgraph("second", [f32("m")])
        with second:
            (result,) = ops.call(first, second.inputs[0])
    assert result.type == f32(Dim("m") * 2)


def test_a_prefix_is_kept_as_it_was_given() -> None:
    with Graph("outer", [f32(2)]) as graph:
        ops.call(doubled(graph, "n", prefix="layers.0."), graph.inputs[0], prefix="layers.3.")
    attributes = graph.nodes[-1].attributes
    assert (attributes["prefix"], attributes["is_placeholder"]) == ("layers.3.", False)


def test_a_prefix_inside_of_a_subgraph_stays_open_as_that_does() -> None:
    with Graph("outer", [f32(2)]) as graph:
        inner = doubled(graph, "n")
        layer = graph.add_subgraph("layer", [f32(2)], "layers.0.")
        with layer:
            ops.call(inner, layer.inputs[0], prefix="layers.0.mlp.")
            ops.call(inner, layer.inputs[0], prefix="shared.")
    open_prefix, fixed = (node.attributes for node in layer.nodes[-2:])
    assert (open_prefix["prefix"], open_prefix["is_placeholder"]) == ("mlp.", True)
    assert (fixed["prefix"], fixed["is_placeholder"]) == ("shared.", False)


def test_a_weight_may_be_an_argument() -> None:
    with Graph("outer") as graph:
        (result,) = ops.call(doubled(graph, "n"), Weight("w", DType.float32, (5,)))
    assert result.type == f32(10)

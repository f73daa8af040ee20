"""Graphs: what they are made of, subgraphs and constants."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

from each import each
from lazy import torch
from weightctl import Buffer
from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.engine import InferenceSession
from weightctl.errors import ArgumentTypeError, EncodingError, GraphError
from weightctl.graph import Dim, Graph, Shape, TensorType, TensorValue, Value, Weight, ops
from weightctl.graph.ops.unary import lower_print
from weightctl.graph.scope import module_path
from weightctl.nn import LayerList, Linear, Module

if TYPE_CHECKING:
    from collections.abc import Callable


FLOATS = TensorType(DType.float32, ("batch", 256))


def test_an_operation_knows_the_type_of_its_result() -> None:
    with Graph("mlp", input_types=[FLOATS]) as graph:
        (x,) = graph.inputs
        weight = Weight("w", DType.float32, (10, 256))
        y = x @ weight.T + 1
    assert y.type == TensorType(DType.float32, ("batch", 10))
    assert (y.dtype, y.shape, y.device, y.rank) == (
        DType.float32,
        ["batch", 10],
        DeviceRef.CPU(),
        2,
    )
    assert y.tensor is y
    assert graph.inputs[0].tensor is x


def test_shapes_that_do_not_fit_are_reported_with_the_operation_and_the_layer() -> None:
    with Graph("mlp", input_types=[FLOATS]) as graph:
        token = module_path.set(lambda: "layers.3.mlp.down")
        try:
            with pytest.raises(GraphError) as caught:
                _ = graph.inputs[0] @ np.zeros((5, 10), np.float32)
        finally:
            module_path.reset(token)
    message = str(caught.value)
    assert message.startswith("matmul of float32[batch, 256] and float32[5, 10]")
    assert "(in layers.3.mlp.down)" in message


def test_what_does_not_fit_is_not_added() -> None:
    with Graph("mlp", input_types=[FLOATS]) as graph:
        (x,) = graph.inputs
        y = np.zeros((5, 10), np.float32)
        before = [node.op for node in graph.nodes]
        with pytest.raises(GraphError):
            _ = x @ y
        assert [node.op for node in graph.nodes if node.op != "constant"] == before


def test_dtypes_are_not_mixed_by_themselves() -> None:
    with Graph("g", [FLOATS, TensorType(DType.float16, ("batch", 256))]) as graph:
        x, y = graph.inputs
        with pytest.raises(GraphError, match=r"(?s)add of float32\[.*float16\[.*cast"):
            _ = x + y
        assert (x + y.cast(DType.float32)).dtype is DType.float32


def test_numbers_take_the_dtype_of_the_tensor_beside_them() -> None:
    with Graph("g", [TensorType(DType.bfloat16, (2,)), TensorType(DType.int32, (2,))]) as graph:
        x, y = graph.inputs
        assert (1 + x * 2.5).dtype is DType.bfloat16
        assert (y * 2 - 1).dtype is DType.int32
        with pytest.raises(GraphError, match="stores only integers"):
            _ = y * 2.5


def test_devices_are_not_mixed_by_themselves() -> None:
    gpu = DeviceRef.GPU(0)
    with Graph("g", [FLOATS, TensorType(DType.float32, ("batch", 256), gpu)]) as graph:
        x, y = graph.inputs
        with pytest.raises(GraphError, match=r"(?s)cpu:0 and gpu:0.*\.to\(device\)"):
            _ = x + y
        assert (x.to(gpu) + y).device == gpu
        assert str((x.to(gpu) * 2).type) == "float32[batch, 256] on gpu:0"


def test_a_value_outside_of_a_graph_is_refused() -> None:
    weight = Weight("w", DType.float32, (2, 2))
    for use in (lambda: weight + 1, lambda: weight.T, lambda: ops.exp(weight), lambda: Value(1)):
        with pytest.raises(GraphError, match=r"(?s)no graph.*with Graph"):
            use()
    with pytest.raises(GraphError, match="no graph"):
        _ = Graph.current


def test_the_current_graph_is_that_of_the_innermost_with() -> None:
    outer, inner = Graph("outer"), Graph("inner")
    with outer:
        assert Graph.current is outer
        with inner, outer:
            assert Graph.current is outer
        assert Graph.current is outer
        with pytest.raises(KeyError), inner:
            raise KeyError
        assert Graph.current is outer


def test_threads_have_current_graphs_of_their_own() -> None:
    seen: list[str] = []

    def look() -> None:
        try:
            _ = Graph.current
        except GraphError:
            seen.append("none")

    with Graph("here"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == ["none"]


def test_a_value_of_another_graph_is_refused() -> None:
    with Graph("one", [FLOATS]) as one, Graph("two"), pytest.raises(GraphError, match="`one`"):
        _ = one.inputs[0] + 1
    with Graph("three") as three, pytest.raises(GraphError, match="`one`"):
        three.output(one.inputs[0])


def test_outputs_are_set_once() -> None:
    with Graph("g", [FLOATS]) as graph:
        graph.output(*graph.inputs)
        with pytest.raises(GraphError, match="already has outputs"):
            graph.output(*graph.inputs)
    assert [value.type for value in graph.outputs] == [FLOATS]


def test_a_value_is_not_true_or_false_while_its_graph_is_built() -> None:
    with Graph("g", [FLOATS]) as graph:
        (x,) = graph.inputs
        with pytest.raises(
            GraphError, match="the content of a value is not available while its graph is built"
        ):
            assert x == x  # noqa: PLR0124
        assert (x == x).dtype is DType.bool  # noqa: PLR0124
        assert len({x, x}) == 1


def test_numbers_dimensions_and_shapes_become_values() -> None:
    with Graph("g", [FLOATS]) as graph:
        (x,) = graph.inputs
        assert TensorValue is Value
        assert Value(x) is x
        assert Value(2.5).type == TensorType(DType.float32, ())
        assert Value(x.shape[0]).type == TensorType(DType.int64, ())
        assert Value(x.shape).type == TensorType(DType.int64, (2,))
        assert Value(np.zeros((2, 3), np.float16)).type == TensorType(DType.float16, (2, 3))
        assert (x / x.shape[0]).dtype is DType.float32


def test_rows_of_known_number_may_be_gone_through() -> None:
    with Graph("g", [TensorType(DType.float32, (3, "seq")), FLOATS]) as graph:
        x, y = graph.inputs
        q, k, v = x
        assert {str(row.type) for row in (q, k, v)} == {"float32[seq]"}
        with pytest.raises(TypeError, match="iteration over the rows"):
            list(y)


def test_numpy_arrays_on_the_left_give_way() -> None:
    with Graph("g", [TensorType(DType.float32, (2, 2))]) as graph:
        (x,) = graph.inputs
        assert isinstance(np.eye(2, dtype=np.float32) @ x, Value)
        assert isinstance(np.float32(2) * x, Value)


def test_a_weight_is_added_once_and_by_its_first_use() -> None:
    weight = Weight("w", DType.float32, (256, 256))
    with Graph("g", [FLOATS]) as graph:
        (x,) = graph.inputs
        assert graph.weights_by_name == {}
        _ = x @ weight + x @ weight
        assert graph.weights_by_name == {"w": weight}
        assert graph.add_weight(weight) is graph.add_weight(weight)
    assert [node.op for node in graph.nodes].count("weight") == 1
    with Graph("another") as another:
        _ = weight + 1
    assert another.weights_by_name == {"w": weight}


def test_two_weights_of_one_name_are_refused() -> None:
    with Graph("g") as graph:
        graph.add_weight(Weight("w", DType.float32, (2,)))
        with pytest.raises(GraphError, match=r"float32\[2\] and float32\[3\]"):
            graph.add_weight(Weight("w", DType.float32, (3,)))


def test_a_quantized_weight_is_bytes_and_becomes_numbers_where_it_is_used() -> None:
    weight = Weight("w", DType.float32, (10, 256), quantization_encoding=QuantizationEncoding.Q4_K)
    assert (weight.dtype, weight.shape) == (DType.uint8, [10, 144])
    assert weight.original_dtype_and_shape == (DType.float32, [10, 256])
    with Graph("g", [FLOATS]) as graph:
        (x,) = graph.inputs
        assert (x @ weight.T).type == TensorType(DType.float32, ("batch", 10))
        assert (weight * 2).type == TensorType(DType.float32, (10, 256))
        assert graph.add_weight(weight).type == TensorType(DType.uint8, (10, 144))


def test_a_quantized_weight_may_be_declared_by_its_bytes() -> None:
    weight = Weight("w", DType.uint8, (10, 34), quantization_encoding=QuantizationEncoding.Q8_0)
    assert weight.shape == [10, 34]
    assert weight.original_dtype_and_shape == (DType.float32, [10, 32])


def test_experts_that_are_quantized_are_rows_of_bytes() -> None:
    weight = Weight(
        "w", DType.bfloat16, (4, 10, 64), quantization_encoding=QuantizationEncoding.Q8_0
    )
    assert weight.shape == [40, 68]
    with Graph("g"):
        assert (weight + 0).type == TensorType(DType.bfloat16, (4, 10, 64))


def test_rows_that_are_not_whole_blocks_are_refused() -> None:
    with pytest.raises(EncodingError, match="multiple of 256"):
        Weight("w", DType.float32, (10, 100), quantization_encoding=QuantizationEncoding.Q4_K)
    with pytest.raises(EncodingError, match="bytes per row"):
        Weight("w", DType.uint8, (10, 100), quantization_encoding=QuantizationEncoding.Q4_K)


def test_a_weight_may_be_changed_before_it_is_used() -> None:
    weight = Weight("w", DType.float32, (10, 256))
    assert (weight.align, weight.shard_idx, weight.sharding_strategy) == (None, None, None)
    weight.quantization_encoding = QuantizationEncoding.Q8_0
    assert weight.shape == [10, 272]
    assert weight.original_dtype_and_shape == (DType.float32, [10, 256])
    weight.configure(DType.bfloat16, (5, 2))
    assert (weight.dtype, weight.shape) == (DType.bfloat16, [5, 2])
    weight.dtype, weight.shape, weight.device = DType.float16, Shape((3,)), DeviceRef.GPU(1)
    assert weight.type == TensorType(DType.float16, (3,), DeviceRef.GPU(1))
    assert repr(weight) == "Weight('w', float16[3] on gpu:1)"


def test_a_weight_without_a_strategy_is_not_sharded() -> None:
    weight = Weight("w", DType.float32, (10, 256))
    with pytest.raises(ValueError, match="sharding_strategy"):
        weight.shard([DeviceRef.CPU(), DeviceRef.CPU()])


def test_weights_declared_in_a_tree_have_the_names_of_their_places() -> None:
    graph = Graph("my_model")
    weights = graph.weights()
    weight = weights.transformer.layers[0].attention.weight.allocate(DType.float32, (768, 768))
    assert weight.name == "transformer.layers.0.attention.weight"
    with graph:
        assert graph.add_weight(weight).shape == (768, 768)


def test_a_graph_reads_as_a_listing() -> None:
    with Graph("mlp", [FLOATS]) as graph:
        (x,) = graph.inputs
        y = ops.softmax(x @ Weight("up", DType.float32, (10, 256)).T)
        graph.output(y[:, :-1])
    assert repr(graph) == (
        f"<Graph mlp(float32[batch, 256]) -> (float32[batch, 9]): {len(graph.nodes)} operations>"
    )
    lines = str(graph).splitlines()
    assert lines[0] == "graph mlp(%0: float32[batch, 256]):"
    assert "  %1 = weight(up): float32[10, 256]" in lines
    assert "  %3 = matmul(%0, %2): float32[batch, 10]" in lines
    assert lines[-1].startswith("  return %")
    assert len(lines) == len(graph.nodes) + 1


def test_an_input_may_have_arithmetic_in_its_shape() -> None:
    with Graph("g", [TensorType(DType.float32, (2 * Dim("batch"), 4))]) as graph:
        (x,) = graph.inputs
        assert x.reshape(("batch", 8)).shape == ("batch", 8)


def test_a_subgraph_has_a_name_of_its_own() -> None:
    graph = Graph("g")
    graph.add_subgraph("block", [FLOATS])
    with pytest.raises(GraphError, match="graph `g` already has a subgraph `block`"):
        graph.add_subgraph("block", [FLOATS])


def test_a_call_gives_what_the_subgraph_gives_for_the_sizes_of_its_arguments() -> None:
    graph = Graph("g", [TensorType(DType.float32, ("rows", 4)), TensorType(DType.float32, (7, 4))])
    block = graph.add_subgraph("block", [TensorType(DType.float32, ("n", 4))], "layers.0.")
    with block:
        block.output(block.inputs[0] @ Weight("layers.0.w", DType.float32, (4, 3)))
    with graph:
        x, y = graph.inputs
        assert ops.call(block, x, prefix="layers.0.")[0].shape == ("rows", 3)
        assert ops.call(block, y, prefix="layers.1.")[0].shape == (7, 3)
    assert "weight(<prefix>w)" in str(graph)
    assert "call block(%0, prefix=layers.0.)" in str(graph)


# Subgraphs in the place of their calls.


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


# Subgraphs in subgraphs: which weights they use, and which graphs may call which.


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


# Numbers that are known when a graph is built.


def data_of(value: Any, dtype: DType | None = None) -> Buffer:
    with Graph("constants") as graph:
        ops.constant(value, dtype)
    data = graph.nodes[-1].attributes["data"]
    assert isinstance(data, Buffer)
    return data


@each(
    "value, dtype",
    [
        (True, DType.bool),
        (3, DType.int64),
        (0.5, DType.float32),
        ([1, 2], DType.int64),
        ([[1.0], [2.0]], DType.float32),
        (np.float64(2), DType.float64),
        (np.array([1, 2], np.int16), DType.int16),
        (np.array([1], ml_dtypes.bfloat16), DType.bfloat16),
        (lambda: torch.ones(2, dtype=torch.bfloat16), DType.bfloat16),
        (Buffer.from_numpy(np.ones(2, np.uint8)), DType.uint8),
    ],
    ids=str,
)
def test_a_constant_without_a_dtype_has_the_one_of_its_numbers(value: Any, dtype: DType) -> None:
    assert data_of(value() if callable(value) else value).dtype is dtype


def test_a_constant_takes_the_dtype_that_is_asked_for() -> None:
    data = data_of([[1, 2], [3, 4]], DType.bfloat16)
    assert data.dtype is DType.bfloat16
    np.testing.assert_array_equal(data.to_numpy().astype(np.int64), [[1, 2], [3, 4]])


def test_an_empty_list_is_of_any_dtype() -> None:
    assert data_of([]).dtype is DType.float32
    assert data_of([], DType.int64).dtype is DType.int64


def test_a_number_is_rounded_once_to_the_dtype() -> None:
    assert data_of(0.1, DType.float64).to_numpy() == 0.1
    assert data_of(0.1, DType.float16).to_numpy() == np.float16(0.1)


@each(
    "value, dtype",
    [
        (1.0, DType.int32),
        (300, DType.uint8),
        (1, DType.bool),
        (70000.0, DType.float16),
        ([1e300, 0.0], None),
        (1000, DType.float8_e4m3fn),
        (np.complex64(1j), DType.float32),
    ],
)
def test_a_number_that_does_not_fit_its_dtype_is_refused(value: Any, dtype: DType | None) -> None:
    with pytest.raises(
        GraphError, match=f"cannot be converted to {(dtype or DType.float32).value}"
    ):
        data_of(value, dtype)


@each("value", ["text", [[1], [2, 3]], 2**70, [object()], np.array("text")])
def test_what_is_not_an_array_of_numbers_is_refused(value: Any) -> None:
    with pytest.raises(GraphError, match="constant: "):
        data_of(value)


def test_an_array_that_changes_later_leaves_the_graph_as_it_was() -> None:
    array = np.zeros(2, np.float32)
    data = data_of(array)
    array[:] = 1
    np.testing.assert_array_equal(data.to_numpy(), [0, 0])


def test_a_constant_is_on_a_device_and_its_numbers_are_not_moved_yet() -> None:
    with Graph("constants") as graph:
        value = ops.constant([1.0], device=DeviceRef.GPU(3))
    assert str(value.type) == "float32[1] on gpu:3"
    assert graph.nodes[-1].attributes["data"].device == DeviceRef.CPU()


@each("value, shape", [("batch", ()), (Dim("batch") * 2, ()), (Shape(("batch", 3)), (2,))])
def test_dimensions_are_values_whose_names_stay_open(value: Any, shape: tuple[int, ...]) -> None:
    with Graph("sizes") as graph:
        size = ops.dims(value)
    assert (size.dtype, size.shape) == (DType.int64, shape)
    assert graph.nodes[-1].attributes["dims"] == value


# Values are printed when a graph runs.


def printed(tensor: torch.Tensor, label: str, capsys: pytest.CaptureFixture[str]) -> str:
    passed = lower_print(tensor, label=label)
    assert passed is tensor
    captured = capsys.readouterr()
    assert not captured.err
    return captured.out


def test_label_dtype_and_shape_stand_above_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    tensor = torch.tensor([[1, 2], [3, 4]], dtype=torch.int32)
    assert printed(tensor, "ids", capsys) == "ids: int32[2, 2]\n[[1 2]\n [3 4]]\n"


def test_without_a_label_the_dtype_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(torch.tensor(1.5), "", capsys) == "float32[]\n1.5\n"


def test_numbers_of_types_that_numpy_lacks_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        shown = printed(torch.tensor([0.5, -2]).to(dtype), "", capsys)
        assert shown == f"{str(dtype).removeprefix('torch.')}[2]\n[ 0.5 -2. ]\n"


def test_long_values_are_abridged(capsys: pytest.CaptureFixture[str]) -> None:
    assert "..." in printed(torch.zeros(100_000), "", capsys)


# Weights as graphs take them: as they are when they are first used.


def test_a_weight_that_is_changed_after_its_use_stays_what_it_was_in_that_graph() -> None:
    weight = Weight("w", DType.float32, (2,))
    with Graph("before") as graph:
        graph.output(weight + 1.0)
        with pytest.warns(
            UserWarning, match="keep `w` with dtype DType.float32; .* use DType.float64"
        ):
            weight.dtype = DType.float64
        with pytest.warns(UserWarning, match=r"keep `w` with shape \[2\]; .* use \[3, 2\]"):
            weight.shape = (3, 2)
        assert (weight + 1.0).type == TensorType(DType.float32, [2])
    weight.name = "v"
    with Graph("after") as other:
        assert (weight + 1.0).type == TensorType(DType.float64, [3, 2])
    assert list(graph.weights_by_name) == ["w"]
    assert list(other.weights_by_name) == ["v"]
    loaded = InferenceSession().load(graph, {"w": np.array([1, 2], np.float32)})
    np.testing.assert_array_equal(loaded.execute()[0].to_numpy(), [2, 3])


def test_a_weight_that_a_graph_has_is_not_called_otherwise_there() -> None:
    weight = Weight("w", DType.float32, (2,))
    with Graph("g") as graph:
        graph.add_weight(weight)
        weight.name = "v"
        with pytest.raises(GraphError, match=r"weight `w` .*was renamed to `v`"):
            _ = weight + 1.0


def test_a_weight_is_made_a_value_like_all_else() -> None:
    weight = Weight("w", DType.float32, (2,))
    with Graph("value") as graph:
        value = Value(weight)
        assert value.graph is graph
        assert value.weight is weight
        assert Value(value) is value
    with Graph("other"), pytest.raises(GraphError, match="a value of graph `value`"):
        Value(value)


def test_what_a_weight_was_stands_in_its_node() -> None:
    weight = Weight("a.w", DType.float16, (3, 32), quantization_encoding=QuantizationEncoding.Q8_0)
    with Graph("node", weight_prefix="a.") as graph:
        node = graph.weight_node(graph.add_weight(weight))
    assert node is not None
    assert node.attributes == {
        "name": "w",
        "is_placeholder": True,
        "weight": weight,
        "original": TensorType(DType.float16, (3, 32)),
        "encoding": QuantizationEncoding.Q8_0,
        "cut_from": None,
        "align": 1,
        "second_names": (),
    }


def test_a_listing_says_what_a_weight_was_when_it_was_added() -> None:
    weight = Weight("w", DType.float32, (2, 32), quantization_encoding=QuantizationEncoding.Q8_0)
    with Graph("listing") as graph:
        graph.output(weight)
    before = graph.dump()
    weight.configure(DType.float32, (2, 256), QuantizationEncoding.Q4_K)
    assert graph.dump() == before
    assert "w, Q8_0" in before


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))]
)
def test_a_graph_can_be_copied_and_pickled(duplicate: Callable[[Graph], Graph]) -> None:
    with Graph("g", [TensorType(DType.float32, (2, 4))]) as graph:
        weight = Weight("w", DType.float32, (4, 4))
        graph.output(ops.relu(graph.inputs[0] @ weight) @ weight)
    made = duplicate(graph)
    assert str(made) == str(graph)
    (own,) = made.weights_by_name.values()
    assert own is not weight
    # The copy knows its weight, which is added once.
    before = len(made.nodes)
    with made:
        assert made.add_weight(own).graph is made
    assert len(made.nodes) == before
    inputs = np.arange(8, dtype=np.float32).reshape(2, 4)
    values = {"w": np.eye(4, dtype=np.float32)}
    (found,) = InferenceSession().load(made, values).execute(inputs[:, :])
    (wanted,) = InferenceSession().load(graph, values).execute(inputs)
    assert np.array_equal(found.to_numpy(), wanted.to_numpy())


def test_devices_and_encodings_are_taken_by_name() -> None:
    assert TensorType(DType.float32, (2,), "gpu:1").device == DeviceRef.GPU(1)
    weight = Weight("w", DType.float32, (4, 256), "CUDA:0", "q4_k")
    assert (weight.device, weight.quantization_encoding.name) == (DeviceRef.GPU(0), "Q4_K")
    weight.device = "cpu"
    weight.quantization_encoding = "Q8_0"
    assert (weight.device, weight.quantization_encoding.name) == (DeviceRef.CPU(), "Q8_0")
    with Graph("g", [TensorType(DType.float32, (2,))]) as graph:
        assert ops.transfer_to(graph.inputs[0], "gpu").device == DeviceRef.GPU(0)
    for wrong in ("tpu", "gpu:-1", "gpu:", 0, None):
        with pytest.raises(ArgumentTypeError, match="is not a device"):
            TensorType(DType.float32, (2,), wrong)


def test_an_encoding_that_the_rows_do_not_fit_is_refused_when_it_is_set() -> None:
    weight = Weight("w", DType.float32, (4, 100))
    with pytest.raises(EncodingError, match="a row is not a whole number of Q4_K blocks"):
        weight.quantization_encoding = "Q4_K"
    assert weight.quantization_encoding is None


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_product_that_fits_the_other_way_says_both(is_turned: bool) -> None:
    with Graph("g", [TensorType(DType.float32, (2, 4))]) as graph:
        weight = Weight("w", DType.float32, (4, 8) if is_turned else (8, 4))
        with pytest.raises(GraphError) as raised:
            graph.inputs[0] @ (weight.T if is_turned else weight)
        fitting = graph.inputs[0] @ (weight if is_turned else weight.T)
    assert fitting.shape == (2, 8)
    assert "`x @ w.T` for a weight of shape (outputs, inputs)" in raised.value.hint
    assert "`x @ w` for one of shape (inputs, outputs)" in raised.value.hint

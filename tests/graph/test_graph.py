from __future__ import annotations

import threading

import numpy as np
import pytest

from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import EncodingError, GraphError
from weightctl.graph import Dim, Graph, Shape, TensorType, TensorValue, Value, Weight, ops
from weightctl.graph.scope import module_path

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

"""Corners of the documented API: what may be set, what is refused, and with which hint."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weightctl import DType, QuantizationEncoding, WeightData, nn
from weightctl.engine import InferenceSession
from weightctl.errors import EncodingError, GraphError
from weightctl.graph import DeviceRef, Graph, Shape, TensorType, TensorValue, Value, Weight, ops

CPU1, GPU = DeviceRef.CPU(1), DeviceRef.GPU(0)
F32, Q8_0 = DType.float32, QuantizationEncoding.Q8_0


def test_the_original_dtype_and_shape_of_a_quantized_weight_may_be_set() -> None:
    weight = Weight("w", F32, (2, 32), quantization_encoding=Q8_0)
    weight.original_dtype_and_shape = (DType.bfloat16, (4, 64))
    assert weight.original_dtype_and_shape == (DType.bfloat16, Shape((4, 64)))
    assert (weight.dtype, weight.shape) == (DType.uint8, [4, 68])
    with pytest.raises(EncodingError, match="33"):
        weight.original_dtype_and_shape = (F32, (4, 33))
    with pytest.raises(GraphError, match="not of its bytes"):
        weight.original_dtype_and_shape = (DType.uint8, (4, 64))
    assert weight.shape == [4, 68]


def test_the_trees_of_a_graph_share_their_names() -> None:
    graph = Graph("g")
    first = graph.weights().layer.w.allocate(F32, (2,))
    assert graph.weights().layer.w.allocate(F32, (2,)) is first
    with pytest.raises(GraphError, match=r"`layer\.w` is allocated as .* already, not as"):
        graph.weights().layer.w.allocate(DType.float16, (2,))


@pytest.mark.parametrize("align", [0, 3, -8, 2.0, "8", True])
def test_an_alignment_is_a_power_of_two(align: Any) -> None:
    with pytest.raises(GraphError, match="not a power of two"):
        Weight("w", F32, (2,), align=align)


@pytest.mark.parametrize("is_resident", [False, True])
def test_the_engine_places_weights_on_their_boundary(is_resident: bool) -> None:
    weight = Weight("w", F32, (3,), align=4096)
    with Graph("aligned") as graph:
        graph.output(weight)
    memory = np.zeros(4 + 3, np.float32)
    memory[1:4] = (1, 2, 3)
    loaded = InferenceSession().load(graph, {"w": memory[1:4]}, resident=is_resident)
    (form,) = loaded._schedule.forms
    assert loaded._weights.tensor(form).data_ptr() % 4096 == 0
    assert loaded()[0].to_numpy().tolist() == [1, 2, 3]


def test_the_name_of_a_strategy_is_not_a_strategy() -> None:
    given: Any = "rowwise"
    for make in (
        lambda: Weight("w", F32, (2,), sharding_strategy=given),
        lambda: setattr(Weight("w", F32, (2,)), "sharding_strategy", given),
    ):
        with pytest.raises(TypeError, match=r"ShardingStrategy\.rowwise\(2\)"):
            make()


def test_the_name_of_torch_for_a_device_is_not_a_device() -> None:
    with pytest.raises(TypeError, match=r"DeviceRef\.GPU\(0\)"):
        DeviceRef("cuda")


def test_a_quantized_weight_is_on_its_device_where_it_is_added() -> None:
    with Graph("placed") as graph:
        added = graph.add_weight(Weight("w", F32, (2, 32), GPU, Q8_0))
    assert (added.device, added.dtype) == (GPU, DType.uint8)


def test_the_name_of_data_may_be_set_and_its_description_follows() -> None:
    data = WeightData.from_numpy(np.zeros(2, np.float32), "a")
    data.name = "b"
    assert (data.name, data.info.name) == ("b", "b")


@pytest.mark.parametrize("attribute", ["shape", "dtype", "quantization_encoding"])
def test_what_would_contradict_the_description_of_data_is_not_set(attribute: str) -> None:
    data = WeightData.from_numpy(np.zeros(2, np.float32), "a")
    with pytest.raises(AttributeError):
        setattr(data, attribute, None)


def test_the_shape_of_data_is_plain_integers() -> None:
    shape = WeightData.from_numpy(np.zeros((2, 3), np.float32), "a").shape
    assert isinstance(shape, Shape)
    assert [type(size) for size in shape] == [int, int]
    assert (shape.sizes, shape.size, shape.is_static, shape) == ((2, 3), 6, True, [2, 3])
    assert np.zeros(shape).shape == (2, 3)


def test_an_output_is_on_the_processor_that_the_graph_has_it_on() -> None:
    with Graph("numbered", [TensorType(F32, (2,), CPU1)]) as graph:
        graph.output(graph.inputs[0] + 1, graph.inputs[0].to(DeviceRef.CPU()))
    found = InferenceSession([CPU1]).load(graph)(np.zeros(2, np.float32))
    assert [each.device for each in found] == [CPU1, DeviceRef.CPU()]


def test_moving_a_module_after_a_graph_was_built_with_it_warns() -> None:
    layer = nn.Linear(2, 2)
    layer.to(GPU)
    with Graph("built", [TensorType(F32, (1, 2), GPU)]) as graph:
        graph.output(layer(graph.inputs[0]))
    with pytest.warns(UserWarning, match="built before keeps `weight` on gpu:0"):
        layer.to(DeviceRef.CPU())


class Doubled(nn.Module):
    def __init__(self) -> None:
        self.inner = nn.Linear(2, 2)

    def __call__(self, x: Value) -> Value:
        return self.inner(x) * 2


def test_a_value_of_a_subgraph_is_not_an_output_and_the_error_says_how_it_becomes_one() -> None:
    seen: list[Value] = []
    layer = Doubled()
    with (
        nn.add_layer_hook(lambda _layer, _args, _kwargs, outputs: seen.append(outputs)),
        Graph("outer", [TensorType(F32, (1, 2))]) as graph,
    ):
        subgraph = layer.build_subgraph("inner", [graph.inputs[0].type])
        (made,) = ops.call(subgraph, graph.inputs[0])
        with pytest.raises(GraphError, match=r"subgraph `inner`.*\n.*have the layer return it"):
            graph.output(made, seen[0])


def test_a_weight_or_value_of_a_value_is_the_value() -> None:
    with Graph("values", [TensorType(F32, ("n", 2))]) as graph:
        (x,) = graph.inputs
        assert Weight(x) is TensorValue(x) is x
        assert TensorValue(x.shape[0]).type == TensorType(DType.int64, ())
        sizes: Any = Weight(x.shape)
        assert not isinstance(sizes, Weight)
        assert sizes.type == TensorType(DType.int64, (2,))


def test_a_description_takes_another_dtype_without_data() -> None:
    described = WeightData.declared("w", F32, (2, 3))
    assert described.astype("float16").dtype is DType.float16

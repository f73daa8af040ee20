"""Corners of the documented API: what may be set, what is refused, and with which hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from weightctl import DType, QuantizationEncoding, WeightData, nn
from weightctl.engine import InferenceSession
from weightctl.errors import EncodingError, GraphError
from weightctl.graph import (
    DeviceRef,
    Dim,
    Graph,
    Shape,
    TensorType,
    TensorValue,
    Value,
    Weight,
    ops,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
    with pytest.raises(
        GraphError,
        match=r"`layer\.w` is already allocated as .*, so it cannot be allocated as float16\[2\]",
    ):
        graph.weights().layer.w.allocate(DType.float16, (2,))


@pytest.mark.parametrize("align", [0, 3, -8, 2.0, "8", True, 1 << 40])
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
    with pytest.warns(UserWarning, match="already built keep `weight` on gpu:0"):
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
        with pytest.raises(
            GraphError,
            match=r"(?s)subgraph `inner`.*return it from the layer",
        ):
            graph.output(made, seen[0])


def test_a_weight_or_value_of_a_value_is_the_value() -> None:
    with Graph("values", [TensorType(F32, ("n", 2))]) as graph:
        (x,) = graph.inputs
        assert Weight(x) is Weight(value=x) is TensorValue(x) is x
        assert TensorValue(x.shape[0]).type == TensorType(DType.int64, ())
        sizes: Any = Weight(x.shape)
        assert not isinstance(sizes, Weight)
        assert sizes.type == TensorType(DType.int64, (2,))


def test_a_description_takes_another_dtype_without_data() -> None:
    described = WeightData.declared("w", F32, (2, 3))
    assert described.astype("float16").dtype is DType.float16


CHANGES: list[tuple[str, Any]] = [
    ("dtype", "float16"),
    ("shape", (3, 2)),
    ("device", CPU1),
    ("align", 64),
    ("quantization_encoding", Q8_0),
    ("original_dtype_and_shape", ("float32", (2, 3))),
]


@pytest.mark.parametrize(("attribute", "after"), CHANGES, ids=[name for name, _ in CHANGES])
def test_an_attribute_that_is_set_after_a_graph_used_the_weight_warns(
    attribute: str, after: Any
) -> None:
    weight = Weight("w", F32, (2, 32))
    setattr(weight, attribute, getattr(weight, attribute))
    with Graph("g") as graph:
        graph.output(weight * 2)
    setattr(weight, attribute, getattr(weight, attribute))
    with pytest.warns(
        UserWarning, match=f"graphs that are already built keep `w` with {attribute}"
    ):
        setattr(weight, attribute, after)


@pytest.mark.parametrize("original", [3, (DType.float16,), "f2", None])
def test_the_original_dtype_and_shape_are_two(original: Any) -> None:
    weight = Weight("w", F32, (2,))
    with pytest.raises(TypeError, match=r"hint: for example `\(DType\.float32, \(2, 64\)\)`"):
        weight.original_dtype_and_shape = original


@pytest.mark.parametrize("given", [np.ones(3), 3, "w", None, Graph("tree").weights().w])
def test_what_is_added_to_a_graph_as_a_weight_is_one(given: Any) -> None:
    with pytest.raises(TypeError, match="a graph takes a Weight, not"):
        Graph("g").add_weight(given)


@pytest.mark.parametrize("number", [-1, "0", True, 1.0, None])
def test_devices_are_counted_from_0(number: Any) -> None:
    with pytest.raises(TypeError, match="devices are numbered from 0"):
        DeviceRef.GPU(number)


@pytest.mark.parametrize("size", [None, 2.5, [2]])
def test_what_is_not_a_dimension_is_named(size: Any) -> None:
    with pytest.raises(
        TypeError,
        match="is not a dimension: use an integer such as 4, a name such as `batch`, or a Dim made "
        "of these",
    ):
        TensorType(F32, (size,))


def test_a_list_of_outputs_is_refused_with_how_they_are_given() -> None:
    with Graph("g", [TensorType(F32, (2,))]) as graph:
        given: Any = [graph.inputs[0]]
        with pytest.raises(GraphError, match=r"graph\.output\(\*values\)"):
            graph.output(given)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_norms_take_a_shape_of_one_axis(norm: Any) -> None:
    assert norm((8,)).weight.shape == norm([8]).weight.shape == norm(8).weight.shape == [8]
    for wrong in ((8, 2), (), "8", 8.0):
        with pytest.raises(TypeError, match="normalizes the last axis"):
            norm(wrong)


@pytest.mark.parametrize("given", [[[1.0, 2.0]], 3, None])
@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.RMSNorm(2), nn.LayerNorm(2)], ids=repr)
def test_a_layer_that_is_called_with_what_is_not_a_value_says_so(layer: Any, given: Any) -> None:
    with Graph("g"), pytest.raises(TypeError, match="which is not a value of a graph"):
        layer(given)


def test_a_layer_computes_in_the_dtype_of_its_inputs() -> None:
    with Graph("g"):
        assert nn.Linear(2, 2)(np.ones((1, 2))).dtype is DType.float64


@pytest.mark.parametrize("replaced", ["x", 3, np.ones(2)])
def test_a_hook_does_not_replace_a_value_by_what_is_not_one(replaced: Any) -> None:
    def hook(*_: Any) -> Any:
        return replaced

    with (
        nn.add_layer_hook(hook),
        Graph("g", [TensorType(F32, (1, 2))]) as graph,
        pytest.raises(TypeError, match=r"instead of float32\[1, 2\], the output of Linear"),
    ):
        nn.Linear(2, 2)(graph.inputs[0])


def test_a_subgraph_of_one_input_takes_its_type() -> None:
    with Graph("g", [TensorType(F32, (1, 2))]) as graph:
        made = nn.Linear(2, 2).build_subgraph("one", graph.inputs[0].type)
        assert [value.type for value in made.inputs] == [graph.inputs[0].type]
        for wrong in (3, ["float32"], [[3]]):
            given: Any = wrong
            with pytest.raises(
                GraphError, match="is not a valid list of input types for a subgraph"
            ):
                nn.Linear(2, 2).build_subgraph("other", given)


def test_a_size_beside_a_value_is_a_value_in_any_order() -> None:
    with Graph("sizes", [TensorType(F32, ("n", 4))]) as graph:
        (x,) = graph.inputs
        n, d = x.shape
        made = (d * x, n * x, n + x, d - x, d / x, x / d**0.5, x * n, np.sqrt(d) * x, x / (d / 2))
        graph.output(*made)
    ones = np.ones((3, 4), np.float32)
    found = InferenceSession().load(graph)(ones)
    assert [each.to_numpy()[0, 0] for each in found] == [4, 3, 4, 3, 4, 0.5, 3, 2, 0.5]


def test_known_sizes_compute_as_numbers_and_compare() -> None:
    d, n = Dim(4), Dim("n")
    assert (d / 2, 2 / d, d**0.5, d**2, np.sqrt(d), float(d)) == (2, 0.5, 2, 16, 2, 4)
    assert (d > 3, d >= 4, d < 4, d <= 3.5, d > d - 1, d > 3) == (
        True, True, False, False, True, True,
    )  # fmt: skip
    assert n + 1 > n
    assert not n + 1 < n


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n / 2,
        lambda n: 2 / n,
        lambda n: n**0.5,
        np.sqrt,
        lambda n: n > 3,
        lambda n: n <= 3,
    ],
)
def test_sizes_that_are_not_known_say_how_they_are_computed_with(
    compute: Callable[[Dim], object],
) -> None:
    with pytest.raises(TypeError, match=r"`.*n.*`.*Value\(dim\)"):
        compute(Dim("n"))


def test_ranges_take_the_words_of_torch_and_refuse_fractions_with_what_gives_them() -> None:
    with Graph("ranges", [TensorType(F32, ("n", 4))]) as graph:
        assert ops.arange(start=0, end=3).shape == [3]
        wrong: Any = 0.25
        for make in (lambda: ops.arange(wrong), lambda: ops.arange(0, 1, wrong)):
            with pytest.raises(GraphError, match=r"0\.25 is not an integer"):
                make()
        with pytest.raises(GraphError, match="are the same argument, and both"):
            ops.arange(0, 3, end=3)
        for count in ("a", 2.5, 0):
            given: Any = count
            with pytest.raises(GraphError, match="the number of chunks cannot be"):
                ops.chunk(graph.inputs[0], given, dim=1)

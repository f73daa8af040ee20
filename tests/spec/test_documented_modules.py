"""The snippets of the documents that specify modules and layers, with what they say comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from weightctl import nn
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.engine import InferenceSession
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.nn import Layer, LayerList, add_layer_hook, clear_hooks, recursive_named_layers
from weightctl.weights import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.graph import Value


# 003: its Linear drops `.T`, since the weight is (in, out), and takes `in_dims` by one name.
class Linear(nn.Module):
    def __init__(self, in_dims: int, out_dims: int) -> None:
        super().__init__()
        self.weight = Weight("weight", DType.float32, (in_dims, out_dims), DeviceRef.CPU())

    def __call__(self, x: Value) -> Value:
        return x @ self.weight


class MLP(nn.Module):
    def __init__(self) -> None:
        self.up = Linear(5, 10)
        self.gate = Linear(5, 10)
        self.down = Linear(10, 5)

    def __call__(self, x: Value) -> Value:
        return self.down(ops.silu(self.gate(x)) + self.up(x))


class Model(nn.Module):
    """Layers that are called as a subgraph, as 003 shows it."""

    def __init__(self, layers: int = 3) -> None:
        self.layers = LayerList([Pair() for _ in range(layers)])

    def __call__(self, *h: Value) -> list[Value]:
        input_types = [hidden.type for hidden in h]
        subgraph = self.layers[0].build_subgraph(
            "transformer_block",
            input_types=input_types,
            weight_prefix="layers.0.",
        )
        # Call it once per layer with the correct weight prefix.
        values = list(h)
        for idx in range(len(self.layers)):
            outputs = ops.call(subgraph, *values, prefix=f"layers.{idx}.")
            values = [x.tensor for x in outputs]
        return values


class Pair(nn.Module):
    """An MLP of two values."""

    def __init__(self) -> None:
        self.mlp = MLP()

    def __call__(self, left: Value, right: Value) -> tuple[Value, Value]:
        return right, self.mlp(left) + right


X = TensorType(DType.float32, ("batch", 5))


@pytest.fixture(autouse=True)
def _without_hooks() -> Iterator[None]:
    yield
    clear_hooks()


def random_state(module: nn.Module) -> dict[str, Any]:
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(size=weight.shape.sizes).astype(np.float32)
        for name, weight in module.raw_state_dict().items()
    }


def test_print_the_state_dict_of_the_mlp(capsys: pytest.CaptureFixture[str]) -> None:
    model = MLP()
    print(model.state_dict())
    assert capsys.readouterr().out == (
        "{'up.weight': Buffer([5, 10]), 'gate.weight': Buffer([5, 10]), "
        "'down.weight': Buffer([10, 5])}\n"
    )


def test_without_a_module_the_names_collide() -> None:
    linears = [Linear(5, 10), Linear(5, 10)]
    with Graph("g", [X]) as graph:
        linears[0](graph.inputs[0])
        with pytest.raises(ValueError, match="two weights of graph `g` are named `weight`"):
            linears[1](graph.inputs[0])


def test_the_mlp_runs_with_names_that_are_unique_within_the_model() -> None:
    model = MLP()
    state = random_state(model)
    model.load_state_dict(state)
    with Graph("g", [X]) as graph:
        graph.output(model(graph.inputs[0]))
    assert sorted(graph.weights_by_name) == ["down.weight", "gate.weight", "up.weight"]
    x = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    (result,) = InferenceSession().load(graph, model.state_dict()).execute(x)
    gate = x @ state["gate.weight"]
    expected = (gate / (1 + np.exp(-gate)) + x @ state["up.weight"]) @ state["down.weight"]
    assert np.allclose(np.asarray(result), expected, rtol=1e-5, atol=1e-5)


def test_build_a_subgraph_from_layer_0_and_call_it_once_per_layer() -> None:
    model = Model()
    state = random_state(model)
    model.load_state_dict(state)
    with Graph("g", [X, X]) as graph:
        graph.output(*model(*graph.inputs))
    with Graph("inlined", [X, X]) as inlined:
        values: Any = inlined.inputs
        for layer in model.layers:
            values = layer(*values)
        inlined.output(*values)
    inputs = np.random.default_rng(1).normal(size=(2, 3, 5)).astype(np.float32) / 9
    results = [
        [np.asarray(result) for result in InferenceSession().load(of, state).execute(*inputs)]
        for of in (graph, inlined)
    ]
    assert np.array_equal(results[0], results[1])
    assert list(graph.subgraphs) == ["transformer_block"]


def test_a_subgraph_is_a_graph_of_its_own() -> None:
    with Graph("g", [X]):
        subgraph = MLP().build_subgraph("mlp", [X])
    assert isinstance(subgraph, Graph)
    assert subgraph.name == "mlp"


def test_the_name_of_a_subgraph_must_be_unique_within_the_containing_graph() -> None:
    with Graph("g", [X]):
        MLP().build_subgraph("mlp", [X])
        with pytest.raises(ValueError, match="`mlp`"):
            MLP().build_subgraph("mlp", [X])


def test_layer_weights_map_names_to_the_weights_of_this_layer() -> None:
    linear = Linear(5, 10)
    assert linear.layer_weights == {"weight": linear.weight}
    assert MLP().layer_weights == {}


@pytest.mark.parametrize("change", [{"down.weight": None}, {"more": np.zeros(1, np.float32)}])
def test_load_state_dict_raises_for_missing_and_for_unused_names(change: dict[str, Any]) -> None:
    model = MLP()
    state = random_state(model) | change
    state = {name: value for name, value in state.items() if value is not None}
    with pytest.raises(ValueError, match=r"down\.weight|more"):
        model.load_state_dict(state)
    assert model.load_state_dict(state, strict=False) is not None


def test_the_values_returned_are_the_same_as_those_set() -> None:
    model = MLP()
    state = random_state(model)
    model.load_state_dict(state)
    assert all(model.state_dict()[name] is value for name, value in state.items())


def test_values_are_initialized_to_zero_where_none_were_loaded() -> None:
    state = MLP().state_dict()
    assert all(isinstance(value, Buffer) for value in state.values())
    assert not any(np.asarray(value).any() for value in state.values())


def test_auto_initialize_false_raises_where_a_weight_is_uninitialized() -> None:
    with pytest.raises(ValueError, match=r"`up\.weight`, `gate\.weight`, `down\.weight`"):
        MLP().state_dict(auto_initialize=False)


def test_raw_state_dict_returns_weights_that_may_be_configured_before_a_graph_is_built() -> None:
    model = MLP()
    weight = model.raw_state_dict()["up.weight"]
    assert weight is model.up.weight
    weight.shape, weight.dtype, weight.align = (5, 12), DType.float16, 64
    weight.device, weight.quantization_encoding = DeviceRef.GPU(0), None
    assert str(model.up.weight.type) == "float16[5, 12] on gpu:0"


def test_a_shared_weight_is_set_and_skipped() -> None:
    model = MLP()
    model.gate.set_shared_weight("weight", model.up.weight)
    assert model.gate.weight is model.up.weight
    assert list(model.raw_state_dict()) == ["up.weight", "down.weight"]
    model.load_state_dict(random_state(model))
    assert list(model.state_dict()) == ["up.weight", "down.weight"]


# 004
def print_info(layer: Layer, args: Any, kwargs: Any, outputs: Any) -> Any:
    print("Layer:", type(layer).__name__)
    print("Input args:", args)
    print("Input kwargs:", kwargs)
    print("Outputs:", outputs)
    return outputs


def test_printing_debug_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    add_layer_hook(print_info)
    with Graph("g", [X]) as graph:
        Linear(5, 10)(graph.inputs[0])
    assert capsys.readouterr().out == (
        "Layer: Linear\n"
        "Input args: (%0: float32[batch, 5],)\n"
        "Input kwargs: {}\n"
        "Outputs: %2: float32[batch, 10]\n"
    )
    clear_hooks()
    with Graph("g", [X]) as graph:
        Linear(5, 10)(graph.inputs[0])
    assert capsys.readouterr().out == ""


def test_a_layer_list_can_be_used_as_a_regular_python_list() -> None:
    layers = LayerList([MLP()])
    layers.append(MLP())
    layers.extend([MLP(), MLP()])
    layers.insert(0, Linear(5, 5))  # type: ignore[arg-type]
    assert len(layers) == 5
    assert isinstance(layers[0], Linear)
    assert list(layers.sublayers) == ["0", "1", "2", "3", "4"]


def test_layers_are_walked_and_named() -> None:
    model = MLP()
    assert [name for name, _ in recursive_named_layers(model)] == ["", "up", "gate", "down"]
    assert [name for name, _ in recursive_named_layers(model, prefix="mlp")] == [
        "mlp", "mlp.up", "mlp.gate", "mlp.down",
    ]  # fmt: skip


def test_to_manages_devices() -> None:
    model = MLP()
    model.to(DeviceRef.GPU(0))
    assert {weight.device for weight in model.raw_state_dict().values()} == {DeviceRef.GPU(0)}

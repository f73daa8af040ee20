from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from runs import graph_of, run
from small_modules import ROWS, Block, Scale, Stack, random_values
from weightctl.device import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.graph import Graph, Weight
from weightctl.nn import Layer, LayerV2, Module, recursive_named_layers
from weightctl.weights import Buffer

if TYPE_CHECKING:
    from weightctl.graph import Value


class Tied(Module):
    """A model whose head has the weight of its embedding, without saying so."""

    def __init__(self) -> None:
        self.embedding = Scale()
        self.head = Scale()
        self.head.weight = self.embedding.weight

    def __call__(self, x: Value) -> Value:
        return self.head(self.embedding(x))


class Shared(Tied):
    """The same, but it says so."""

    def __init__(self) -> None:
        super().__init__()
        self.head.set_shared_weight("weight", self.embedding.weight)


def test_weights_have_the_paths_of_attributes() -> None:
    assert list(Stack(2).raw_state_dict()) == [
        "layers.0.up.weight", "layers.0.down.weight", "layers.1.up.weight",
        "layers.1.down.weight", "head.weight",
    ]  # fmt: skip


def test_a_module_need_not_call_the_constructor_of_its_base() -> None:
    class Calls(Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = Scale()

    class CallsNot(Module):
        def __init__(self) -> None:
            self.scale = Scale()

    assert list(Calls().state_dict()) == list(CallsNot().state_dict()) == ["scale.weight"]


def test_a_dataclass_may_be_a_module() -> None:
    @dataclasses.dataclass
    class Pair(Module):
        left: Scale
        right: Scale

    assert list(Pair(Scale(), Scale()).state_dict()) == ["left.weight", "right.weight"]


def test_sublayers_and_layer_weights_are_those_right_below() -> None:
    stack = Stack(1)
    assert stack.sublayers == {"layers": stack.layers, "head": stack.head}
    assert stack.layer_weights == {}
    assert stack.head.layer_weights == {"weight": stack.head.weight}


def test_attributes_that_come_and_go_are_seen() -> None:
    block = Block()
    del block.up
    block.bias = Weight("bias", DType.float32, (4,))  # type: ignore[attr-defined]
    assert list(block.raw_state_dict()) == ["bias", "down.weight"]


def test_weights_of_layers_that_are_not_modules_have_names_too() -> None:
    class Plain(Layer):
        def __init__(self) -> None:
            self.scale = Scale()

    class Model(Module):
        def __init__(self) -> None:
            self.plain = Plain()

    assert list(Model().raw_state_dict()) == ["plain.scale.weight"]


@each("ask", [Module.name_weights, Module.raw_state_dict, Module.state_dict])
def test_asking_for_its_state_names_the_weights_of_a_model_too(ask: Any) -> None:
    stack = Stack(1)
    ask(stack)
    assert stack.layers[0].up.weight.name == "layers.0.up.weight"


def test_what_is_changed_in_the_raw_state_is_changed_in_the_model() -> None:
    scale = Scale()
    weight = scale.raw_state_dict()["weight"]
    weight.dtype, weight.shape = DType.bfloat16, (7,)
    (made,) = scale.state_dict().values()
    assert isinstance(made, Buffer)
    assert (made.dtype, made.shape) == (DType.bfloat16, (7,))


def test_parts_of_a_named_model_keep_their_names() -> None:
    stack = Stack(2)
    stack.name_weights()
    assert list(stack.layers[1].state_dict()) == ["up.weight", "down.weight"]
    assert stack.layers[1].up.weight.name == "layers.1.up.weight"


def test_a_part_that_was_named_alone_gets_its_name_from_the_model() -> None:
    stack = Stack(1)
    stack.layers[0].name_weights()
    assert stack.layers[0].up.weight.name == "up.weight"
    stack.name_weights()
    assert stack.layers[0].up.weight.name == "layers.0.up.weight"


def test_a_part_that_has_moved_or_left_the_model_is_named_anew() -> None:
    stack = Stack(2)
    stack.name_weights()
    first, second = stack.layers
    del stack.layers[0]
    second.name_weights()
    first.name_weights()
    assert second.up.weight.name == "layers.0.up.weight"
    assert first.up.weight.name == "up.weight"


def test_a_part_forgets_a_model_that_is_gone() -> None:
    stack = Stack(1)
    stack.name_weights()
    block = stack.layers[0]
    del stack
    block.name_weights()
    assert block.up.weight.name == "up.weight"


def test_a_weight_that_is_reached_twice_is_named_by_the_first_path() -> None:
    tied = Tied()
    assert list(tied.raw_state_dict()) == ["embedding.weight"]
    assert list(tied.head.raw_state_dict()) == ["weight"]
    assert tied.head.weight.name == "embedding.weight"


def test_a_shared_weight_is_an_attribute_and_in_no_state() -> None:
    shared = Shared()
    assert shared.head.weight is shared.embedding.weight
    assert shared.head.layer_weights == {"weight": shared.embedding.weight}
    assert shared.head.raw_state_dict() == {}
    assert shared.head.state_dict() == {}
    assert list(shared.raw_state_dict()) == ["embedding.weight"]


def test_a_shared_weight_keeps_the_name_of_its_owner_wherever_that_stands() -> None:
    class HeadFirst(Module):
        def __init__(self) -> None:
            self.head = Scale()
            self.embedding = Scale()
            self.head.set_shared_weight("weight", self.embedding.weight)

    assert list(HeadFirst().raw_state_dict()) == ["embedding.weight"]


def test_an_attribute_that_gets_another_weight_is_shared_no_more() -> None:
    shared = Shared()
    shared.head.weight = Weight("weight", DType.float32, (4,))
    assert list(shared.raw_state_dict()) == ["embedding.weight", "head.weight"]


def test_only_a_weight_can_be_shared() -> None:
    with pytest.raises(TypeError, match="a shared weight must be a Weight, not ndarray"):
        Scale().set_shared_weight("weight", np.zeros(4))  # type: ignore[arg-type]


@each("model", [Tied, Shared])
def test_a_tied_weight_is_loaded_once_and_in_the_graph_once(model: type[Tied]) -> None:
    tied = model()
    tied.load_state_dict({"embedding.weight": np.full(4, 3, np.float32)})
    assert list(graph_of(tied, [ROWS]).weights_by_name) == ["embedding.weight"]
    assert run(tied, np.ones((1, 4), np.float32)).tolist() == [[9, 9, 9, 9]]


def test_a_value_is_the_models_and_its_parts() -> None:
    tied = Tied()
    value = np.ones(4, np.float32)
    tied.name_weights()
    tied.head.load_state_dict({"weight": value})
    assert tied.state_dict()["embedding.weight"] is value
    assert tied.embedding.state_dict()["weight"] is value


def test_two_weights_of_one_path_are_an_error() -> None:
    block = Block()
    setattr(block, "up.weight", Weight("bias", DType.float32, (4,)))
    with pytest.raises(ValueError, match=r"two weights of Block have the path `up\.weight`"):
        block.name_weights()


def test_weights_without_values_become_zeros_and_stay_them() -> None:
    scale = Scale()
    first = scale.state_dict()["weight"]
    assert np.asarray(first).tolist() == [0, 0, 0, 0]
    assert scale.state_dict()["weight"] is first


def test_zeros_are_made_for_the_weights_that_were_not_loaded() -> None:
    block = Block()
    value = np.ones(4, np.float32)
    block.load_state_dict({"up.weight": value}, strict=False)
    state = block.state_dict()
    assert state["up.weight"] is value
    assert not np.asarray(state["down.weight"]).any()


def test_zeros_of_a_quantized_weight_are_blocks_that_can_be_loaded() -> None:
    class Quantized(Module):
        def __init__(self) -> None:
            encoding = QuantizationEncoding.Q8_0
            self.weight = Weight("w", DType.float32, (2, 64), quantization_encoding=encoding)

    module = Quantized()
    state = module.state_dict()
    assert repr(state) == "{'weight': Buffer([2, 68])}"
    module.load_state_dict(state)


def test_zeros_start_where_the_weight_asks() -> None:
    scale = Scale()
    scale.weight.align = 4096
    made = np.asarray(scale.state_dict()["weight"])
    assert made.ctypes.data % 4096 == 0


def test_zeros_follow_a_weight_that_is_changed_afterwards() -> None:
    scale = Scale()
    scale.state_dict()
    scale.weight.shape = (6,)
    assert repr(scale.state_dict()) == "{'weight': Buffer([6])}"


def test_without_auto_initialize_all_weights_without_values_are_named() -> None:
    block = Block()
    with pytest.raises(ValueError, match=r"`up\.weight`, `down\.weight`") as error:
        block.state_dict(auto_initialize=False)
    assert "Block has weights without values" in str(error.value)
    block.load_state_dict(random_values(block))
    assert list(block.state_dict(auto_initialize=False)) == ["up.weight", "down.weight"]


def test_zeros_need_a_size() -> None:
    class Named(Module):
        def __init__(self) -> None:
            self.weight = Weight("weight", DType.float32, ("vocabulary", 4))

    with pytest.raises(ValueError, match="weights have dimensions without a size: `weight`"):
        Named().state_dict()


def test_another_weight_in_the_same_place_has_no_value() -> None:
    scale = Scale()
    scale.load_state_dict({"weight": np.ones(4, np.float32)})
    scale.weight = Weight("weight", DType.float32, (4,))
    assert not np.asarray(scale.state_dict()["weight"]).any()


def test_a_copy_of_a_model_has_weights_and_names_of_its_own() -> None:
    stack = Stack(1)
    stack.load_state_dict(random_values(stack))
    twin = copy.deepcopy(stack)
    twin.layers.insert(0, Block())
    twin.name_weights()
    twin.layers[1].load_state_dict(random_values(twin.layers[1]))
    assert twin.layers[1].up.weight.name == "layers.1.up.weight"
    assert stack.layers[0].up.weight.name == "layers.0.up.weight"
    assert stack.layers[0].up.weight is not twin.layers[1].up.weight


def test_a_copy_of_a_part_is_a_model_of_its_own() -> None:
    stack = Stack(1)
    stack.name_weights()
    block = copy.deepcopy(stack.layers[0])
    block.name_weights()
    assert block.up.weight.name == "up.weight"


def test_a_shallow_copy_keeps_its_values_when_the_other_gets_new_weights() -> None:
    scale = Scale()
    value = np.ones(4, np.float32)
    scale.load_state_dict({"weight": value})
    twin = copy.copy(scale)
    twin.weight = Weight("weight", DType.float32, (4,))
    twin.state_dict()
    assert scale.state_dict()["weight"] is value


def test_a_model_can_be_pickled_with_its_values() -> None:
    stack = Stack(1)
    values = random_values(stack)
    stack.load_state_dict(values)
    state = pickle.loads(pickle.dumps(stack)).state_dict(auto_initialize=False)
    assert {name: np.asarray(value).tolist() for name, value in state.items()} == {
        name: value.tolist() for name, value in values.items()
    }


def test_walking_starts_with_the_parent_and_sees_shared_layers_and_cycles_once() -> None:
    class Child(Module):
        def __init__(self, parent: Module) -> None:
            self.parent = parent

    class Parent(Module):
        def __init__(self) -> None:
            self.left = Scale()
            self.right = self.left
            self.child = Child(self)

    parent = Parent()
    assert list(recursive_named_layers(parent)) == [
        ("", parent), ("left", parent.left), ("child", parent.child),
    ]  # fmt: skip


def test_walking_does_not_recurse() -> None:
    root = layer = Block()
    for _ in range(1500):
        layer.up = Block()  # type: ignore[assignment]
        layer = layer.up  # type: ignore[assignment]
    assert sum(1 for _ in recursive_named_layers(root)) == 1500 * 2 + 3


def test_to_puts_all_weights_on_a_device() -> None:
    shared = Shared()
    shared.to(DeviceRef.GPU(1))
    assert shared.embedding.weight.device == shared.head.weight.device == DeviceRef.GPU(1)
    assert shared.sharding_strategy is None


class Whole:
    """A strategy that gives each device the whole weight."""

    devices = 2

    def shard(self, weight: Weight, _number: int, device: DeviceRef) -> Weight:
        return Weight(weight.name, weight.dtype, weight.shape, device)


def test_to_several_devices_sets_the_strategy_of_module_and_weights() -> None:
    block, strategy = Block(), Whole()
    devices = [DeviceRef.GPU(0), DeviceRef.GPU(1)]
    block.to(*devices, sharding_strategy=strategy)
    assert block.sharding_strategy is strategy
    assert block.up.weight.sharding_strategy is strategy
    assert [shard.device for shard in block.up.weight.shard(devices)] == devices


@each(
    "devices, says",
    [
        ([], "at least one device is needed"),
        ([DeviceRef.GPU(0), DeviceRef.GPU(1)], "2 devices without a strategy"),
    ],
)
def test_to_refuses_what_it_cannot_do(devices: list[DeviceRef], says: str) -> None:
    block = Block()
    with pytest.raises(ValueError, match=says):
        block.to(*devices)
    assert block.up.weight.device == DeviceRef.CPU()


def test_layer_v2_is_module() -> None:
    assert LayerV2 is Module


def test_a_module_that_is_called_first_names_its_weights_then() -> None:
    block = Block()
    with Graph("model", [ROWS]) as graph:
        block(graph.inputs[0])
    assert sorted(graph.weights_by_name) == sorted(block.raw_state_dict())


def test_two_modules_of_one_graph_collide_and_the_error_says_what_to_do() -> None:
    with Graph("model", [ROWS]) as graph:
        Scale()(graph.inputs[0])
        with pytest.raises(ValueError, match="two weights of graph `model` are named `weight`"):
            Scale()(graph.inputs[0])

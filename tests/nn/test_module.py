"""Modules: the names, values and devices of their weights, copies, subgraphs and lists."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from runs import executed, graph_of, run
from small_modules import ROWS, Block, Scale, Stack, random_values
from weightctl import DeviceRef
from weightctl.dtype import DType, QuantizationEncoding
from weightctl.errors import GraphError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.nn import (
    Embedding,
    Layer,
    LayerList,
    LayerV2,
    Linear,
    Module,
    RMSNorm,
    add_layer_hook,
    recursive_named_layers,
)
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


class Nested(Module):
    def __init__(self, features: int = 4) -> None:
        self.norm = RMSNorm(features, 1e-5)
        self.up = Linear(features, 8)


class Model(Module):
    def __init__(self) -> None:
        self.layers = LayerList([Nested(), Nested(), Nested(6)])
        self.output = Linear(
            32, 4, dtype=DType.bfloat16, quantization_encoding=QuantizationEncoding.Q8_0
        )
        self.heads = LayerList([])


def test_a_model_reads_as_a_tree_with_layers_that_are_alike_in_one() -> None:
    assert repr(Model()) == (
        "Model(\n"
        "  layers: [\n"
        "    0 to 1: Nested(\n"
        "      norm: RMSNorm(weight: float32[4])\n"
        "      up: Linear(weight: float32[8, 4])\n"
        "    )\n"
        "    2: Nested(\n"
        "      norm: RMSNorm(weight: float32[6])\n"
        "      up: Linear(weight: float32[8, 6])\n"
        "    )\n"
        "  ]\n"
        "  output: Linear(weight: bfloat16[4, 32] as Q8_0)\n"
        "  heads: []\n"
        ")"
    )


def test_a_layer_tells_its_weights_and_where_they_are() -> None:
    layer = Linear(2, 3, bias=True)
    layer.to(DeviceRef.GPU(0))
    assert repr(layer) == "Linear(weight: float32[3, 2] on gpu:0, bias: float32[3] on gpu:0)"
    assert repr(Embedding(5, 2)) == "Embedding(weight: float32[5, 2])"
    assert repr(Module()) == "Module()"


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


class Numbered(Layer):
    """A layer that prints as a number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        return f"L{self.number}"


class LayerListModel(Module):
    """A model of one list."""

    def __init__(self, *layers: Any) -> None:
        self.layers = LayerList[Any](layers)


LAYERS = [Numbered(number) for number in range(6)]
layers = st.sampled_from(LAYERS)
some = st.lists(layers, max_size=4)
places = st.integers(-6, 6)
ends = st.none() | places
slices = st.builds(slice, ends, ends, ends.filter(lambda step: step != 0))
operations = st.one_of(
    st.tuples(st.just("append"), layers),
    st.tuples(st.just("extend"), some),
    st.tuples(st.just("__iadd__"), some),
    st.tuples(st.just("__imul__"), st.integers(0, 2)),
    st.tuples(st.just("insert"), places, layers),
    st.tuples(st.just("remove"), layers),
    st.tuples(st.just("pop"), places),
    st.tuples(st.just("index"), layers),
    st.tuples(st.just("count"), layers),
    st.tuples(st.just("reverse")),
    st.tuples(st.just("clear")),
    st.tuples(st.just("copy")),
    st.tuples(st.just("__getitem__"), places | slices),
    st.tuples(st.just("__setitem__"), places, layers),
    st.tuples(st.just("__setitem__"), slices, some),
    st.tuples(st.just("__delitem__"), places | slices),
    st.tuples(st.just("__add__"), some),
    st.tuples(st.just("__mul__"), st.integers(-1, 2)),
    st.tuples(st.just("__contains__"), layers),
    st.tuples(st.just("__eq__"), some),
    st.tuples(st.just("__len__")),
)


def outcome(of: list[Any], name: str, *args: Any) -> Any:
    try:
        return getattr(of, name)(*args)
    except (IndexError, ValueError) as error:
        return type(error)


@given(some, st.lists(operations, max_size=8))
def test_it_does_what_a_list_does(start: list[Layer], steps: list[tuple[Any, ...]]) -> None:
    plain, ours = list(start), LayerList(start)
    for step in steps:
        assert outcome(plain, *step) == outcome(ours, *step)
        assert list(ours) == plain
        assert ours == plain
        assert ours.sublayers == {str(place): layer for place, layer in enumerate(plain)}


def test_slices_sums_products_and_copies_are_layer_lists() -> None:
    made = LayerList(LAYERS[:3])
    others = [made[1:], made + LAYERS, LAYERS + made, made * 2, 2 * made, made.copy()]
    assert all(isinstance(other, LayerList) for other in others)
    assert LAYERS + made == [*LAYERS, *made]
    assert made[1:] == LAYERS[1:3]


def test_it_is_a_list() -> None:
    assert isinstance(LayerList(), list)
    assert LayerList() == []
    assert not LayerList()


def test_it_prints_as_what_it_is() -> None:
    assert repr(LayerList(LAYERS[:2])) == "LayerList([L0, L1])"


@each(
    "step",
    [("append", 3), ("insert", 0, 3), ("extend", [LAYERS[0], 3]), ("__iadd__", [LAYERS[0], 3]),
     ("__setitem__", 0, 3), ("__setitem__", slice(0, 1), [LAYERS[0], 3]), ("__add__", [3]),
     ("__radd__", [3])],
)  # fmt: skip
def test_what_is_not_a_layer_is_refused_and_nothing_changes(step: tuple[Any, ...]) -> None:
    made = LayerList(LAYERS[:2])
    name, *args = step
    with pytest.raises(TypeError, match="a LayerList can only contain layers, not int"):
        getattr(made, name)(*args)
    assert made == LAYERS[:2]


def test_a_class_instead_of_a_layer_is_named() -> None:
    with pytest.raises(TypeError, match="not the class Numbered"):
        LayerList([Numbered])  # type: ignore[type-var]


def test_one_layer_is_not_a_list_of_them() -> None:
    with pytest.raises(
        TypeError, match="a single Numbered is not a list of layers; use `append` to add it"
    ):
        LayerList().extend(LAYERS[0])  # type: ignore[arg-type]


def test_something_else_cannot_be_added() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        LayerList() + 3  # type: ignore[operator]


def test_the_naming_sees_every_change() -> None:
    model = LayerListModel(Scale(), Scale())
    last = model.layers[1]
    del model.layers[0]
    model.layers.extend([Scale(), Scale()])
    model.layers.insert(0, Scale())
    assert list(model.raw_state_dict()) == [f"layers.{place}.weight" for place in range(4)]
    assert model.layers[1] is last
    assert last.weight.name == "layers.1.weight"


def test_lists_in_lists_are_named_by_both_places() -> None:
    model = LayerListModel(LayerList([Scale()]), LayerList([Scale(), Scale()]))
    assert list(model.raw_state_dict()) == [
        "layers.0.0.weight", "layers.1.0.weight", "layers.1.1.weight",
    ]  # fmt: skip


def test_a_layer_that_is_there_twice_is_named_once() -> None:
    scale = Scale()
    assert list(LayerListModel(scale, scale).raw_state_dict()) == ["layers.0.weight"]


def test_walking_yields_the_list_and_then_its_layers() -> None:
    model = LayerListModel(*LAYERS[:2])
    assert list(recursive_named_layers(model, "model")) == [
        ("model", model), ("model.layers", model.layers), ("model.layers.0", LAYERS[0]),
        ("model.layers.1", LAYERS[1]),
    ]  # fmt: skip


def test_copies_and_pickles_of_a_list_are_lists_of_layers() -> None:
    made = LayerList([Scale(), Scale()])
    deep = copy.deepcopy(made)
    assert copy.copy(made) == made
    assert isinstance(deep, LayerList)
    assert deep[0] is not made[0]
    numbered = pickle.loads(pickle.dumps(LayerList(LAYERS[:2])))
    assert isinstance(numbered, LayerList)
    assert repr(numbered) == "LayerList([L0, L1])"

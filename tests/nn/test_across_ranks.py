"""Layers in whose place several ranks compute, and networks of such."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from runs import executed, graph_of, run
from small_modules import Block, random_values
from weightctl import DeviceRef, DType, QuantizationEncoding
from weightctl.device import CPU
from weightctl.errors import EngineError, GraphError, ShardingError
from weightctl.graph import Graph, TensorType, ops
from weightctl.nn import (
    MLP,
    Attention,
    Embedding,
    GatedMLP,
    LayerList,
    Linear,
    MixtureOfExperts,
    Module,
    Parallel,
    add_layer_hook,
    clear_hooks,
)
from weightctl.nn.across_ranks import parallel
from weightctl.split import Grid

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.graph import Value
    from weightctl.nn import Divisible, Layer

GPUS = [DeviceRef.GPU(0), DeviceRef.GPU(1)]
ROWS = TensorType(DType.float32, ("batch", 8))


def values_of(module: Module) -> dict[str, Any]:
    """Return numbers so small that what sums of them come to is small too."""
    return {name: value * np.float32(0.3) for name, value in random_values(module).items()}


def x(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).standard_normal(shape, np.float32)


LAYERS: dict[str, Callable[[], Divisible]] = {
    "attention": lambda: Attention(8, 4, kv_heads=2, bias=True, norm_epsilon=1e-5),
    "fused attention": lambda: Attention(8, 4, fused=True, bias=True, transposed=True),
    "mlp": lambda: MLP(8, 5, "gelu"),
    "transposed mlp": lambda: MLP(8, 5, "gelu", transposed=True),
    "gated mlp": lambda: GatedMLP(8, 5, "silu", bias=True),
    "fused mlp": lambda: GatedMLP(8, 5, "silu", fused=True, bias=True),
    "mixture": lambda: MixtureOfExperts(8, 6, "silu", count=5, used=2),
    "linear": lambda: Linear(8, 7, bias=True),
    "transposed linear": lambda: Linear(8, 7, bias=True, transposed=True),
}
GRIDS = [Grid(1), Grid(2), Grid(4), Grid(1, 2), Grid(2, 3)]


@each("grid", GRIDS, ids=str)
@each("name", LAYERS)
def test_ranks_give_together_what_the_layer_gives(name: str, grid: Grid) -> None:
    layer = LAYERS[name]()
    values = values_of(layer)
    layer.load_state_dict(values)
    whole = run(layer, x(2, 3, 8))
    together = Parallel(layer, [CPU] * grid.ranks, grid=grid)
    assert list(together.state_dict()) == list(values)
    assert np.abs(run(together, x(2, 3, 8)) - whole).max() < 1e-5


@each("grid", GRIDS, ids=str)
@each("replicated", [False, True])
def test_ranks_look_up_together_what_the_table_has(grid: Grid, replicated: bool) -> None:
    table = Embedding(5, 8, replicated=replicated)
    table.load_state_dict(values_of(table))
    indices = np.array([[0, 4, 2], [3, 3, 1]])
    together = Parallel(table, [CPU] * grid.ranks, grid=grid)
    assert np.array_equal(run(together, indices), run(table, indices))


def test_a_row_that_the_table_does_not_have_is_refused_by_its_parts_too() -> None:
    table = Parallel(Embedding(5, 8), [CPU] * 2)
    table.load_state_dict(values_of(table))
    for index in (5, -1):
        with pytest.raises(EngineError, match="embedding"):
            run(table, np.array([index]))


def test_a_part_of_a_quantized_layer_is_of_whole_blocks() -> None:
    layer = GatedMLP(32, 96, "silu", quantization_encoding=QuantizationEncoding.Q8_0)
    first, second = Parallel(layer, GPUS).shards
    assert isinstance(first, GatedMLP)
    assert isinstance(second, GatedMLP)
    assert first.down.weight.original_dtype_and_shape[1].sizes == (32, 64)
    assert second.down.weight.shape.sizes == (32, 34)


def test_inputs_go_to_the_device_of_each_rank_and_the_sum_comes_to_the_first() -> None:
    layer = Parallel(MLP(8, 6, "gelu"), GPUS)
    with Graph("devices", [TensorType(DType.float32, ("batch", 8), GPUS[1])]) as graph:
        y = layer(graph.inputs[0])
    assert y.device == GPUS[0]
    moved = [node.outputs[0].device for node in graph.nodes if node.op == "transfer_to"]
    assert moved == [GPUS[0]]
    weights = graph.weights_by_name.values()
    assert {weight.shard_idx: weight.device for weight in weights} == dict(enumerate(GPUS))


class Named(Module):
    """A layer that takes an argument by name, and one that is not a value."""

    def __init__(self) -> None:
        self.attention = Attention(8, 2, causal=False)
        self.embedding = Embedding(8, 8)

    def __call__(self, tokens: Value, mask: Value) -> Value:
        states = self.embedding(tokens, DType.float32)
        return self.attention(states, mask=mask)


def test_arguments_by_name_and_those_that_are_not_values_reach_every_rank() -> None:
    model = Named()
    model.load_state_dict(values_of(model))
    given = np.array([[1, 7, 3]]), np.array([[[[True, False, True]]]])
    whole = run(model, *given)
    assert np.abs(run(parallel(model, [CPU] * 2), *given) - whole).max() < 1e-5
    assert isinstance(model.attention, Parallel)


def process(layer: Divisible, grid: Grid, first: int) -> Graph:
    """Return the graph of the process that has a rank of a grid, and two dimensions of input."""
    together = Parallel(layer, [CPU], grid=grid, first=first)
    with Graph("process", [ROWS]) as graph:
        graph.output(together(graph.inputs[0]))
    return graph


def test_a_process_uses_the_shard_of_its_rank_alone() -> None:
    graph = process(Linear(8, 5), Grid(2), 1)
    assert list(graph.weights_by_name) == ["weight.shard.1"]
    (gathered,) = (node for node in graph.nodes if node.op == "allgather")
    assert gathered.attributes["ranks"] == 2
    assert gathered.attributes["first"] == 1
    assert gathered.attributes["sizes"] == [3, 2]
    assert graph.outputs[0].shape[-1] == 5


def test_a_process_of_another_group_gives_nothing_to_layers_without_experts() -> None:
    graph = process(MLP(8, 6, "gelu"), Grid(2, 2), 3)
    (reduced,) = (node for node in graph.nodes if node.op == "allreduce")
    assert reduced.attributes["ranks"] == 4
    assert reduced.attributes["first"] == 3
    (given,) = reduced.inputs
    (made,) = (node for node in graph.nodes if node.outputs[0] is given)
    assert made.op == "broadcast_to"


def test_what_other_groups_give_of_outputs_is_left_out() -> None:
    graph = process(Linear(8, 5), Grid(2, 2), 3)
    (gathered,) = (node for node in graph.nodes if node.op == "allgather")
    assert gathered.attributes["sizes"] == [3, 2, 3, 2]
    assert graph.outputs[0].shape[-1] == 5


def test_a_process_of_another_group_gives_what_its_experts_do() -> None:
    mixture = MixtureOfExperts(8, 6, "silu", count=4, used=2)
    names = process(mixture, Grid(1, 2), 1).weights_by_name
    assert sorted({name.split(".")[1] for name in names if name.startswith("experts")}) == [
        "2",
        "3",
    ]


class Model(Module):
    """An embedding, positions, two blocks and a tied output."""

    def __init__(self) -> None:
        self.embedding = Embedding(7, 8)
        self.positions = Embedding(2, 8, replicated=True)
        self.layers = LayerList([GatedMLP(8, 6, "silu"), GatedMLP(8, 6, "silu")])
        self.output = Linear(8, 7)
        self.output.set_shared_weight("weight", self.embedding.weight)

    def __call__(self, tokens: Value) -> Value:
        y = self.embedding(tokens) + self.positions(ops.range(2))
        for layer in self.layers:
            y = y + layer(y)
        return self.output(y)


TOKENS = np.array([[0, 6], [3, 5]])


def test_a_network_gives_the_same_with_each_layer_cut_and_is_returned_itself() -> None:
    model = Model()
    values = values_of(model)
    model.load_state_dict(values)
    whole = run(model, TOKENS)
    assert parallel(model, [CPU] * 3) is model
    assert all(isinstance(layer, Parallel) for layer in model.layers)
    assert np.abs(run(model, TOKENS) - whole).max() < 1e-5
    assert list(model.raw_state_dict()) == list(values)


def test_a_tied_weight_is_cut_once_for_both_layers() -> None:
    model = parallel(Model(), [CPU] * 2)
    graph = graph_of(model, [TensorType(DType.int64, ("batch", 2))])
    shards = [name for name in graph.weights_by_name if "embedding" in name or "output" in name]
    assert shards == ["embedding.weight.shard.0", "embedding.weight.shard.1"]


class OutputFirst(Model):
    """The same model, which knows its output before the embedding that lends it the weight."""

    def __init__(self) -> None:
        self.output = Linear(8, 7)
        super().__init__()


def test_a_weight_that_a_layer_shares_keeps_the_name_from_its_owner() -> None:
    names = list(OutputFirst().raw_state_dict())
    assert "embedding.weight" in names
    assert list(parallel(OutputFirst(), [CPU] * 2).raw_state_dict()) == names


def test_a_replicated_table_stays_as_it_is() -> None:
    model = parallel(Model(), [CPU] * 3)
    assert isinstance(model.positions, Embedding)


def test_one_rank_leaves_a_network_as_it_is_on_its_device() -> None:
    model = parallel(Model(), GPUS[:1])
    assert not any(isinstance(layer, Parallel) for layer in model.sublayers.values())
    assert model.output.weight.device == GPUS[0]


def test_weights_that_are_not_cut_are_on_the_first_device() -> None:
    model = parallel(Model(), GPUS)
    assert model.positions.weight.device == GPUS[0]


def test_what_cannot_be_cut_changes_nothing_and_is_named() -> None:
    model = Model()
    with pytest.raises(ShardingError, match=r"(?s)`layers.0.down.weight`.*1 to 6 ranks work"):
        parallel(model, [GPUS[0]] * 7)
    assert isinstance(model.embedding, Embedding)
    assert model.embedding.weight.device == CPU


def test_a_network_that_is_cut_already_is_refused() -> None:
    model = parallel(Model(), [CPU] * 2)
    with pytest.raises(GraphError, match="Model is already sharded across several devices"):
        parallel(model, [CPU] * 2)
    with pytest.raises(GraphError, match="Model is already sharded across several devices"):
        model.to(GPUS[0])


def test_a_layer_by_itself_is_refused() -> None:
    with pytest.raises(GraphError) as raised:
        parallel(MLP(8, 6, "gelu"), [CPU] * 2)
    assert raised.value.hint == (
        "use the result of `Parallel(layer, devices)` instead of the layer"
    )


def test_a_network_without_such_layers_stays_as_it_is() -> None:
    block = parallel(Block(), [CPU] * 2)
    block.load_state_dict(values_of(block))
    assert run(block, x(2, 4)).shape == (2, 4)


def test_a_layer_that_is_in_two_places_has_one_stand_in() -> None:
    model = Model()
    model.layers[1] = model.layers[0]
    parallel(model, [CPU] * 2)
    assert isinstance(model.layers[0], Parallel)
    assert model.layers[0] is model.layers[1]


class Repeated(Model):
    """The same model, whose blocks are one subgraph."""

    def __call__(self, tokens: Value) -> Value:
        y = self.embedding(tokens) + self.positions(ops.range(2))
        block = self.layers[0].build_subgraph("block", [y.type], weight_prefix="layers.0.")
        for place in range(len(self.layers)):
            (made,) = ops.call(block, y, prefix=f"layers.{place}.")
            y = y + made
        return self.output(y)


def test_subgraphs_of_layers_that_are_cut_give_the_same() -> None:
    inlined, repeated = Model(), Repeated()
    for model in (inlined, repeated):
        model.load_state_dict(values_of(model))
        parallel(model, [CPU] * 2)
    assert np.array_equal(run(repeated, TOKENS), run(inlined, TOKENS))


def test_hooks_see_the_stand_in_and_what_each_rank_computes() -> None:
    seen: list[str] = []

    def hook(layer: Layer, *_: Any) -> None:
        seen.append(type(layer).__name__)

    add_layer_hook(hook)
    try:
        graph_of(parallel(Model(), [CPU] * 2), [TensorType(DType.int64, ("batch", 2))])
    finally:
        clear_hooks()
    assert seen.count("Parallel") == 4
    assert seen.count("GatedMLP") == 4


def test_nodes_tell_which_rank_of_which_layer_they_are_of() -> None:
    model = parallel(Model(), [CPU] * 2)
    graph = graph_of(model, [TensorType(DType.int64, ("batch", 2))])
    paths = {node.path for node in graph.nodes}
    assert {"layers.1", "layers.1.shards.0.up", "layers.1.shards.1.down"} <= paths


def test_parts_are_used_in_the_place_of_the_whole_and_the_bias_of_the_sum_once() -> None:
    graph = graph_of(Parallel(MLP(8, 6, "gelu"), [CPU] * 2), [ROWS])
    assert sorted(graph.weights_by_name) == [
        "down.bias.shard.0",
        *(f"{name}.shard.{rank}" for name in ("down.weight", "up.bias", "up.weight")
          for rank in range(2)),
    ]  # fmt: skip


def test_whole_weights_and_parts_of_them_are_found_by_the_whole_s_names() -> None:
    model = Model()
    values = values_of(model)
    model.load_state_dict(values)
    whole = run(model, TOKENS)
    graph = graph_of(parallel(Model(), [CPU] * 2), [TensorType(DType.int64, ("batch", 2))])
    (found,) = executed(graph, TOKENS, weights=values)
    assert np.abs(found - whole).max() < 1e-5

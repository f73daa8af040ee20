"""Weights are found in trees and mappings, whole or cut for a rank, or are all named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored, weights_of
from each import each
from engine_graphs import F32, Counted, counted, loaded, numbers, ran, stack, stack_weights
from lazy import torch
from rows import in_blocks
from runs import executed, graph_of
from weightctl import (
    DeviceRef,
    DType,
    Plan,
    QuantizationEncoding,
    WeightData,
    Weights,
    open_weights,
    save,
)
from weightctl.device import CPU
from weightctl.dtype import ENCODINGS
from weightctl.engine import InferenceSession
from weightctl.engine.bound_weights import BoundWeights
from weightctl.engine.stored_weights import to_stored_weight
from weightctl.engine.weight_forms import WeightForm
from weightctl.errors import EngineError, FormatError
from weightctl.graph import Graph, ShardingStrategy, TensorType, Weight, ops
from weightctl.nn import Linear
from weightctl.plan.cast import cast
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engine_graphs import Array
    from weightctl.dtype import Encoding


Q8_0 = QuantizationEncoding.Q8_0


def given(name: str, dtype: DType, shape: tuple[int, ...], **options: Any) -> Graph:
    """Return a graph whose output is a weight."""
    with Graph("weight") as graph:
        graph.output(Weight(name, dtype, shape, **options))
    return graph


def encoded(array: np.ndarray[Any, Any], encoding: Encoding, path: Path) -> Path:
    """Write a GGUF of one tensor, `w.weight`, in an encoding."""
    plan = Plan.copy(weights_of({"w.weight": array}), "gguf")
    save(cast(plan, encoding), path)
    return path


def test_the_weights_of_a_checkpoint_are_found_by_name(tiny_llama: Path) -> None:
    tree = open_weights(tiny_llama)
    name = "model.layers.0.self_attn.q_proj.weight"
    info = tree[name].info
    expected = tree[name].data().astype(DType.float32).to_numpy()
    found = ran(given(name, DType.float32, info.shape), registry=tree)
    np.testing.assert_array_equal(found, expected)


def test_a_node_of_a_tree_is_a_registry_of_what_is_below_it(tiny_llama: Path) -> None:
    layer = open_weights(tiny_llama).model.layers[0]
    info = layer.input_layernorm.weight.info
    found = ran(given("input_layernorm.weight", DType.float32, info.shape), registry=layer)
    assert found.shape == info.shape


@each("kind", ["numpy", "read-only", "strided", "torch", "data", "buffer", "node", "big-endian"])
def test_a_mapping_may_hold_arrays_of_any_kind(kind: str) -> None:
    array = numbers(3, 4)
    read_only = array.copy()
    read_only.flags.writeable = False
    values: dict[str, Any] = {
        "numpy": array,
        "read-only": read_only,
        "strided": np.repeat(array, 2, axis=1)[:, ::2],
        "torch": torch.from_numpy(array),
        "data": WeightData.from_numpy(array, "other"),
        "buffer": WeightData.from_numpy(array, "other").to_buffer(),
        "node": weights_of({"other": array}).other,
        "big-endian": array.astype(">f4"),
    }
    found = ran(given("w", DType.float32, (3, 4)), registry={"w": values[kind]})
    np.testing.assert_array_equal(found, array)


def test_weights_in_memory_are_used_without_a_copy() -> None:
    array = np.zeros(3, np.float32)
    with Graph("sum") as graph:
        graph.output(Weight("w", F32, (3,)) + 1.0)
    for registry in ({"w": array}, weights_of({"w": array})):
        for resident in (False, True):
            model = loaded(graph, registry, resident=resident)
            array[:] = 5
            assert model.execute()[0].to_numpy().tolist() == [6, 6, 6]
            array[:] = 0


@each("resident", [False, True])
@each(
    "stored_as, wanted",
    [("bfloat16", "float32"), ("float16", "float32"), ("float8_e4m3fn", "bfloat16"),
     ("int8", "float32"), ("bool", "int64")],
)  # fmt: skip
def test_numbers_become_a_dtype_that_holds_them_all(
    stored_as: str, wanted: str, resident: bool
) -> None:
    tensor = torch.tensor([1, 0, 1]).to(getattr(torch, stored_as))
    graph = given("w", DType(wanted), (3,))
    (buffer,) = loaded(graph, {"w": tensor}, resident=resident).execute()
    assert buffer.dtype is DType(wanted)
    assert torch.from_dlpack(buffer).tolist() == [1, 0, 1]


@each("resident", [False, True])
@each("wanted", ["float32", "bfloat16"])
@each("name", ["Q8_0", "Q4_K"])
def test_blocks_become_the_numbers_that_they_encode(
    name: str, wanted: str, resident: bool, tmp_path: Path
) -> None:
    tree = open_weights(encoded(numbers(4, 256), ENCODINGS[name], tmp_path / "a.gguf"))
    expected = tree["w.weight"].data().astype(DType(wanted)).to_numpy()
    for encoding in (None, QuantizationEncoding(name)):
        graph = given("w.weight", DType(wanted), (4, 256), quantization_encoding=encoding)
        (found,) = loaded(graph, tree, resident=resident).execute()
        assert found.dtype is DType(wanted)
        np.testing.assert_array_equal(found.to_numpy(), expected)


def test_a_weight_declared_as_blocks_may_be_stored_as_others_or_as_numbers(tmp_path: Path) -> None:
    array = numbers(4, 256)
    graph = given("w.weight", DType.float32, (4, 256), quantization_encoding=Q8_0)
    tree = open_weights(encoded(array, ENCODINGS["Q6_K"], tmp_path / "a.gguf"))
    expected = tree["w.weight"].data().astype(DType.float32).to_numpy()
    np.testing.assert_array_equal(ran(graph, registry=tree), expected)
    np.testing.assert_array_equal(ran(graph, registry={"w.weight": array}), array)


def test_an_operation_that_takes_blocks_gets_those_that_are_stored(tmp_path: Path) -> None:
    tree = open_weights(encoded(numbers(4, 64), ENCODINGS["Q8_0"], tmp_path / "a.gguf"))
    expected = tree["w.weight"].data().astype(DType.float32).to_numpy()
    with Graph("rows") as graph:
        table = Weight("w.weight", DType.float32, (4, 64), quantization_encoding=Q8_0)
        graph.output(ops.embedding(table, ops.constant([3, 1])))
    for registry in (tree, {"w.weight": tree["w.weight"].data().blocks}):
        for resident in (False, True):
            found = ran(graph, registry=registry, resident=resident)
            np.testing.assert_array_equal(found, expected[[3, 1]])
    with pytest.raises(
        EngineError, match=r"stored as F32 \[4, 64\], but the graph reads it as Q8_0 \[4, 64\]"
    ):
        loaded(graph, {"w.weight": numbers(4, 64)})


def test_all_weights_that_do_not_fit_are_named_at_once() -> None:
    weights: dict[str, Any] = stack_weights()
    weights["layers.0.q"] = weights.pop("layers.0.b")
    weights["layers.1.w"] = numbers(8, 9)
    weights["layers.2.w"] = numbers(8, 8).astype(np.float64)
    weights["layers.2.b"] = "no array"
    with pytest.raises(EngineError) as caught:
        loaded(stack(), weights)
    assert caught.value.message.splitlines() == [
        "4 weights of graph `stack` cannot be loaded:",
        "  `layers.0.b`: missing (did you mean `layers.0.q`?)",
        "  `layers.1.w`: stored as F32 [8, 9], but the graph expects float32 [8, 8]",
        "  `layers.2.w`: stored as F64; float32 cannot hold all of its values",
        "  `layers.2.b`: str is not an array",
    ]


def test_a_missing_weight_of_a_tree_has_a_hint(tmp_path: Path) -> None:
    arrays = {f"model.{name}": array for name, array in stack_weights().items()}
    arrays["model.layers.2.weight"] = arrays.pop("model.layers.2.w")
    tree = open_weights(stored(tmp_path / "a.safetensors", **arrays))
    says = r"`layers\.2\.w`: missing \(did you mean `layers\.2\.weight`\?\)"
    with pytest.raises(EngineError, match=says):
        loaded(stack(), tree.model)


def test_a_graph_with_weights_asks_for_a_registry() -> None:
    with pytest.raises(EngineError, match="weights_registry"):
        loaded(stack())


def test_what_is_only_declared_is_refused_as_such() -> None:
    declared = WeightData.declared("w", DType.float32, (3,))
    with pytest.raises(EngineError, match="`w`: `w` was declared without data"):
        loaded(given("w", DType.float32, (3,)), {"w": declared})


def test_a_weight_of_unknown_size_is_refused() -> None:
    with pytest.raises(EngineError, match=r"`w` is declared as \[rows, 3\]"):
        loaded(given("w", DType.float32, ("rows", 3)), {"w": numbers(2, 3)})  # type: ignore[arg-type]


def test_two_names_of_one_tensor_are_read_once(tmp_path: Path) -> None:
    shared = torch.zeros(4)
    torch.save({"a": shared, "b": shared}, tmp_path / "a.pt")
    tree, reads = counted(open_weights(tmp_path / "a.pt"))
    with Graph("tied") as graph:
        graph.output(Weight("a", F32, (4,)) + Weight("b", F32, (4,)))
    model = loaded(graph, tree, resident=True)
    model.execute()
    assert sum(reads.values()) == 1


def test_a_file_that_changed_since_it_was_opened_gives_no_answer(tmp_path: Path) -> None:
    path = stored(tmp_path / "a.safetensors", w=numbers(4))
    model = loaded(given("w", DType.float32, (4,)), open_weights(path))
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(FormatError, match="changed while it was read"):
        model.execute()


def test_a_weight_on_another_device_of_the_session_is_found() -> None:
    from weightctl.engine import InferenceSession

    other = DeviceRef.CPU(1)
    with Graph("elsewhere") as graph:
        graph.output(Weight("w", F32, (2,), other) + ops.constant([1.0, 1.0], device=other))
    model = InferenceSession([DeviceRef.CPU(), other]).load(graph, {"w": np.ones(2, np.float32)})
    assert model.execute()[0].to_numpy().tolist() == [2, 2]


FLOAT16, BLOCKS = {"dtype": DType.float16}, {"quantization_encoding": Q8_0}


@each("resident", [False, True])
@each("asked", [FLOAT16, BLOCKS], ids=["numbers", "blocks"])
def test_what_was_allocated_is_for_the_weight_that_was_given_alone(
    asked: dict[str, Any], resident: bool
) -> None:
    array = numbers(2, 32)
    tree = weights_of({"w": array})
    weight = tree.w.allocate(**asked)
    (data,) = tree.allocated_weights.values()
    assert isinstance(data, WeightData)
    with Graph("own") as graph:
        graph.output(weight.cast(F32))
    found = ran(graph, registry=tree, resident=resident)
    np.testing.assert_array_equal(found, data.astype(F32).to_numpy())
    for declared in ({}, {"quantization_encoding": Q8_0}):
        other = given("w", F32, (2, 32), **declared)
        np.testing.assert_array_equal(ran(other, registry=tree, resident=resident), array)


def test_a_weight_of_another_tree_is_what_this_one_stores() -> None:
    array, other = numbers(2, 32), weights_of({"w": numbers(2, 32)})
    tree = weights_of({"w": array})
    tree.w.allocate(quantization_encoding=Q8_0)
    with Graph("other") as graph:
        graph.output(other.w.allocate(quantization_encoding=Q8_0) + 0.0)
    np.testing.assert_array_equal(ran(graph, registry=tree), array)


def test_a_subgraph_takes_what_is_stored_if_another_dtype_was_allocated() -> None:
    tree = weights_of({f"{layer}.w": numbers(4, seed=layer) for layer in range(2)})
    tree["1"].w.allocate(DType.float16)
    with Graph("outer") as graph:
        with graph.add_subgraph("inner", [], weight_prefix="0.") as inner:
            inner.output(tree["0"].w.allocate(DType.float64))
        graph.output(ops.call(inner, prefix="1.")[0])
    (found,) = loaded(graph, tree).execute()
    np.testing.assert_array_equal(found.to_numpy(), numbers(4, seed=1))


def test_a_subgraph_takes_what_was_allocated_by_each_name_it_is_called_for() -> None:
    tree = weights_of({f"{layer}.w": numbers(4, seed=layer) for layer in range(2)})
    weights = [tree[layer].w.allocate(DType.float16) for layer in range(2)]
    with Graph("outer") as graph:
        with graph.add_subgraph("inner", [], weight_prefix="0.") as inner:
            inner.output(weights[0])
        graph.output(*(ops.call(inner, prefix=f"{layer}.")[0] for layer in range(2)))
    for layer, found in enumerate(loaded(graph, tree).execute()):
        expected = numbers(4, seed=layer).astype(np.float16)
        np.testing.assert_array_equal(found.to_numpy(), expected)


@each("resident", [False, True])
def test_a_weight_that_is_changed_later_stays_what_it_was_in_the_graph(resident: bool) -> None:
    weight = Weight("w", F32, (4,))
    with Graph("sum") as graph:
        graph.output(weight + 1.0)
    weight.name = "other"
    with pytest.warns(
        UserWarning, match="keep `other` with device cpu:0; only graphs .* use gpu:3"
    ):
        weight.device = DeviceRef.GPU(3)
    weight.configure(DType.float64, (2, 32), Q8_0)
    found = ran(graph, registry={"w": np.ones(4, np.float32)}, resident=resident)
    assert (found.dtype, found.tolist()) == (np.float32, [2] * 4)


@each("resident", [False, True])
def test_integers_that_may_not_fit_are_refused_and_do_not_wrap(resident: bool) -> None:
    with Graph("narrow") as graph:
        graph.output(Weight("w", DType.int32, (2,)))
    with pytest.raises(EngineError, match="stored as I64; int32 cannot hold all of its values"):
        InferenceSession().load(graph, {"w": np.array([1, 2**40])}, resident=resident)


# Bare bytes are blocks where a weight is declared as such.


@pytest.fixture
def quantized() -> tuple[Array, Array]:
    """Return the bytes of four rows of blocks, and the numbers in them."""
    data, held = in_blocks(numbers(4, 64), Q8_0)
    return data.blocks, held


@pytest.mark.parametrize("resident", [False, True])
def test_a_layer_runs_on_the_bytes_that_it_was_loaded_with(
    quantized: tuple[Array, Array], resident: bool
) -> None:
    raw, held = quantized
    layer, x = Linear(64, 4, quantization_encoding=Q8_0), numbers(2, 64, seed=1)
    layer.load_state_dict({"weight": raw})
    graph = graph_of(layer, [TensorType(F32, ("n", 64))])
    found = ran(graph, x, registry=layer.state_dict(), resident=resident)
    np.testing.assert_allclose(found, x @ held.T, rtol=1e-5, atol=1e-5)


def test_a_layer_runs_on_the_bytes_that_it_makes_itself() -> None:
    layer = Linear(32, 4, quantization_encoding=Q8_0)
    graph = graph_of(layer, [TensorType(F32, ("n", 32))])
    found = ran(graph, numbers(2, 32), registry=layer.state_dict())
    assert found.tolist() == [[0] * 4] * 2


@each("shape", [(4, 68), (2, 136), (272,)])
def test_the_rows_of_a_table_are_found_in_bytes_of_any_shape(
    quantized: tuple[Array, Array], shape: tuple[int, ...]
) -> None:
    raw, held = quantized
    with Graph("rows") as graph:
        table = Weight("w", F32, (4, 64), quantization_encoding=Q8_0)
        graph.output(ops.embedding(table, ops.constant([3, 1])), table + 0.0)
    rows, whole = loaded(graph, {"w": raw.reshape(shape)}).execute()
    np.testing.assert_array_equal(rows.to_numpy(), held[[3, 1]])
    np.testing.assert_array_equal(whole.to_numpy(), held)


def test_bytes_that_stay_in_memory_stay_blocks(quantized: tuple[Array, Array]) -> None:
    raw, held = quantized
    form = WeightForm("w", F32, (4, 64), CPU, Q8_0)
    weights = BoundWeights({form: to_stored_weight(raw, "w")}, [form])
    raw[:] = 0
    assert not weights.tensor(form).any()
    assert held.any()


def test_too_few_bytes_are_not_blocks(quantized: tuple[Array, Array]) -> None:
    with Graph("sum") as graph:
        graph.output(Weight("w", F32, (4, 64), quantization_encoding=Q8_0) + 0.0)
    with pytest.raises(
        EngineError, match=r"stored as U8 \[3, 68\], but the graph expects float32 \[4, 64"
    ):
        loaded(graph, {"w": quantized[0][:3]})


def test_bytes_of_a_weight_of_no_encoding_are_numbers() -> None:
    array = np.arange(4, dtype=np.uint8)
    with Graph("same") as graph:
        graph.output(Weight("w", DType.uint8, (4,)))
    np.testing.assert_array_equal(ran(graph, registry={"w": array}), array)


# Shards take their part of the whole tensor, wherever that is, or the entry of their own name.


Q4_0, Q4_K = QuantizationEncoding.Q4_0, QuantizationEncoding.Q4_K
CPUS = [DeviceRef.CPU()] * 2
WHOLE = numbers(6, 96)
ROWS, COLUMNS = ShardingStrategy.rowwise(2), ShardingStrategy.columnwise(2)
ROW_PARTS = [WHOLE[:3], WHOLE[3:]]
COLUMN_PARTS = [WHOLE[:, :48], WHOLE[:, 48:]]


def whole(strategy: ShardingStrategy = ROWS, **options: Any) -> Weight:
    return Weight("w", F32, WHOLE.shape, sharding_strategy=strategy, **options)


def giving(*weights: Weight) -> Graph:
    with Graph("giving") as graph:
        graph.output(*weights)
    return graph


def parts_of(registry: Any, weight: Weight, **options: Any) -> list[Array]:
    """Return the numbers of the shards of a weight that are found in a registry."""
    return executed(giving(*weight.shard(CPUS)), weights=registry, **options)


def file_of(tmp_path: Path, **arrays: Array) -> Weights:
    return open_weights(stored(tmp_path / "a.safetensors", **arrays))


def in_gguf(tmp_path: Path, array: Array, encoding: QuantizationEncoding) -> dict[str, Weights]:
    """Return the blocks of an array, stored in a file, as `w`."""
    plan = cast(Plan.copy(weights_of({"w.weight": array}), "gguf"), encoding.encoding)
    save(plan, tmp_path / "a.gguf")
    node = open_weights(tmp_path / "a.gguf").w.weight
    assert node.info.encoding == encoding.encoding
    return {"w": node}


def numbers_in(registry: dict[str, Weights]) -> Array:
    found: Array = registry["w"].data().astype(F32).to_numpy()
    return found


def same(found: list[Array], expected: list[Array]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


# Of what the whole may be in

REGISTRIES: dict[str, Callable[[Path], Any]] = {
    "arrays": lambda _: {"w": WHOLE},
    "turned arrays": lambda _: {"w": np.ascontiguousarray(WHOLE.T).T},
    "tree in memory": lambda _: weights_of({"w": WHOLE}),
    "file": lambda folder: file_of(folder, w=WHOLE),
    "mapped data": lambda folder: {"w": file_of(folder, w=WHOLE).w.data()},
    "node": lambda folder: {"w": file_of(folder, other=WHOLE).other},
    "below a prefix": lambda folder: file_of(folder, **{"a.w": WHOLE}).a,
}


@each("resident", [False, True])
@each("strategy, expected", [(ROWS, ROW_PARTS), (COLUMNS, COLUMN_PARTS)], ids=["rows", "columns"])
@each("kind", REGISTRIES)
def test_shards_are_parts_of_the_whole(
    tmp_path: Path, kind: str, strategy: ShardingStrategy, expected: list[Array], resident: bool
) -> None:
    registry = REGISTRIES[kind](tmp_path)
    same(parts_of(registry, whole(strategy), resident=resident), expected)


@each("resident", [False, True])
def test_data_that_somebody_writes_to_is_cut_as_it_is_now(tmp_path: Path, resident: bool) -> None:
    data = file_of(tmp_path, w=WHOLE).w.data()
    data.to_numpy()[:] = 2 * WHOLE
    found = parts_of({"w": data}, whole(COLUMNS), resident=resident)
    same(found, [2 * part for part in COLUMN_PARTS])


def test_what_comes_out_is_nobody_elses() -> None:
    array = WHOLE.copy()
    (first, _) = parts_of({"w": array}, whole(ROWS))
    first[:] = 0
    np.testing.assert_array_equal(array, WHOLE)


def test_a_replicated_weight_is_read_once_and_each_shard_is_all_of_it(tmp_path: Path) -> None:
    source = Counted(file_of(tmp_path, w=WHOLE).source)
    found = parts_of(Checkpoint(source), whole(ShardingStrategy.replicate(2)), resident=True)
    same(found, [WHOLE, WHOLE])
    assert source.nbytes == {"w": WHOLE.nbytes}


@each("strategy", [ROWS, COLUMNS], ids=["rows", "columns"])
@each("encoding", [Q8_0, Q4_0, Q4_K], ids=str)
@each("resident", [False, True])
def test_blocks_are_cut_as_blocks(
    tmp_path: Path, strategy: ShardingStrategy, encoding: QuantizationEncoding, resident: bool
) -> None:
    registry = in_gguf(tmp_path, numbers(5, 768), encoding)
    held = numbers_in(registry)
    # Of three blocks of 256 the first has two.
    middle = 512 if encoding is Q4_K else 384
    expected = [held[:3], held[3:]] if strategy is ROWS else [held[:, :middle], held[:, middle:]]
    weight = Weight("w", F32, (5, 768), quantization_encoding=encoding, sharding_strategy=strategy)
    same(parts_of(registry, weight, resident=resident), expected)


def test_blocks_may_be_taken_for_the_numbers_in_them(tmp_path: Path) -> None:
    registry = in_gguf(tmp_path, WHOLE, Q8_0)
    held = numbers_in(registry)
    same(parts_of(registry, whole(ROWS)), [held[:3], held[3:]])
    thirds = Weight("w", F32, WHOLE.shape, sharding_strategy=ShardingStrategy.columnwise(3))
    graph = giving(*thirds.shard([*CPUS, CPUS[0]]))
    same(executed(graph, weights=registry), [held[:, :32], held[:, 32:64], held[:, 64:]])


@each("resident", [False, True])
def test_bytes_are_cut_as_the_blocks_that_they_are_declared_to_be(resident: bool) -> None:
    data, held = in_blocks(WHOLE, Q8_0)
    weight = whole(COLUMNS, quantization_encoding=Q8_0)
    for raw in (data, data.blocks, data.blocks.reshape(-1)):
        found = parts_of({"w": raw}, weight, resident=resident)
        same(found, [held[:, :64], held[:, 64:]])


def test_numbers_of_another_dtype_are_cut_and_then_converted(tmp_path: Path) -> None:
    small = WHOLE.astype(np.float16)
    found = parts_of(file_of(tmp_path, w=small), whole(COLUMNS))
    same(found, [small[:, :48].astype(np.float32), small[:, 48:].astype(np.float32)])


def test_what_a_tree_was_asked_for_is_cut_as_it_was_asked_for(tmp_path: Path) -> None:
    tree = file_of(tmp_path, w=WHOLE)
    weight = tree.w.allocate(quantization_encoding=Q8_0)
    weight.sharding_strategy = COLUMNS
    _, held = in_blocks(WHOLE, Q8_0)
    same(parts_of(tree, weight), [held[:, :64], held[:, 64:]])


def test_a_tensor_that_is_made_of_another_is_cut_as_any(tmp_path: Path) -> None:
    source = file_of(tmp_path, turned=np.ascontiguousarray(WHOLE.T)).source
    tree = Checkpoint(
        Derived(source, {"w": DerivedTensor("w", Transposed(), [tensor_of(source, "turned")])}, {})
    )
    same(parts_of(tree, whole(COLUMNS)), COLUMN_PARTS)
    same(parts_of(tree, whole(ROWS), resident=True), ROW_PARTS)


def test_a_shard_of_a_tied_weight_is_cut_from_the_tensor_that_it_is(tmp_path: Path) -> None:
    source = file_of(tmp_path, kept=WHOLE).source
    tree = Checkpoint(Derived(source, {"kept": tensor_of(source, "kept")}, {}, {"w": "kept"}))
    metered = Counted(tree.source)
    kept = Weight("kept", F32, WHOLE.shape, sharding_strategy=ROWS)
    graph = giving(*whole(ROWS).shard(CPUS), *kept.shard(CPUS))
    same(executed(graph, weights=Checkpoint(metered), resident=True), [*ROW_PARTS, *ROW_PARTS])
    assert metered.nbytes == {"kept": WHOLE.nbytes}


# Of what is read


@each("resident", [False, True])
def test_only_the_bytes_of_the_part_are_read(tmp_path: Path, resident: bool) -> None:
    wide = numbers(8, 4096)
    source = Counted(file_of(tmp_path, w=wide).source)
    for strategy in (ROWS, COLUMNS):
        source.nbytes.clear()
        weight = Weight("w", F32, wide.shape, sharding_strategy=strategy)
        _, second = weight.shard(CPUS)
        executed(giving(second), weights=Checkpoint(source), resident=resident)
        assert source.nbytes == {"w": wide.nbytes // 2}


def test_of_a_shard_of_a_table_only_the_rows_that_are_picked_are_read(tmp_path: Path) -> None:
    source = Counted(file_of(tmp_path, w=WHOLE).source)
    _, second = whole(ROWS).shard(CPUS)
    with Graph("rows", [TensorType(DType.int64, ("n",))]) as graph:
        graph.output(ops.embedding(second, graph.inputs[0]))
    (found,) = executed(graph, np.array([2, 0, 2]), weights=Checkpoint(source))
    np.testing.assert_array_equal(found, WHOLE[[5, 3, 5]])
    assert source.nbytes == {"w": 2 * WHOLE[0].nbytes}


def test_the_columns_of_picked_rows_are_cut(tmp_path: Path) -> None:
    source = Counted(file_of(tmp_path, w=WHOLE).source)
    first, _ = whole(COLUMNS).shard(CPUS)
    with Graph("rows", [TensorType(DType.int64, ("n",))]) as graph:
        graph.output(ops.embedding(first, graph.inputs[0]))
    (found,) = executed(graph, np.array([5, 1]), weights=Checkpoint(source))
    np.testing.assert_array_equal(found, WHOLE[[5, 1], :48])
    assert source.nbytes == {"w": WHOLE[0].nbytes}


# Of its own name


def test_a_shard_that_is_stored_by_itself_is_taken_from_there(tmp_path: Path) -> None:
    own = numbers(3, 96, seed=9)
    first, second = whole(ROWS).shard(CPUS)
    found = executed(giving(first, second), weights={"w": WHOLE, "w.shard.1": own})
    same(found, [WHOLE[:3], own])
    second.name = "mine"
    tree = file_of(tmp_path, mine=own)
    same(executed(giving(second), weights=tree), [own])


def test_a_shard_in_a_subgraph_is_cut_from_the_weight_of_each_call() -> None:
    layers = {f"layers.{number}.w": numbers(4, 4, seed=number) for number in range(2)}
    weight = Weight("layers.0.w", F32, (4, 4), sharding_strategy=ROWS)
    _, second = weight.shard(CPUS)
    kind = TensorType(F32, ("n", 4))
    with Graph("calls", [kind]) as graph:
        sub = graph.add_subgraph("layer", [kind], weight_prefix="layers.0.")
        with sub:
            sub.output(sub.inputs[0] @ second.T)
        graph.output(*(
            value
            for number in range(2)
            for value in ops.call(sub, graph.inputs[0], prefix=f"layers.{number}.")
        ))  # fmt: skip
    x = numbers(3, 4, seed=7)
    for found, layer in zip(executed(graph, x, weights=layers), layers.values(), strict=True):
        np.testing.assert_allclose(found, x @ layer[2:].T, rtol=1e-5, atol=1e-6)


# Of what does not fit


def refusal(registry: Any, *weights: Weight) -> str:
    with pytest.raises(EngineError) as refused:
        loaded(giving(*weights), registry)
    return str(refused.value)


def test_a_whole_that_is_missing_is_named_once_with_what_may_be_meant() -> None:
    weight = Weight("model.weight", F32, (4, 4), sharding_strategy=ROWS)
    text = refusal({"model.wieght": numbers(4, 4)}, *weight.shard(CPUS))
    assert text.startswith("1 weight of graph `giving` cannot be loaded:")
    assert "`model.weight`: missing (did you mean `model.wieght`?)" in text


def test_a_whole_of_another_shape_is_named_with_what_is_stored(tmp_path: Path) -> None:
    text = refusal(file_of(tmp_path, w=numbers(4, 4)), *whole(ROWS).shard(CPUS))
    assert "`w`: stored as F32 [4, 4], but the graph expects float32 [6, 96]" in text


def test_an_entry_of_its_own_with_another_shape_is_named_and_the_whole_is_not_taken() -> None:
    text = refusal({"w": WHOLE, "w.shard.0": numbers(2, 96)}, whole(ROWS).shard(CPUS)[0])
    assert "`w.shard.0`: stored as F32 [2, 96], but the graph expects float32 [3, 96]" in text


def test_a_whole_in_blocks_that_the_part_would_break_is_named(tmp_path: Path) -> None:
    text = refusal(in_gguf(tmp_path, WHOLE, Q8_0), *whole(COLUMNS).shard(CPUS))
    assert text.startswith("2 weights of graph `giving` cannot be loaded:")
    assert (
        "`w.shard.1`: stored as Q8_0 [6, 96]; 48 to 96 of axis 1 would split blocks of 32 elements"
        in text
    )

"""Shards take their part of the whole tensor, wherever that is, or the entry of their own name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored, weights_of
from each import each
from engine_graphs import F32, loaded, numbers
from rows import in_blocks
from runs import executed
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
from weightctl.errors import EngineError
from weightctl.graph import Graph, ShardingStrategy, TensorType, Weight, ops
from weightctl.plan.cast import cast
from weightctl.weights.derived import Derived, DerivedTensor, tensor_of
from weightctl.weights.steps.transposed import Transposed
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engine_graphs import Array
    from weightctl.storage.byte_range import FileRange
    from weightctl.weights.info import Header
    from weightctl.weights.source import Source

Q8_0, Q4_0, Q4_K = (QuantizationEncoding[name] for name in ("Q8_0", "Q4_0", "Q4_K"))
CPUS = [DeviceRef.CPU()] * 2
WHOLE = numbers(6, 96)
ROWS, COLUMNS = ShardingStrategy.rowwise(2), ShardingStrategy.columnwise(2)
ROW_PARTS = [WHOLE[:3], WHOLE[3:]]
COLUMN_PARTS = [WHOLE[:, :48], WHOLE[:, 48:]]


class Metered:
    """A source that counts the bytes which are read of each tensor."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.nbytes: dict[str, int] = {}

    @property
    def header(self) -> Header:
        return self._source.header

    def data(self, name: str) -> WeightData:
        return self._source.data(name)

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        self.nbytes[name] = self.nbytes.get(name, 0) + buffer.nbytes
        self._source.read_into(name, start, buffer)

    def file_range(self, name: str, /) -> FileRange | None:
        return self._source.file_range(name)

    def refuse_change(self) -> None:
        self._source.refuse_change()


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
    source = Metered(file_of(tmp_path, w=WHOLE).source)
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
    for raw in (data, data.to_numpy(), data.to_numpy().reshape(-1)):
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
    metered = Metered(tree.source)
    kept = Weight("kept", F32, WHOLE.shape, sharding_strategy=ROWS)
    graph = giving(*whole(ROWS).shard(CPUS), *kept.shard(CPUS))
    same(executed(graph, weights=Checkpoint(metered), resident=True), [*ROW_PARTS, *ROW_PARTS])
    assert metered.nbytes == {"kept": WHOLE.nbytes}


# Of what is read


@each("resident", [False, True])
def test_only_the_bytes_of_the_part_are_read(tmp_path: Path, resident: bool) -> None:
    wide = numbers(8, 4096)
    source = Metered(file_of(tmp_path, w=wide).source)
    for strategy in (ROWS, COLUMNS):
        source.nbytes.clear()
        weight = Weight("w", F32, wide.shape, sharding_strategy=strategy)
        _, second = weight.shard(CPUS)
        executed(giving(second), weights=Checkpoint(source), resident=resident)
        assert source.nbytes == {"w": wide.nbytes // 2}


def test_of_a_shard_of_a_table_only_the_rows_that_are_picked_are_read(tmp_path: Path) -> None:
    source = Metered(file_of(tmp_path, w=WHOLE).source)
    _, second = whole(ROWS).shard(CPUS)
    with Graph("rows", [TensorType(DType.int64, ("n",))]) as graph:
        graph.output(ops.embedding(second, graph.inputs[0]))
    (found,) = executed(graph, np.array([2, 0, 2]), weights=Checkpoint(source))
    np.testing.assert_array_equal(found, WHOLE[[5, 3, 5]])
    assert source.nbytes == {"w": 2 * WHOLE[0].nbytes}


def test_the_columns_of_picked_rows_are_cut(tmp_path: Path) -> None:
    source = Metered(file_of(tmp_path, w=WHOLE).source)
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

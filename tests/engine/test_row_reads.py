"""Of a table whose rows are picked only these are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import build
from arrays import stored, weights_of
from each import each
from engine_graphs import F32, counted, loaded, numbers, ran
from weightctl import DType, Plan, QuantizationEncoding, Weights, open_weights, save
from weightctl.dtype import ENCODINGS
from weightctl.errors import EngineError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.plan.cast import cast

if TYPE_CHECKING:
    from pathlib import Path

INT64 = DType.int64


def picking(name: str = "w", width: int = 4, **options: Any) -> Graph:
    """Return a graph that picks rows of a table of eight."""
    with Graph("rows", [TensorType(INT64, ("a", "b"))]) as graph:
        graph.output(ops.embedding(Weight(name, F32, (8, width), **options), graph.inputs[0]))
    return graph


@pytest.fixture
def table(tmp_path: Path) -> tuple[Weights, dict[str, int]]:
    """Return a stored table, and how often it is read."""
    return counted(open_weights(stored(tmp_path / "a.safetensors", w=numbers(8, 4))))


def test_each_row_that_is_picked_is_read_once(table: tuple[Weights, dict[str, int]]) -> None:
    tree, reads = table
    ids = np.array([[3, 7, 3], [0, 3, 7]])
    np.testing.assert_array_equal(ran(picking(), ids, registry=tree), numbers(8, 4)[ids])
    assert reads == {"w": 3}


def test_no_row_is_read_where_none_is_picked(table: tuple[Weights, dict[str, int]]) -> None:
    tree, reads = table
    assert ran(picking(), np.zeros((2, 0), np.int64), registry=tree).shape == (2, 0, 4)
    assert not reads


@each("row", [8, -1, 2**62, -(2**63)])
def test_a_row_that_is_not_there_is_refused(
    table: tuple[Weights, dict[str, int]], row: int
) -> None:
    with pytest.raises(EngineError, match=r"embedding of float32\[8, 4\] and int64\[1, 2\]"):
        loaded(picking(), table[0]).execute(np.array([[0, row]]))


def test_a_resident_table_is_read_once_and_whole(table: tuple[Weights, dict[str, int]]) -> None:
    tree, reads = table
    model = loaded(picking(), tree, resident=True)
    for _ in range(2):
        model.execute(np.array([[3, 7]]))
    assert reads == {"w": 1}


def test_a_table_that_is_used_at_once_as_a_whole_is_read_once(
    table: tuple[Weights, dict[str, int]],
) -> None:
    tree, reads = table
    with Graph("tied", [TensorType(INT64, ("n",))]) as graph:
        weight = Weight("w", F32, (8, 4))
        graph.output(ops.embedding(weight, graph.inputs[0]) @ weight.T)
    whole = numbers(8, 4)
    found = ran(graph, np.array([5, 5]), registry=tree)
    np.testing.assert_allclose(found, whole[[5, 5]] @ whole.T, rtol=1e-5, atol=1e-6)
    assert reads == {"w": 1}


def test_rows_become_the_dtype_that_the_graph_has(tmp_path: Path) -> None:
    array = numbers(8, 4).astype(np.float16)
    tree, reads = counted(open_weights(stored(tmp_path / "a.safetensors", w=array)))
    found = ran(picking(), np.array([[6, 1]]), registry=tree)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, array[[[6, 1]]])
    assert reads == {"w": 2}


@each("width, count", [(6, 2), (5, 1)])
def test_rows_that_start_within_a_byte_are_not_read_by_themselves(
    tmp_path: Path, width: int, count: int
) -> None:
    raw = bytes(range(8 * width // 2))
    declared = {"w": {"dtype": "F4", "shape": [8, width], "data_offsets": [0, len(raw)]}}
    (tmp_path / "a.safetensors").write_bytes(build.safetensors(declared, raw))
    tree, reads = counted(open_weights(tmp_path / "a.safetensors"))
    found = ran(picking(width=width), np.array([[3, 1]]), registry=tree)
    assert reads == {"w": count}
    np.testing.assert_array_equal(found, tree.w.data().to_numpy().astype("f4")[[[3, 1]]])


@each("encoding", [None, QuantizationEncoding.Q8_0])
def test_rows_of_blocks_are_the_numbers_in_them(
    tmp_path: Path, encoding: QuantizationEncoding | None
) -> None:
    plan = Plan.copy(weights_of({"w.weight": numbers(8, 64)}), "gguf")
    save(cast(plan, ENCODINGS["Q8_0"]), tmp_path / "a.gguf")
    tree, reads = counted(open_weights(tmp_path / "a.gguf"))
    held = tree["w.weight"].data().astype(F32).to_numpy()
    graph = picking("w.weight", 64, quantization_encoding=encoding)
    np.testing.assert_array_equal(ran(graph, np.array([[6, 1]]), registry=tree), held[[[6, 1]]])
    assert reads == {"w.weight": 2}

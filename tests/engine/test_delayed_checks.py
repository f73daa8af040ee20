"""Values on a GPU are checked once, at the end of a run; the CPU stands in for the GPU here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from each import each
from engine_graphs import F32, loaded, numbers
from graphics import on_a_gpu
from weightctl import DeviceRef, DType
from weightctl.engine import InferenceSession
from weightctl.errors import EngineError
from weightctl.graph import Graph, TensorType, Weight, ops
from weightctl.graph.ops import binary, quantized, value_checks

CPU, GPU, INT64 = DeviceRef.CPU(), DeviceRef.GPU(0), DType.int64


@pytest.fixture
def delayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Treat all tensors as those of a GPU; return how many checks were read at a time."""
    read: list[int] = []
    stack = torch.stack

    def watch(tensors: Any, *rest: Any) -> Any:
        read.append(len(tensors))
        return stack(tensors, *rest)

    for module in (value_checks, binary, quantized):
        monkeypatch.setattr(module, "is_on_gpu", lambda _: True)
    monkeypatch.setattr(torch, "stack", watch)
    return read


def picking(device: DeviceRef = CPU) -> Graph:
    """Return a graph that picks rows of a table of eight, twice, and divides the numbers."""
    with Graph("rows", [TensorType(INT64, ("n",), device)] * 2) as graph:
        ids, divisors = graph.inputs
        table = Weight("w", F32, (8, 4), device)
        rows = ops.embedding(table, ids) + ops.embedding(table, ids)
        graph.output(rows, ids // divisors, ids % divisors)
    return graph


def run(ids: list[int], divisors: list[int], device: DeviceRef = CPU) -> list[Any]:
    model = InferenceSession([device]).load(picking(device), {"w": numbers(8, 4)}, resident=True)
    found = model.execute(np.array(ids), np.array(divisors))
    return [each.to_numpy() for each in found]


def test_all_checks_of_a_run_are_read_together(delayed: list[int]) -> None:
    rows, quotients, rests = run([3, 7, 0], [2, 3, 1])
    np.testing.assert_array_equal(rows, 2 * numbers(8, 4)[[3, 7, 0]])
    assert quotients.tolist() == [1, 2, 0]
    assert rests.tolist() == [1, 1, 0]
    assert delayed == [4]


@pytest.mark.parametrize("row", [8, -1, 2**62, -(2**63)])
def test_a_row_that_does_not_exist_is_an_error_of_its_operation(
    delayed: list[int], row: int
) -> None:
    with pytest.raises(EngineError, match=r"embedding of .*: a row does not exist") as refusal:
        run([0, row], [1, 1])
    assert refusal.value.hint == "the table has rows 0 to 7"
    assert delayed == [4]


def test_the_first_error_is_raised(delayed: list[int]) -> None:
    with pytest.raises(EngineError, match="embedding"):
        run([9, 1], [0, 1])
    with pytest.raises(EngineError, match=r"floordiv of int64\[2\] and .*: integers are divided"):
        run([7, 1], [0, 1])
    assert delayed


@pytest.mark.usefixtures("delayed")
@each("rows", [0, 3])
def test_no_rows_need_no_table(rows: int) -> None:
    with Graph("rows", [TensorType(INT64, ("n",))]) as graph:
        graph.output(ops.embedding(Weight("w", F32, (rows, 4)), graph.inputs[0]))
    model = loaded(graph, {"w": numbers(rows, 4)}, resident=True)
    assert model.execute(np.zeros(0, np.int64))[0].shape == (0, 4)
    if not rows:
        with pytest.raises(EngineError, match="row 0 does not exist"):
            model.execute(np.zeros(1, np.int64))


@each("function", [ops.floordiv, ops.mod])
def test_integers_are_not_divided_by_zero(function: Any) -> None:
    kind = TensorType(INT64, (2,))
    with Graph("quotients", [kind, kind]) as graph:
        graph.output(function(*graph.inputs))
    with pytest.raises(EngineError, match="integers are divided by 0"):
        loaded(graph).execute(np.array([1, 2]), np.array([1, 0]))


def test_a_constant_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with Graph("sum", [TensorType(F32, (2,))]) as graph:
        constant = ops.constant([1.0, 2.0])
        graph.output(graph.inputs[0] + constant, constant)
    made: list[Any] = []
    from torch.utils import dlpack

    take: Any = dlpack.from_dlpack
    monkeypatch.setattr(dlpack, "from_dlpack", lambda data: made.append(data) or take(data))
    model = loaded(graph)
    for _ in range(3):
        total, alone = model.execute(np.zeros(2, np.float32))
        np.testing.assert_array_equal(total.to_numpy(), [1, 2])
        # An output is not the constant itself, which further runs use.
        alone.to_numpy()[:] = 7
    assert len(made) == 1


@on_a_gpu
def test_bad_values_on_a_gpu_are_errors_and_the_gpu_works_on() -> None:
    for ids, divisors in (([9], [1]), ([-1], [1]), ([1], [0])):
        with pytest.raises(EngineError, match=r"a row does not exist|are divided by 0"):
            run(ids, divisors, GPU)
    assert run([7], [2], GPU)[1].tolist() == [3]

"""Processes that torchrun starts compute together, and none waits for what does not come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import joined_program
from each import each
from joined_program import WAIT, numbers
from lazy import torch
from once import once, shared
from rank_processes import run_together
from runs import executed
from weightctl.device import DeviceRef
from weightctl.dtype import DType
from weightctl.engine import processes
from weightctl.errors import EngineError
from weightctl.graph import Graph, TensorType, ops

RANKS = range(2)


def of_run(name: str, factory: pytest.TempPathFactory, *groups: str) -> list[dict[str, Any]]:
    """Return what each of two processes has found, by what it did; it is run once for all tests."""

    def run(folder: Path) -> None:
        folder.mkdir()
        errors = run_together(Path(joined_program.__file__), len(RANKS), folder, *groups)
        first = folder / "0.json"
        assert first.exists(), errors
        assert groups[-1] in json.loads(first.read_text()), errors

    path = once(shared(factory) / name, run)
    return [json.loads((path / f"{rank}.json").read_text()) for rank in RANKS]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each process has found where nobody waits."""
    groups = ("together", "in_order", "other_order", "failing", "after_all", "killed")
    return of_run("joined", tmp_path_factory, *groups)


@pytest.fixture(scope="module")
def waited(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what each process has found where some wait."""
    return of_run("waited", tmp_path_factory, "too_late", "not_coming")


def found(outputs: list[dict[str, Any]], name: str) -> list[Any]:
    """Return what each process has found; a test fails with the error where there is one."""
    each = [of_rank[name]["found"] for of_rank in outputs]
    assert all(isinstance(one, list) for one in each), each
    return each


def errors(outputs: list[dict[str, Any]], name: str) -> list[str]:
    """Return the error of each process, all of which are to be ours."""
    each = [of_rank[name]["found"] for of_rank in outputs]
    assert [one["kind"] for one in each] == ["EngineError"] * len(RANKS), each
    return [one["error"] for one in each]


def each_rank(*shape: int, count: int = 2, dtype: Any = np.float32) -> list[Any]:
    return [numbers(*shape, rank=rank, dtype=dtype) for rank in range(count)]


# What they compute


def test_each_process_has_its_number_and_its_device(outputs: list[dict[str, Any]]) -> None:
    assert found(outputs, "place") == [[0, 2, "cpu:0"], [1, 2, "cpu:0"]]


@each("name", ["allreduce", "allreduce_beside", "after_all"])
def test_the_sum_is_that_of_all_in_all(outputs: list[dict[str, Any]], name: str) -> None:
    first, second = each_rank(2, 3)
    assert found(outputs, name) == [[(first + second).tolist()]] * 2


def test_numbers_of_16_bits_are_added_up_in_32(outputs: list[dict[str, Any]]) -> None:
    first, second = (each.astype(np.float32) for each in each_rank(7, dtype=ml_dtypes.bfloat16))
    total = (first + second).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert found(outputs, "allreduce_bfloat16") == [[total.tolist()]] * 2


def test_floats_of_several_processes_are_added_in_32_bits(outputs: list[dict[str, Any]]) -> None:
    ranks = [np.float32(scale) * numbers(5, rank=rank) for rank in range(2) for scale in (1, 1e4)]
    exact = np.sum(ranks, axis=0, dtype=np.float64)
    first, second = found(outputs, "allreduce_many")
    assert first == second
    assert len(first) == 2
    np.testing.assert_allclose(first[0], exact, rtol=1e-6, atol=1e-3)


def test_sums_may_be_those_of_one_process_with_all_ranks(outputs: list[dict[str, Any]]) -> None:
    ranks = [np.float32(scale) * numbers(5, rank=rank) for rank in range(2) for scale in (1, 1e4)]
    exact = np.sum(ranks, axis=0, dtype=np.float64).astype(np.float32)
    assert found(outputs, "in_order") == [[exact.tolist()] * 2] * 2


def test_integers_are_added_as_they_are(outputs: list[dict[str, Any]]) -> None:
    assert found(outputs, "allreduce_int16") == [[[1, 3, 5]]] * 2


def test_processes_must_add_in_the_same_way(outputs: list[dict[str, Any]]) -> None:
    for error in errors(outputs, "other_order"):
        assert "sends a different shape or dtype, or is at a different step" in error


def test_sizes_may_be_known_only_when_it_runs(outputs: list[dict[str, Any]]) -> None:
    first, second = each_rank(3, 2)
    assert found(outputs, "allreduce_unknown_sizes") == [[(first + second).tolist()]] * 2


def test_nothing_may_be_added_up(outputs: list[dict[str, Any]]) -> None:
    assert found(outputs, "allreduce_nothing") == [[[]]] * 2


def test_parts_of_several_sizes_follow_one_another(outputs: list[dict[str, Any]]) -> None:
    joined = np.concatenate([numbers(2, 3, rank=0), numbers(2, 2, rank=1)], 1)
    assert found(outputs, "allgather_uneven") == [[joined.tolist()]] * 2


def test_whole_numbers_are_gathered_along_any_axis(outputs: list[dict[str, Any]]) -> None:
    assert found(outputs, "allgather_first_axis") == [[[[0], [1], [2], [1], [2], [3]]]] * 2


def test_each_process_has_its_part_of_the_sum(outputs: list[dict[str, Any]]) -> None:
    first, second = each_rank(2, 5)
    total = first + second
    assert found(outputs, "reduce_scatter_uneven") == [
        [total[:, :3].tolist()], [total[:, 3:].tolist()],
    ]  # fmt: skip


def test_a_process_may_have_several_ranks(outputs: list[dict[str, Any]]) -> None:
    each = each_rank(2, 6, count=4)
    total = np.sum(each, axis=0, dtype=np.float64).astype(np.float32)
    joined = np.concatenate(each)
    parts = np.split(total, [3, 4, 5], axis=1)
    for outputs_of_one, first in zip(found(outputs, "two_ranks_each"), (0, 2), strict=True):
        assert outputs_of_one[2:4] == [joined.tolist()] * 2
        for made, expected in zip(outputs_of_one[:2], [total] * 2, strict=True):
            np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)
        for made, expected in zip(outputs_of_one[4:], parts[first : first + 2], strict=True):
            np.testing.assert_allclose(made, expected, rtol=1e-6, atol=1e-6)


def test_what_only_one_process_uses_all_compute(outputs: list[dict[str, Any]]) -> None:
    first, second = each_rank(2)
    assert found(outputs, "what_one_process_alone_needs") == [
        [first.tolist()], [(first + second).tolist()],
    ]  # fmt: skip


# What does not fit


@each(
    "name, reported",
    [
        ("other_sizes", ["float32 [[3], [3]]", "float32 [[4], [4]]"]),
        ("other_dtypes", ["float32 [[4], [4]]", "int32 [[4], [4]]"]),
        ("other_steps", ["allreduce of float32 [[4], [4]]", "allgather of float32 [[4], [4]]"]),
    ],
)
def test_processes_that_have_not_the_same_all_say_so(
    outputs: list[dict[str, Any]], name: str, reported: list[str]
) -> None:
    for rank, error in enumerate(errors(outputs, name)):
        assert (
            f"process {1 - rank} of 2 sends a different shape or dtype, or is at a different "
            "step; this process: "
        ) in error
        assert f"{reported[rank]}\n" in error.partition("; this process: ")[2]


@each(
    "name, why",
    [
        ("the_graph_of_another_rank", "a value has shape [2, 3] instead of [2, 2]"),
        (
            "the_part_of_another_rank",
            ("the first rank in this process is 1, but the graph was built for"),
        ),
        (
            "the_sum_of_another_rank",
            ("the first rank in this process is 1, but the graph was built for"),
        ),
        (
            "the_whole_of_another_rank",
            ("the first rank in this process is 1, but the graph was built for"),
        ),
    ],
)
def test_a_process_with_the_graph_of_another_rank_is_not_waited_for(
    outputs: list[dict[str, Any]], name: str, why: str
) -> None:
    first, second = errors(outputs, name)
    assert "process 1 of 2 stopped with an error" in first
    assert why in second


def test_there_must_be_a_process_for_each_rank(outputs: list[dict[str, Any]]) -> None:
    for error in errors(outputs, "more_ranks_than_processes"):
        assert "1 of 3 ranks is in this process, but the 2 processes have 2 ranks in total" in error
        assert "start the right number of processes with torchrun --nproc-per-node 3" in error


def test_what_has_joined_does_not_join_again(outputs: list[dict[str, Any]]) -> None:
    for error in errors(outputs, "joining_twice"):
        assert error.startswith("this process is already in a process group")


# What ends a group


def test_an_error_is_its_own_and_the_others_do_not_wait(outputs: list[dict[str, Any]]) -> None:
    first, second = (of_rank["failing"]["found"] for of_rank in outputs)
    assert second == {"error": "this one has failed by itself", "kind": "ValueError"}
    assert "not all of the 2 processes answered (" in first["error"]
    assert first["kind"] == "EngineError"


def test_a_process_that_is_killed_is_not_waited_for(outputs: list[dict[str, Any]]) -> None:
    of_rank, killed = outputs
    assert "killed" not in killed
    assert "not all of the 2 processes answered (" in of_rank["killed"]["found"]["error"]


@pytest.mark.long
def test_no_process_waits_longer_than_it_was_told(waited: list[dict[str, Any]]) -> None:
    for error in errors(waited, "too_late"):
        assert "not all of the 2 processes answered (" in error
    assert WAIT / 2 < waited[0]["too_late"]["seconds"] < 20 * WAIT


@pytest.mark.long
def test_a_process_that_does_not_come_is_not_waited_for(waited: list[dict[str, Any]]) -> None:
    for rank, error in enumerate(errors(waited, "not_coming")):
        assert error.startswith(f"process {rank} could not join the group of 2 processes: ")
        assert "[/" not in error
        assert "check that all processes were started and that each calls `processes()`" in error


# Without the others

STARTED = {
    "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
}  # fmt: skip


def test_without_torchrun_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in STARTED:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(
        EngineError, match="RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MAS"
    ) as no:
        processes().__enter__()
    assert "torchrun --nproc-per-node 2 PROGRAM" in no.value.hint
    for name in STARTED.keys() - {"MASTER_PORT"}:
        monkeypatch.setenv(name, STARTED[name])
    with pytest.raises(
        EngineError, match="torchrun did not start this process: MASTER_PORT is not set"
    ):
        processes().__enter__()


@each(
    "name, value, says",
    [
        ("WORLD_SIZE", "two", "WORLD_SIZE is 'two', which is not a number"),
        ("RANK", "-1", "RANK is '-1', which is not a number"),
        (
            "RANK",
            "1",
            ("RANK 1 of WORLD_SIZE 1 and LOCAL_RANK 0 of LOCAL_WORLD_SIZE 1 contradict each other"),
        ),
        (
            "LOCAL_RANK",
            "2",
            ("RANK 0 of WORLD_SIZE 1 and LOCAL_RANK 2 of LOCAL_WORLD_SIZE 1 contradict each other"),
        ),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    for variable, content in (STARTED | {name: value}).items():
        monkeypatch.setenv(variable, content)
    with pytest.raises(EngineError, match=says):
        processes().__enter__()


def test_a_device_that_is_not_there_is_refused_before_anything_is_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in STARTED.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(EngineError, match="gpu:99 is not available"):
        processes(DeviceRef.GPU(99)).__enter__()


def test_ranks_elsewhere_are_not_there_outside_of_processes() -> None:
    with Graph("alone", [TensorType(DType.float32, (2,))]) as graph:
        graph.output(*ops.allreduce([graph.inputs[0]], ranks=2))
    with pytest.raises(
        EngineError, match="1 of 2 ranks is in this process, and it is not in a process group"
    ) as refusal:
        executed(graph, np.ones(2, np.float32))
    assert "with weightctl.engine.processes()" in refusal.value.hint


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in STARTED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(EngineError, match=r"2 processes on this machine .* torch finds 1 GPU"),
        processes(DeviceRef.GPU(0)),
    ):
        pass

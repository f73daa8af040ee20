"""Processes that share an output without an engine write the bytes of a single run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from safetensors.numpy import save_file

import weightctl
from commands import run_command
from each import usual
from rank_processes import end_ranks, errors_of, run_ranks, start_rank
from weightctl import convert, shard
from weightctl.errors import ConversionError, OutputError
from weightctl.write.executors.coordination import RankIdentity, find_rank

RULES = {"layer.*.weight": "columnwise"}
WORKS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gguf": ("convert", "out.gguf", {"quant": "Q4_K"}),
    "parts": (
        "convert", "out", {"dtype": "bf16", "max_shard_size": "3MB", "to": "safetensors"},
    ),
    "pytorch": ("convert", "out.pt", {"dtype": "f16"}),
    "shards": ("shard", "out", {"tp": 2, "rules": RULES}),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    numbers = np.random.default_rng(7)
    tensors = {
        f"layer.{number}.weight": numbers.standard_normal((512, 512), np.float32)
        for number in range(16)
    }
    save_file({**tensors, "norm.bias": np.ones(3, np.float32)}, path)
    return path


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of all files at a path, by their names below it."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def outputs_in(folder: Path) -> list[str]:
    """Return the names in a directory, without the markers of a complete output."""
    names = sorted(os.listdir(folder))
    markers = [name for name in names if name.endswith(".ranks")]
    assert len(markers) <= 1
    for each in markers:
        # A process that is killed while it writes a marker leaves a hidden file.
        left = [name for name in os.listdir(folder / each) if not name.startswith(".")]
        assert sorted(name.partition("-")[0] for name in left) == ["published", "records"]
    return [name for name in names if name not in markers]


def write_single(work: str, model: Path, folder: Path) -> Path:
    """Return the output of one process."""
    command, name, options = WORKS[work]
    folder.mkdir()
    getattr(weightctl, command)(model, folder / name, **options)
    return folder / name


def work_of(work: str, model: Path, folder: Path) -> tuple[str, Path, Path, dict[str, Any]]:
    command, name, options = WORKS[work]
    folder.mkdir(exist_ok=True)
    return command, model, folder / name, options


@pytest.mark.parametrize("work", usual(["parts"], WORKS))
def test_ranks_write_the_same_bytes(work: str, model: Path, tmp_path: Path) -> None:
    single = write_single(work, model, tmp_path / "single")
    order = random.Random(work).sample(range(4), 4)
    command, source, out, options = work_of(work, model, tmp_path / "shared")
    ended = run_ranks(order, command, source, out, **options)
    assert [each["code"] for each in ended] == [0, 0, 0, 0], errors_of(ended)
    assert contents(out) == contents(single)
    assert outputs_in(out.parent) == [out.name]
    assert [each["is_last"] for each in ended].count(True) == 1
    # A rank that begins when the output is complete has no tasks.
    tasks = max(each["workers"]["tasks"] for each in ended)
    assert sum(each["workers"]["done"] for each in ended) == tasks > 0


def test_all_ranks_report_the_losses_of_a_single_run(model: Path, tmp_path: Path) -> None:
    single = convert(model, tmp_path / "single.gguf", quant="Q4_K")
    ended = run_ranks([0, 1], "convert", model, tmp_path / "out.gguf", quant="Q4_K")
    wanted = {name: repr(loss) for name, loss in single.losses.items()}
    assert [each["losses"] for each in ended] == [wanted, wanted]


@pytest.mark.long
def test_ranks_that_run_one_after_the_other_write_the_same_bytes(
    model: Path, tmp_path: Path
) -> None:
    single = write_single("gguf", model, tmp_path / "single")
    command, source, out, options = work_of("gguf", model, tmp_path / "shared")
    for rank, kill_at in ((2, 3), (0, 4), (3, 5)):
        start = start_rank(rank, command, source, out, kill_at=kill_at, **options)
        assert end_ranks([start])[0]["code"] == -signal.SIGKILL
    last = end_ranks([start_rank(1, command, source, out, **options)])[0]
    assert last["code"] == 0, last
    assert last["workers"]["lost"] == 3
    assert contents(out) == contents(single)
    late = end_ranks([start_rank(2, command, source, out, **options)])[0]
    assert late["code"] == 0, late
    assert not late["is_last"]
    assert late["losses"] == last["losses"]
    assert outputs_in(out.parent) == [out.name]


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "work"), usual([(2, "gguf"), (None, "shards")], product([2, None], WORKS))
)
def test_a_rank_that_is_started_again_after_the_end_has_nothing_to_do(
    work: str, ranks: int | None, model: Path, tmp_path: Path
) -> None:
    command, source, out, options = work_of(work, model, tmp_path / "shared")
    first = end_ranks([start_rank(0, command, source, out, ranks=ranks, **options)])[0]
    before = contents(out), os.stat(out).st_mtime_ns
    for rank in (1, 0, 1):
        again = end_ranks([start_rank(rank, command, source, out, ranks=ranks, **options)])[0]
        assert again["code"] == 0, again
        assert not again["is_last"]
        assert again["workers"]["done"] == 0
        assert again["losses"] == first["losses"]
    assert (contents(out), os.stat(out).st_mtime_ns) == before
    assert outputs_in(out.parent) == [out.name]


@pytest.mark.long
def test_an_output_that_was_removed_or_changed_after_the_end_is_not_complete(
    model: Path, tmp_path: Path
) -> None:
    command, source, out, options = work_of("gguf", model, tmp_path / "shared")
    run_ranks([0, 1], command, source, out, **options)
    made = out.read_bytes()
    out.unlink()
    ended = run_ranks([1, 0], command, source, out, **options)
    assert [each["code"] for each in ended] == [0, 0], errors_of(ended)
    assert out.read_bytes() == made
    out.write_bytes(bytes(len(made)))
    refused = run_ranks([0, 1], command, source, out, **options)
    assert all("out.gguf exists" in each["errors"] for each in refused)
    forced = run_ranks([0, 1], command, source, out, force=True, **options)
    assert [each["code"] for each in forced] == [0, 0], forced
    assert out.read_bytes() == made


@pytest.mark.long
def test_another_plan_does_not_take_the_output_for_its_own(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    run_ranks([0, 1], "convert", model, out, quant="Q4_K")
    refused = run_ranks([0, 1], "convert", model, out, quant="Q8_0")
    assert all("out.gguf exists" in each["errors"] for each in refused)
    forced = run_ranks([0, 1], "convert", model, out, quant="Q8_0", force=True)
    assert [each["code"] for each in forced] == [0, 0], forced
    assert outputs_in(tmp_path) == ["out.gguf"]


@pytest.mark.long
@pytest.mark.parametrize("place", ["finish", "published"])
def test_a_rank_continues_if_all_were_killed_at_the_end(
    place: str, model: Path, tmp_path: Path
) -> None:
    single = convert(model, tmp_path / "single.gguf", quant="Q4_K")
    (tmp_path / "shared").mkdir()
    out = tmp_path / "shared" / "out.gguf"
    killed = start_rank(0, "convert", model, out, kill_in=place, quant="Q4_K")
    assert end_ranks([killed])[0]["code"] == -signal.SIGKILL
    ended = run_ranks([1, 0], "convert", model, out, quant="Q4_K")
    assert [each["code"] for each in ended] == [0, 0], errors_of(ended)
    assert out.read_bytes() == (tmp_path / "single.gguf").read_bytes()
    assert ended[0]["losses"] == {name: repr(loss) for name, loss in single.losses.items()}
    assert outputs_in(out.parent) == [out.name]


def test_the_work_of_a_killed_rank_is_taken_over(model: Path, tmp_path: Path) -> None:
    single = write_single("shards", model, tmp_path / "single")
    command, source, out, options = work_of("shards", model, tmp_path / "shared")
    for rank, kill_at in ((1, 1), (3, 2)):
        killed = start_rank(rank, command, source, out, kill_at=kill_at, **options)
        assert end_ranks([killed])[0]["code"] == -signal.SIGKILL
    ended = run_ranks([0, 2], command, source, out, **options)
    assert [each["code"] for each in ended] == [0, 0], errors_of(ended)
    assert sum(each["workers"]["lost"] for each in ended) == 2
    assert contents(out) == contents(single)


def test_the_work_of_a_machine_that_gives_no_signs_of_life_is_taken_over(
    model: Path, tmp_path: Path
) -> None:
    single = write_single("gguf", model, tmp_path / "single")
    command, source, out, options = work_of("gguf", model, tmp_path / "shared")
    gone = start_rank(0, command, source, out, kill_at=3, beat=False, **options)
    assert end_ranks([gone])[0]["code"] == -signal.SIGKILL
    ended = end_ranks([start_rank(1, command, source, out, **options)])[0]
    assert ended["code"] == 0, ended["errors"]
    assert contents(out) == contents(single)


def test_a_task_that_does_not_end_is_also_done_by_another_rank(model: Path, tmp_path: Path) -> None:
    single = write_single("shards", model, tmp_path / "single")
    command, source, out, options = work_of("shards", model, tmp_path / "shared")
    started = [
        start_rank(rank, command, source, out, ranks=2, slow_at=slow_at, **options)
        for rank, slow_at in ((0, 2), (1, None))
    ]
    slow, other = end_ranks(started)
    assert [slow["code"], other["code"]] == [0, 0], errors_of([slow, other])
    assert other["workers"]["copies"] >= 1
    assert other["is_last"]
    tasks = other["workers"]["tasks"]
    assert slow["workers"]["done"] + other["workers"]["done"] == tasks
    assert contents(out) == contents(single)
    assert outputs_in(out.parent) == [out.name]


def test_another_engine_continues_what_ranks_have_begun(model: Path, tmp_path: Path) -> None:
    single = write_single("gguf", model, tmp_path / "single")
    command, source, out, options = work_of("gguf", model, tmp_path / "shared")
    end_ranks([start_rank(0, command, source, out, kill_at=5, **options)])
    again = convert(model, out, on="processes:2", **options)
    assert again.kept_bytes > 0
    assert contents(out) == contents(single)
    assert os.listdir(out.parent) == [out.name]


def test_ranks_continue_what_one_process_has_begun(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from weightctl.write import journal

    monkeypatch.setattr(journal, "BEGIN_AFTER", 0.0)
    single = write_single("gguf", model, tmp_path / "single")
    command, source, out, options = work_of("gguf", model, tmp_path / "shared")
    done: list[int] = []

    def stop(nbytes: int) -> None:
        done.append(nbytes)
        if len(done) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, out, threads=1, progress=stop, **options)
    ended = run_ranks([1, 0], command, source, out, **options)
    assert [each["code"] for each in ended] == [0, 0], errors_of(ended)
    # A rank that begins when the output is complete keeps nothing.
    assert any(each["kept"] > 0 for each in ended)
    assert contents(out) == contents(single)
    assert outputs_in(out.parent) == [out.name]


def test_one_process_is_refused_while_ranks_are_at_work(model: Path, tmp_path: Path) -> None:
    from weightctl.write.executors.coordination import markers_of
    from weightctl.write.journal import Purpose

    with (
        markers_of(str(tmp_path / "out.gguf"), Purpose("", "")).hold(),
        pytest.raises(OutputError, match="another run is writing"),
    ):
        convert(model, tmp_path / "out.gguf", quant="Q4_K")


def test_an_error_that_all_ranks_would_have_leaves_nothing(tmp_path: Path) -> None:
    values = np.ones((512, 512), np.float32)
    values[100, 5] = np.nan
    save_file({"layer.weight": values}, tmp_path / "model.safetensors")
    model, out = tmp_path / "model.safetensors", tmp_path / "out.gguf"
    ended = run_ranks([0, 1], "convert", model, out, quant="Q4_K")
    assert all(each["code"] == 1 for each in ended)
    assert any("`layer.weight` has nan at element 51205" in each["errors"] for each in ended)
    assert os.listdir(tmp_path) == ["model.safetensors"]


@pytest.mark.long
def test_an_output_that_exists_is_not_replaced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out.gguf").write_bytes(b"mine")
    ended = run_ranks([0, 1], "convert", model, tmp_path / "out.gguf", quant="Q4_K")
    assert [each["code"] for each in ended] == [1, 1]
    assert all("out.gguf exists" in each["errors"] for each in ended)
    assert (tmp_path / "out.gguf").read_bytes() == b"mine"
    forced = run_ranks([0, 1], "convert", model, tmp_path / "out.gguf", quant="Q4_K", force=True)
    assert [each["code"] for each in forced] == [0, 0], forced
    assert (tmp_path / "out.gguf").read_bytes() != b"mine"


def test_ranks_gather_shards(model: Path, tmp_path: Path) -> None:
    shard(model, tmp_path / "tp2", tp=2, rules=RULES)
    weightctl.gather(tmp_path / "tp2", tmp_path / "single.safetensors")
    ended = run_ranks([0, 1], "gather", tmp_path / "tp2", tmp_path / "out.safetensors")
    assert [each["code"] for each in ended] == [0, 0], errors_of(ended)
    assert contents(tmp_path / "out.safetensors") == contents(tmp_path / "single.safetensors")


@pytest.mark.parametrize(
    ("variables", "identity"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8"}, RankIdentity(3, 8)),
        ({"JOB_COMPLETION_INDEX": "2"}, RankIdentity(2)),
        ({"JOB_COMPLETION_INDEX": "2", "WORLD_SIZE": "4"}, RankIdentity(2, 4)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, RankIdentity(1, 2)),
        (
            {
                "SLURM_ARRAY_TASK_ID": "5",
                "SLURM_ARRAY_TASK_MIN": "1",
                "SLURM_ARRAY_TASK_COUNT": "8",
            },
            RankIdentity(4, 8),
        ),
        (
            {
                "SLURM_ARRAY_TASK_ID": "1",
                "SLURM_ARRAY_TASK_COUNT": "2",
                "SLURM_PROCID": "3",
                "SLURM_NTASKS": "4",
            },
            RankIdentity(7, 8),
        ),
    ],
)
def test_the_rank_is_in_the_environment(variables: dict[str, str], identity: RankIdentity) -> None:
    assert find_rank(variables) == identity


def test_a_rank_that_is_not_in_the_environment_is_refused() -> None:
    with pytest.raises(ConversionError, match="needs the number of this process"):
        find_rank({})
    with pytest.raises(ConversionError, match="RANK is not a number: 'two'"):
        find_rank({"RANK": "two"})


def test_one_of_the_ranks_writes_the_report(model: Path, tmp_path: Path) -> None:
    out, report, single = tmp_path / "out.gguf", tmp_path / "report.json", tmp_path / "one.json"
    command = [sys.executable, "-m", "weightctl", "convert", str(model), str(out), "--json",
               "--quant", "Q4_K", "--report", str(report), "--on", "ranks"]  # fmt: skip
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (1, 0)
    ]
    printed = [json.loads(process.communicate(timeout=120)[0]) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    schema = json.loads((Path(weightctl.__file__).parent / "schemas" / "convert.json").read_text())
    for each in printed:
        jsonschema.validate(each, schema)
    assert [each["workers"]["is_last"] for each in printed].count(True) == 1
    merged = json.loads(report.read_text())
    out.unlink()
    alone = run_command("convert", model, out, "--json", "--quant", "Q4_K", "--report", single)
    assert alone.returncode == 0, alone.stderr
    wanted = json.loads(single.read_text())
    for name in ("seconds", "bytes_per_second", "workers"):
        merged.pop(name)
        wanted.pop(name, None)
    assert merged == wanted

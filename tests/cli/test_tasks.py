"""The command `tasks`: what workers would get, without doing it."""

from __future__ import annotations

import json
import os
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

from commands import run_command as weightctl
from conftest import ROOT
from weightctl import convert
from weightctl.cli import app

if TYPE_CHECKING:
    from pathlib import Path


TINY = str(ROOT / "fixtures" / "tiny-llama")


def listed(*words: object) -> Any:
    done = weightctl("tasks", *words, "--json", "-q")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_tasks_are_numbered_and_add_up_to_the_output(tmp_path: Path) -> None:
    found = listed(TINY, tmp_path / "o.gguf", "--quant", "Q8_0", "--task-size", "1MB")
    tasks = found["tasks"]
    assert [task["task"] for task in tasks] == [*range(len(tasks))]
    planned = json.loads(
        weightctl("convert", TINY, tmp_path / "o.gguf", "--quant", "Q8_0", "-n", "--json").stdout
    )
    assert sum(task["written_bytes"] for task in tasks) == planned["tensor_bytes"]["after"]
    assert found["read_bytes"] == planned["tensor_bytes"]["before"]
    assert found["seconds"] == pytest.approx(sum(task["seconds"] for task in tasks))
    assert os.listdir(tmp_path) == []


def test_smaller_tasks_are_more(tmp_path: Path) -> None:
    options = (TINY, tmp_path / "o.gguf", "--quant", "Q4_K_M", "--task-size")
    few, many = (listed(*options, size)["tasks"] for size in ("4GB", "100kB"))
    assert len(few) <= len(many)
    assert len(few) < 10


def test_a_command_of_convert_is_one_of_tasks(tmp_path: Path) -> None:
    words = [TINY, tmp_path / "o.gguf", "--quant", "Q8_0", "--force", "-j", "2", "--mem", "64MB"]
    words += ["--on", "processes:2", "--report", tmp_path / "r.json", "--dry-run"]
    assert listed(*words) == listed(*words[:4])


def test_options_of_convert_are_those_of_tasks_except_budgets() -> None:
    from typer.main import get_command

    commands = {name: get_command(app).get_command(None, name) for name in ("convert", "tasks")}
    options = {
        name: {opt for param in command.params for opt in param.opts}
        for name, command in commands.items()
    }
    # A budget is found by running the model, and tasks only read headers.
    budgets = {
        "--bpw", "--size", "--max-kld", "--types", "--same-type", "--text-file",
        "--calibration-file", "--recipe-out", "--fit", "--context", "--kv-type",
    }  # fmt: skip
    assert options["convert"] - options["tasks"] == budgets


def test_the_expected_time_grows_with_the_work_of_the_codec(tmp_path: Path) -> None:
    words = (TINY, tmp_path / "o.gguf", "--quant")
    fast, slow = (listed(*words, quant)["seconds"] for quant in ("Q8_0", "Q4_K"))
    assert slow > 1.5 * fast


def test_a_slower_store_makes_tasks_longer(tmp_path: Path) -> None:
    words = (TINY, tmp_path / "o.gguf", "--bandwidth")
    fast, slow = (listed(*words, rate) for rate in ("1GB", "10MB"))
    assert slow["seconds"] > 50 * fast["seconds"]
    assert [task["read_bytes"] for task in slow["tasks"]] == [
        task["read_bytes"] for task in fast["tasks"]
    ]


def test_shards_have_tasks(tmp_path: Path) -> None:
    found = listed(TINY, tmp_path / "o", "--tp", "2")
    assert {task["file"] for task in found["tasks"]} <= {
        "rank-0/model.safetensors",
        "rank-1/model.safetensors",
    }
    planned = json.loads(
        weightctl("shard", TINY, tmp_path / "o", "--tp", "2", "-n", "--json").stdout
    )
    assert found["written_bytes"] == planned["tensor_bytes"]["ranks"]


def test_gathering_has_tasks(tmp_path: Path) -> None:
    weightctl("shard", TINY, tmp_path / "shards", "--tp", "2")
    found = listed(tmp_path / "shards", tmp_path / "joined", "--gather")
    assert found["tasks"]


def test_the_same_plan_and_input_have_the_same_digests(tmp_path: Path) -> None:
    copytree(TINY, tmp_path / "model")
    words = (tmp_path / "model", tmp_path / "o.gguf", "--quant")
    first, again, other = (listed(*words, quant) for quant in ("Q8_0", "Q8_0", "Q4_0"))
    assert first == again
    assert first["plan"] != other["plan"]
    assert first["fingerprint"] == other["fingerprint"]
    weights = tmp_path / "model" / "model.safetensors"
    os.utime(weights, (1, 1))
    assert listed(*words, "Q8_0")["fingerprint"] != first["fingerprint"]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            ["--tp", "2", "--quant", "Q8_0"],
            "with --tp, --ep or --pp, values are copied into shards unchanged",
            "remove --quant",
        ),
        (
            ["--layout", "vllm"],
            "without --tp, --ep or --pp, the tasks are those of a conversion",
            "remove --layout",
        ),
        (
            ["--gather", "--tp", "2"],
            "--gather reads from the manifest how tensors are split",
            "remove --tp",
        ),
        (["--tp", "auto"], "--tp auto writes nothing, so it has no tasks", "use a number"),
        (["--task-size", "0GB"], "a task cannot have 0GB bytes", "write a size such as 2GB"),
        (["--bandwidth", "0GB"], "a worker cannot read 0GB per second", "write a size such as"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], message: str, hint: str, tmp_path: Path
) -> None:
    done = weightctl("tasks", TINY, tmp_path / "o", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}\nhint: {hint}")


def test_a_pipe_has_no_tasks() -> None:
    done = weightctl("tasks", TINY, "-", "--to", "gguf")
    assert done.returncode == 2
    assert "workers cannot write to" in done.stderr


def test_workers_get_the_listed_tasks(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    found = listed(TINY, tmp_path / "o.gguf", "--quant", "Q8_0", "--task-size", "1MB")
    progress: list[int] = []
    with ThreadPoolExecutor(1) as executor:
        convert_on(tmp_path / "o.gguf", executor, progress)
    # Tasks that end at the same time are reported in any order.
    assert sorted(progress) == sorted(task["written_bytes"] for task in found["tasks"])


def convert_on(out: Path, executor: Any, progress: list[int]) -> None:
    convert(TINY, out, quant="Q8_0", on=executor, task_size="1MB", progress=progress.append)

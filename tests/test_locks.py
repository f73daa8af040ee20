"""If two runs write to one path, the first completes, and the second ends at once."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from outcomes import EACH_KIND, old_output, random_model, random_weights, standing
from sharded_files import cut, layers
from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.write.save import save
from weightctl.write.shard import save_shards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from outcomes import Kind
    from weightctl.sharding.plan import ShardPlan

SECOND = "another run is writing"


def begun(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "weightctl", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def once(do: Callable[[], object]) -> Callable[[int], None]:
    """Return a `progress` function that calls another function the first time."""
    done: list[object] = []

    def progress(_: int) -> None:
        if not done:
            done.append(do())

    return progress


@EACH_KIND
def test_the_second_of_two_conversions_is_refused_and_the_first_completes(
    kind: Kind, tmp_path: Path
) -> None:
    source = random_model(tmp_path / "source", 3, 8)
    place = tmp_path / "place"
    place.mkdir()
    old_output(kind, place, tensors=2)
    plan, where = kind.plan(open_weights(source), place)

    def run_another() -> None:
        before = sorted(os.listdir(place))
        another = begun("convert", source, where.path, *kind.options, "--force", "-q")
        _, errors = another.communicate()
        assert another.returncode == 2
        assert f"{SECOND} {os.path.realpath(where.path)}" in errors
        assert "wait" in errors
        assert sorted(os.listdir(place)) == before

    save(plan, where, force=True, progress=once(run_another))
    there = standing(place)
    (again := tmp_path / "again").mkdir()
    save(*kind.plan(open_weights(source), again))
    assert there == standing(again)
    assert sorted(os.listdir(place)) == sorted(os.listdir(again))


def test_runs_that_begin_at_once_leave_one_whole_set(tmp_path: Path) -> None:
    source = random_model(tmp_path / "source", 3, 8)
    place = tmp_path / "place"
    place.mkdir()
    arguments = ("convert", source, place / "m.gguf", "--max-shard-size", "1B", "--force", "-q")
    runs = [begun(*arguments) for _ in range(4)]
    errors = [run.communicate()[1] for run in runs]
    assert 0 in {run.returncode for run in runs} <= {0, 2}
    assert all(SECOND in text for run, text in zip(runs, errors, strict=True) if run.returncode)
    assert sorted(os.listdir(place)) == [f"m-0000{part}-of-00003.gguf" for part in (1, 2, 3)]


def test_another_output_in_the_same_directory_is_written_meanwhile(tmp_path: Path) -> None:
    plan, where = output_of(tmp_path, "one.gguf")
    other, there = output_of(tmp_path, "two.gguf")
    save(plan, where, progress=once(lambda: save(other, there)))
    assert sorted(os.listdir(tmp_path)) == ["one.gguf", "two.gguf"]


def output_of(place: Path, name: str) -> tuple[Plan, Path]:
    return Plan.copy(random_weights(1, 8), "gguf"), place / name


def test_a_file_and_the_directory_that_has_it_are_not_written_at_once(tmp_path: Path) -> None:
    source = random_model(tmp_path / "source", 2, 8)
    out = tmp_path / "out"
    plan = Plan.copy(open_weights(source), "safetensors")
    save(plan, out)

    def write_file() -> None:
        with pytest.raises(OutputError, match=SECOND):
            save(plan, out / "model.safetensors", force=True)

    def write_directory() -> None:
        with pytest.raises(OutputError, match=SECOND):
            save(plan, out, force=True)

    save(plan, out, force=True, progress=once(write_file))
    save(plan, out / "model.safetensors", force=True, progress=once(write_directory))
    assert sorted(os.listdir(out)) == ["config.json", "model.safetensors"]


def test_shards_and_a_model_are_not_written_to_one_directory_at_once(tmp_path: Path) -> None:
    plan = cut(layers(tmp_path / "model"))
    model = Plan.copy(open_weights(tmp_path / "model"), "safetensors")
    out, how = tmp_path / "out", tmp_path / "plan.toml"
    how.write_text("[tensors]\n'.' = 'rowwise'\n")

    def convert() -> None:
        with pytest.raises(OutputError, match=SECOND):
            save(model, out)

    def shard() -> None:
        another = begun("shard", tmp_path / "model", out, "--tp", "2", "--plan", how)
        _, errors = another.communicate()
        assert another.returncode == 2
        assert SECOND in errors

    save_shards(plan, out, progress=once(convert))
    save_shards(plan, out, force=True, progress=once(shard))
    save(model, tmp_path / "other", progress=once(lambda: refused_shards(plan, tmp_path / "other")))


def refused_shards(plan: ShardPlan, out: Path) -> None:
    with pytest.raises(OutputError, match=SECOND):
        save_shards(plan, out)

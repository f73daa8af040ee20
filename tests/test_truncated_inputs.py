"""If an input is truncated while a command reads it, the result is an error, and never a signal."""

from __future__ import annotations

import mmap
import pickle
import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from commands import run_command
from lazy import load_file, torch
from truncations import Outcome, Runner, runner
from weightctl import Plan, open_weights
from weightctl.plan.arrangement import split
from weightctl.weights.metadata import MetadataValue
from weightctl.write.save import save

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

# The number of runs of a command for each format, each with another moment.
FEW, MANY = 4, 10
FORMATS = {
    "gguf": "in/model.gguf",
    "safetensors": "in/model.safetensors",
    "zip": "in/model.pt",
    "stream": "in/model.bin",
    "pickle": "in/model.pkl",
    "parts": "in",
}
COMMANDS = {
    "ls": ["ls", "{}"],
    "ls --meta": ["ls", "{}", "--meta"],
    "ls --json": ["ls", "{}", "--json", "--meta"],
    "ls --scan": ["ls", "{}", "--scan"],
    "ls --hash": ["ls", "{}", "--hash", "--flat"],
    "diff": ["diff", "{}", "other/model.safetensors", "--hash"],
    "convert": ["convert", "{}", "out.pt", "--names", "keep"],
    "convert --quant": ["convert", "{}", "out.gguf", "--names", "keep", "--quant", "Q8_0"],
    "shard": ["shard", "{}", "out", "--plan", "plan.toml", "--tp", "2", "--to", "safetensors"],
    "verify": ["verify", "{}", "--check", "finite", "--check", "values",
               "--against", "other/model.safetensors"],
}  # fmt: skip
EACH_COMMAND = pytest.mark.parametrize("command", COMMANDS)
EACH_FORMAT = pytest.mark.parametrize("name", FORMATS)


@pytest.fixture(scope="module")
def forks() -> Generator[Runner]:
    with runner() as started:
        yield started


@pytest.fixture(scope="module")
def models(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for each format with a model whose header needs several reads."""
    base = tmp_path_factory.mktemp("models")
    tensors = load_file(tiny_llama / "model.safetensors")
    texts = [f"word {number}" for number in range(15_000)]
    plan = Plan.copy(open_weights(tiny_llama / "model.safetensors"), "safetensors")
    words = replace(plan, metadata={"words": MetadataValue("array[string]", texts)})
    for name, path in FORMATS.items():
        place = base / name
        (place / "in").mkdir(parents=True)
        (place / "other").mkdir()
        shutil.copy(tiny_llama / "model.safetensors", place / "other")
        (place / "plan.toml").write_text("[tensors]\n'.*' = 'replicate'\n")
        if name == "gguf":
            save(replace(words, format="gguf"), place / path)
        elif name == "safetensors":
            save(words, place / path)
        elif name == "parts":
            save(split(words, 1_000_000), place / path / "model.safetensors")
        else:
            write_pickle(place / path, name, {**tensors, "words": texts})
    return base


def write_pickle(path: Path, form: str, content: dict[str, Any]) -> None:
    """Write tensors and other values in one of PyTorch's formats, or as a pickle of arrays."""
    if form == "pickle":
        arrays = {
            name: value.float().numpy() if isinstance(value, torch.Tensor) else value
            for name, value in content.items()
        }
        path.write_bytes(pickle.dumps(arrays, 4))
        return
    # In another order, so that elements must be gathered.
    turned = {
        name: value.t().contiguous().t() if isinstance(value, torch.Tensor) else value
        for name, value in content.items()
    }
    torch.save(turned, path, _use_new_zipfile_serialization=form == "zip")


def outputs(place: Path) -> dict[str, bytes]:
    """Return the files that a run has left, without its inputs."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.relative_to(place).parts[0] not in {"in", "other", "plan.toml"}
    }


def copied(model: Path, place: Path) -> Path:
    """Copy a model directory, with the times of its files."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(model, place)
    return place


def check(outcome: Outcome, left: dict[str, bytes], expected: dict[str, bytes]) -> None:
    """Check the exit code of a run, and that it left a complete output or none."""
    assert outcome.code in {0, 1, 2}, outcome
    assert "Traceback" not in outcome.stderr, outcome.stderr
    assert "error in weightctl" not in outcome.stderr, outcome.stderr
    if outcome.code == 2:
        assert "model" in outcome.stderr
    # An incomplete set of shards is kept for the next run under another name.
    named = {path: raw for path, raw in left.items() if ".weightctl-" not in path}
    assert set(named) in (set(), set(expected)), sorted(named)
    if expected:
        assert bool(named) == (outcome.code == 0), outcome


def moments(
    forks: Runner, model: Path, command: str, name: str, place: Path, *, is_timed: bool, many: int
) -> list[Outcome]:
    """Run a command `many` times, and truncate a file of its input at a different moment."""
    arguments = [part.format(FORMATS[name]) for part in COMMANDS[command]]
    chance = random.Random(f"{command} {name} {is_timed}")
    whole = forks.run(arguments, copied(model, place), read=0 if not is_timed else None)
    expected = outputs(place)
    assert whole.code in {0, 1}, whole
    reads = [*range(1, whole.reads + 1)]
    chosen = sorted(chance.sample(reads, min(many, len(reads))))
    found: list[Outcome] = []
    for number in range(many if is_timed else len(chosen)):
        copied(model, place)
        victim = chance.choice(sorted((place / "in").iterdir()))
        size = chance.choice([0, 1, chance.randrange(victim.stat().st_size)])
        outcome = forks.run(
            arguments, place, victim=str(victim.relative_to(place)), size=size,
            read=None if is_timed else chosen[number],
            seconds=chance.uniform(0, 1.1 * whole.seconds) if is_timed else None,
        )  # fmt: skip
        check(outcome, outputs(place), expected)
        found.append(outcome)
    return found


@pytest.mark.parametrize(
    ("command", "name"),
    [
        # Each command with one format, and each format with one command or two.
        pytest.param(command, name, marks=[] if (row - column) % 6 == 0 else [pytest.mark.long])
        for row, command in enumerate(COMMANDS)
        for column, name in enumerate(FORMATS)
    ],
)
def test_a_file_that_is_cut_off_before_a_read_is_an_error(
    command: str, name: str, forks: Runner, models: Path, tmp_path: Path
) -> None:
    found = moments(forks, models / name, command, name, tmp_path / "run", is_timed=False, many=FEW)
    # If the start of a file is not that of a pickle, a scan has read all that it needs.
    assert any(outcome.code for outcome in found) or command == "ls --scan"


def test_a_model_that_runs_is_not_mapped(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    map_memory = mmap.mmap

    def map_no_file(number: int, *arguments: Any, **named: Any) -> mmap.mmap:
        assert number == -1, "a file is mapped"
        return map_memory(number, *arguments, **named)

    monkeypatch.setattr(mmap, "mmap", map_no_file)
    done = run_command("verify", tiny_llama, "--tokens", "1,42,7")
    assert done.returncode == 0, done


@pytest.mark.long
@EACH_COMMAND
@EACH_FORMAT
def test_a_file_that_is_cut_off_at_any_time_is_not_a_signal(
    command: str, name: str, forks: Runner, models: Path, tmp_path: Path
) -> None:
    moments(forks, models / name, command, name, tmp_path / "run", is_timed=True, many=MANY)

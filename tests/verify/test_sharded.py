"""Sharded models run on all ranks together, from their own files."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

from sharded_files import write_shards
from weightctl import open_weights
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid, Sharding, Whole
from weightctl.verify.checking import verify
from weightctl.verify.figures import ForwardFigures
from weightctl.verify.request import Request, Subject
from weightctl.verify.run.parts import Running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from families import Made
    from weightctl.sharding.planning import CutRulesLike
    from weightctl.verify.results import Report

CLOSE = 1e-4


def cut(source: Path, out: Path, grid: Grid, rules: CutRulesLike | None = None) -> Path:
    """Write a model's parts, with the config beside each."""
    write_shards(shard_plan(open_weights(source), grid, rules=rules), out)
    for rank in range(grid.ranks) if source.is_dir() else ():
        shutil.copy(source / "config.json", out / f"rank-{rank}")
    return out


def logits(path: Path, *, together: bool = True) -> NDArray[np.float32]:
    """Return what a model says of some tokens; its ranks together, where it is cut."""
    subject = Subject(path)
    assert subject.checkpoint is not None
    running = Running(subject.checkpoint, cut=subject.cut if together else None)
    assert running.notes == ()
    ids = np.arange(3, 23).reshape(2, 10)
    flow = running.begin(ids, np.ones_like(ids, dtype=np.bool_))
    x = flow.x
    for number in range(running.layers):
        x = running.layer(number, x, flow.beside)
    return running.end(x)


def change(path: Path, rank: int, name: str) -> None:
    """Reverse the order of a tensor's elements in the file of a rank."""
    source = open_weights(path).source
    assert isinstance(source, GatheredSource)
    extent = source.ranks[rank].extents[name]
    width = source.ranks[rank].tensors[name].encoding.size
    with (path / f"rank-{rank}" / "model.safetensors").open("r+b") as file:
        file.seek(extent.offset)
        raw = file.read(extent.nbytes)
        file.seek(extent.offset)
        # Whole elements in reverse order: their bytes reversed would overflow to NaN.
        file.write(np.frombuffer(raw, f"u{width}")[::-1].tobytes())


@pytest.mark.parametrize("grid", [Grid(2), Grid(4), Grid(2, 1, 3)])
def test_ranks_together_say_what_the_whole_does(
    tiny_llama: Path, tmp_path: Path, grid: Grid
) -> None:
    together, whole = logits(cut(tiny_llama, tmp_path / "out", grid)), logits(tiny_llama)
    assert 0 < np.abs(together - whole).max() < CLOSE


@pytest.mark.parametrize("name", ["mixtral", "qwen3moe"])
def test_groups_of_experts_say_what_the_whole_does(
    name: str, family: Callable[[str], Made], tmp_path: Path
) -> None:
    source = family(name).path
    together = logits(cut(source, tmp_path / "out", Grid(2, 2, 2)))
    assert 0 < np.abs(together - logits(source)).max() < CLOSE * np.abs(together).max()


@pytest.mark.parametrize(("option", "dtype"), [("--dtype", "f32"), ("--quant", "q8_0")])
def test_ranks_of_gguf_say_what_the_whole_does(
    option: str,
    dtype: str,
    family: Callable[[str], Made],
    converted: Callable[..., Path],
    tmp_path: Path,
) -> None:
    source = converted(family("llama").bf16, f"llama-{dtype}.gguf", option, dtype)
    together = logits(cut(source, tmp_path / "out", Grid(2)))
    assert 0 < np.abs(together - logits(source)).max() < CLOSE * np.abs(together).max()


# Of four ranks two have the same heads of keys, so that the whole is read without the copies.
COPY = "model.layers.1.self_attn.k_proj.weight"


def test_each_rank_computes_with_its_own_copy(tiny_llama: Path, tmp_path: Path) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(4))
    before = logits(out)
    change(out, 1, COPY)
    assert np.array_equal(logits(out, together=False), logits(tiny_llama))
    assert np.abs(logits(out) - before).max() > 1000 * CLOSE


def test_an_altered_copy_is_named(tiny_llama: Path, tmp_path: Path) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(4))
    change(out, 3, COPY)
    found = verified(out, tiny_llama)
    (problem,) = found.results["structure"].problems
    assert problem.where == COPY
    assert "rank 3" in problem.text
    assert [each.where for each in found.results["forward"].problems] == ["layers.1"]


def verified(path: Path, reference: Path | None = None) -> Report:
    return verify(Request(subject=Subject(path), reference=reference and Subject(reference)))


def test_a_sound_set_is_not_a_problem(tiny_llama: Path, tmp_path: Path) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(2, 1, 2))
    found = verified(out, tiny_llama)
    assert found.problems == []
    forward = found.figures(ForwardFigures)
    assert forward is not None
    assert (forward.tp, forward.ep, forward.pp) == (2, 1, 2)
    assert forward.divergence is not None
    assert forward.divergence.mean is not None
    assert forward.divergence.mean < CLOSE


class Everywhere:
    """Every rank has all of it."""

    def sharding(self, whole: Whole, grid: Grid) -> Sharding:
        del whole
        return Sharding("replicate", ((),) * grid.ranks)

    def notes(self, names: object) -> tuple[str, ...]:
        del names
        return ()


def test_what_the_ranks_cannot_compute_together_runs_whole(
    tiny_llama: Path, tmp_path: Path
) -> None:
    out = cut(tiny_llama, tmp_path / "out", Grid(7), Everywhere())
    found = verified(out).results["forward"]
    assert isinstance(found.figures, ForwardFigures)
    assert found.figures.tp == 1
    assert len(found.figures.activations) == 5
    assert any("did not run on its ranks" in note for note in found.notes)

"""Other models, other names and a single rank's file are each one short finding."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import small_models
from verdicts import explain, report_on, saved
from weightctl.cli import app
from weightctl.cli.verdict import verdict
from weightctl.verify import Request, verify
from weightctl.verify.figures import ValuesFigures

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.verify import Report, Subject


CHECKS = ("structure", "finite", "names", "metadata", "values", "forward")


def renamed(tiny_llama: Path, out: Path, rename: Callable[[str], str]) -> Path:
    shutil.copytree(tiny_llama, out)
    tensors = load_file(out / "model.safetensors")
    save_file({rename(name): each for name, each in tensors.items()}, out / "model.safetensors")
    return out


def run(*arguments: object) -> None:
    assert not app([*map(str, arguments), "-q"], standalone_mode=False)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    out = tmp_path_factory.mktemp("ranks") / "ranks"
    run("shard", tiny_llama, out, "--tp", "2")
    return out


def first_line(report: Report) -> str:
    lines = ["".join(cell.text for cell in each) for each in verdict(report, 300, wraps=True)]
    assert len(lines) <= 16
    return lines[0]


def finding(report: Report, cause: str) -> str:
    assert [each.cause and each.cause.name for each in report.problems] == [cause], explain(report)
    assert first_line(report) == report.problems[0].text
    return report.problems[0].text


def compared(report: Report) -> int:
    figures = report.figures(ValuesFigures)
    assert figures is not None
    assert not any(each.relative_rmse for each in figures.tensors)
    return len(figures.tensors)


def test_different_models_are_described_side_by_side(tmp_path: Path, tiny_llama: Path) -> None:
    import small_models

    saved(tmp_path, small_models.qwen2())
    assert finding(report_on(tmp_path, tiny_llama, CHECKS), "different_models") == (
        "A and B are different models: qwen2 with 3 layers, hidden size 64, 96 tokens / llama "
        "with 3 layers, hidden size 256, 512 tokens"
    )


def test_models_of_one_size_without_related_values_are_different_models(
    tmp_path: Path, tiny_llama: Path
) -> None:
    import torch

    out = renamed(tiny_llama, tmp_path / "other", str)
    made = torch.Generator().manual_seed(1)
    tensors = {
        name: (torch.randn(each.shape, generator=made) * each.float().std()).to(each.dtype)
        for name, each in load_file(out / "model.safetensors").items()
    }
    save_file(tensors, out / "model.safetensors")
    text = finding(report_on(out, tiny_llama, ("names", "values")), "different_models")
    assert text.startswith("A and B are different models: their values have no relation")


@pytest.mark.parametrize("prefix", ["base.", "module.model."])
def test_a_prefix_is_named_and_values_are_compared_without_it(
    tmp_path: Path, tiny_llama: Path, prefix: str
) -> None:
    out = renamed(tiny_llama, tmp_path / "renamed", lambda name: prefix + name)
    report = report_on(out, tiny_llama, CHECKS)
    assert finding(report, "renamed") == (
        f"A has 30 of 30 tensors of B under other names: each name begins with the prefix "
        f"`{prefix}`"
    )
    assert compared(report) == 30


def test_a_prefix_is_found_across_naming_conventions(tmp_path: Path, tiny_llama: Path) -> None:
    run("convert", tiny_llama, tmp_path / "tiny.gguf", "--quant", "Q8_0")
    out = renamed(tiny_llama, tmp_path / "renamed", lambda name: f"base.{name}")
    report = report_on(out, tmp_path / "tiny.gguf", ("names", "values"))
    assert "each name begins with the prefix `base.`" in finding(report, "renamed")


def test_names_of_another_convention_are_found_by_the_values(
    tmp_path: Path, tiny_llama: Path
) -> None:
    def rename(name: str) -> str:
        return name.replace("model.layers", "transformer.h").replace("self_attn", "attn")

    report = report_on(renamed(tiny_llama, tmp_path / "renamed", rename), tiny_llama, CHECKS)
    assert finding(report, "renamed") == (
        "A has 27 of 30 tensors of B under other names: `transformer.h.0.attn.k_proj.weight` is "
        "`model.layers.0.self_attn.k_proj.weight`, `transformer.h.0.attn.o_proj.weight` is "
        "`model.layers.0.self_attn.o_proj.weight` and 25 more"
    )
    assert compared(report) == 30


def test_other_names_and_other_encodings_are_told_by_the_shapes(
    tmp_path: Path, tiny_llama: Path
) -> None:
    run("convert", tiny_llama, tmp_path / "tiny.gguf", "--quant", "Q8_0")
    names = iter(range(30))
    out = renamed(tiny_llama, tmp_path / "renamed", lambda _: f"p{next(names)}")
    report = report_on(out, tmp_path / "tiny.gguf", ("names", "values"))
    assert finding(report, "renamed") == (
        "A and B have tensors of the same shapes under different names: 0 of 30 names are in both"
    )


def test_a_renamed_model_is_one_problem_without_a_reference(
    tmp_path: Path, tiny_llama: Path
) -> None:
    out = renamed(tiny_llama, tmp_path / "renamed", lambda name: f"base.{name}")
    (problem,) = report_on(out, checks=("names",)).problems
    assert problem.text == (
        "30 of 30 tensors of llama are missing, and 30 tensors have other names: "
        "`base.lm_head.weight`, `base.model.embed_tokens.weight` and 28 more; without the prefix "
        "`base.` 30 of these names are right"
    )


@pytest.mark.parametrize("is_reference", [False, True])
def test_one_ranks_file_is_named_with_the_whole(
    ranks: Path, tiny_llama: Path, is_reference: bool
) -> None:
    pair = (tiny_llama, ranks / "rank-0") if is_reference else (ranks / "rank-0", tiny_llama)
    report = report_on(*pair, CHECKS)
    side = "B" if is_reference else "A"
    assert finding(report, "one_rank") == (
        f"{side} is one rank's file, not a whole model: of 30 tensors it has 23 in part; the "
        f"whole checkpoint is `{ranks}`"
    )
    assert compared(report) == 7


def test_one_ranks_file_is_one_problem_without_a_reference(ranks: Path) -> None:
    (problem,) = report_on(ranks / "rank-0", checks=("names",)).problems
    assert problem.text.endswith(f"the whole checkpoint is `{ranks}`")


def test_one_ranks_file_without_its_manifest_is_told_by_its_shapes(
    tmp_path: Path, ranks: Path, tiny_llama: Path
) -> None:
    shutil.copytree(ranks / "rank-1", tmp_path / "copy")
    report = report_on(tmp_path / "copy", tiny_llama, ("names", "values"))
    assert finding(report, "one_rank") == (
        "A looks like one rank's file of a sharded checkpoint: 23 of 30 tensors have 1/2 of the "
        "rows or columns that those of B have"
    )


def test_all_ranks_together_are_the_model(ranks: Path, tiny_llama: Path) -> None:
    assert not report_on(ranks, tiny_llama, ("names", "values")).problems


@pytest.mark.parametrize("is_reference", [False, True])
def test_a_checkpoint_without_tensors_is_one_problem(
    tmp_path: Path, tiny_llama: Path, is_reference: bool
) -> None:
    save_file({}, tmp_path / "empty.safetensors")
    pair = (tiny_llama, tmp_path / "empty.safetensors")
    report = report_on(*(pair if is_reference else pair[::-1]), ("names", "values"))
    empty, full = ("B", "A") if is_reference else ("A", "B")
    text = f"{empty} has no tensors, and {full} has 30"
    assert finding(report, "different_models") == text


SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 96}


def llama(directory: Path, **sizes: int) -> Subject:
    directory.mkdir()
    return saved(directory, small_models.llama(**(SMALL | sizes)))


def against(subject: Subject, reference: Subject) -> Report:
    return verify(Request(subject=subject, reference=reference), ["values", "forward"])


def test_models_of_other_sizes_are_one_problem(tmp_path: Path) -> None:
    own = llama(tmp_path / "own")
    other = llama(tmp_path / "other", hidden_size=64, num_hidden_layers=2)
    report = against(own, other)
    (problem,) = report.problems
    assert problem.check == "values"
    assert problem.text == (
        "A and B are different models: llama with 1 layer, hidden size 32 / llama with "
        "2 layers, hidden size 64"
    )
    assert problem.cause is not None
    assert problem.cause.name == "different_models"
    assert report.results["forward"].skipped == "A and B are different models"


def test_models_of_two_families_are_different_models(tmp_path: Path) -> None:
    (directory := tmp_path / "other").mkdir()
    other = saved(directory, small_models.gpt2())
    report = against(llama(tmp_path / "own"), other)
    (problem,) = report.problems
    assert ": llama with 1 layer, hidden size 32 / gpt2 with " in problem.text


@pytest.mark.parametrize("key", ["num_hidden_layers", "vocab_size"])
def test_one_size_that_differs_may_be_a_mistake(key: str, tmp_path: Path) -> None:
    own, other = llama(tmp_path / "own"), llama(tmp_path / "other", **{key: 3})
    reported = " ".join(each.text for each in against(own, other).problems)
    assert reported
    assert "A and B are different models: llama" not in reported


def test_the_check_that_runs_alone_tells_it(tmp_path: Path) -> None:
    own = llama(tmp_path / "own")
    other = llama(tmp_path / "other", hidden_size=64, vocab_size=97)
    report = verify(Request(subject=own, reference=other), ["forward"])
    assert "different models" in report.problems[0].text


def test_a_block_that_gives_nan_is_said_to_and_has_no_percentage(tmp_path: Path) -> None:
    def ruin(arrays: Any) -> None:
        arrays["model.layers.0.mlp.down_proj.weight"][5, 7] = np.nan

    (tmp_path / "own").mkdir()
    own = saved(tmp_path / "own", small_models.llama(**SMALL), change=ruin)
    report = verify(Request(subject=own, reference=llama(tmp_path / "other")), ["forward"])
    (problem,) = report.problems
    assert "has NaN or infinite values where the reference does not" in problem.text
    assert "%" not in problem.text

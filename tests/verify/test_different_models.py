"""A reference that is another model is said to be one, and nothing is compared with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import small_models
from subjects import saved
from weightctl.verify import Request, verify

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.verify import Report, Subject

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

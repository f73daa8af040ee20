"""The matrices of a model of an unknown family, each run by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored, weights_of
from verdicts import forward
from weightctl import Plan
from weightctl.dtype import ENCODINGS
from weightctl.plan.cast import cast
from weightctl.verify import Request, Subject
from weightctl.verify.checks.forward.matrices import check_matrices
from weightctl.verify.figures import ForwardFigures, MatrixGain
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def drawn(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(3).standard_normal(shape, np.float32)


def test_each_matrix_makes_about_as_much_of_a_vector_as_random_numbers_would(
    tmp_path: Path,
) -> None:
    arrays = {"a": drawn(200, 100), "conv": drawn(8, 4, 3, 3), "stack": drawn(3, 40, 64)}
    result, figures = forward(Subject(stored(tmp_path / "x.safetensors", **arrays)))
    assert [each.name for each in figures.matrices] == list(arrays)
    for each in figures.matrices:
        assert each.gain == pytest.approx(each.usual, rel=0.4)
    assert not result.problems
    assert any("family is unknown" in note for note in result.notes)


def test_vectors_and_whole_numbers_are_not_matrices(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "norm": drawn(40), "ids": np.zeros((4, 4), np.int64), "none": drawn(0, 4), "a": drawn(4, 4),
    }  # fmt: skip
    _, figures = forward(Subject(stored(tmp_path / "x.safetensors", **arrays)))
    assert [each.name for each in figures.matrices] == ["a"]


def test_what_no_model_multiplies_by_is_left_out(tmp_path: Path) -> None:
    arrays = {
        "a.weight": drawn(4, 4), "a.rotary_emb.inv_freq": drawn(4, 4),
        "optimizer.state.0.exp_avg": drawn(4, 4),
    }  # fmt: skip
    _, figures = forward(Subject(stored(tmp_path / "x.safetensors", **arrays)))
    assert [each.name for each in figures.matrices] == ["a.weight"]


def test_a_bar_for_a_model_that_did_not_run_is_not_passed(tmp_path: Path) -> None:
    subject = Subject(stored(tmp_path / "x.safetensors", a=drawn(4, 4)))
    result, _ = forward(subject, max_perplexity=20.0)
    (problem,) = result.problems
    assert problem.text.startswith("the limit of 20 for the perplexity could not be checked: ")


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e12])
def test_a_matrix_that_ruins_a_vector_is_named(bad: float, tmp_path: Path) -> None:
    ruined = drawn(30, 20)
    ruined[3, 4] = bad
    subject = Subject(stored(tmp_path / "x.safetensors", good=drawn(8, 8), ruined=ruined))
    result, _ = forward(subject)
    assert [problem.where for problem in result.problems] == ["ruined"]


def in_parts(subject: Subject) -> MatrixGain:
    """Return the figures of the one matrix of a model, a few rows of which run at a time."""
    figures = check_matrices(Request(subject=subject), at_once=7 * 64).figures
    assert isinstance(figures, ForwardFigures)
    (matrix,) = figures.matrices
    return matrix


def test_a_matrix_in_parts_is_the_same_matrix(tmp_path: Path) -> None:
    subject = Subject(stored(tmp_path / "x.safetensors", a=drawn(50, 64)))
    _, whole = forward(subject)
    parts = in_parts(subject)
    assert parts.gain == pytest.approx(whole.matrices[0].gain, rel=1e-6)
    assert parts.usual == pytest.approx(whole.matrices[0].usual, rel=1e-6)


def test_matrices_of_blocks_run_too(tmp_path: Path) -> None:
    plain, path = drawn(50, 64), tmp_path / "x.gguf"
    save(cast(Plan.copy(weights_of({"a": plain}), "gguf"), ENCODINGS["Q8_0"]), path)
    _, numbers = forward(Subject(stored(tmp_path / "x.safetensors", a=plain)))
    assert in_parts(Subject(path)).gain == pytest.approx(numbers.matrices[0].gain, rel=0.01)

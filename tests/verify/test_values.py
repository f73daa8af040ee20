"""Each tensor is compared with the reference, and all that differ too much are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import small_models
from arrays import stored
from verdicts import saved
from weightctl.cli import app
from weightctl.verify import Request, Subject
from weightctl.verify.checks.values import check
from weightctl.verify.figures import ValuesFigures

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.verify import Result

RANDOM = np.random.default_rng(8)
MATRIX = RANDOM.normal(0, 0.02, (64, 128)).astype(np.float32)


def against(one: Path, other: Path, **options: Any) -> Result:
    return check(Request(subject=Subject(one), reference=Subject(other), **options))


def compared(tmp_path: Path, own: dict[str, Any], other: dict[str, Any], **options: Any) -> Result:
    paths = [tmp_path / "own.safetensors", tmp_path / "other.safetensors"]
    for path, arrays in zip(paths, (own, other), strict=True):
        path.unlink(missing_ok=True)
        stored(path, **arrays)
    return against(*paths, **options)


def converted(source: Path, out: Path, *arguments: str) -> Path:
    assert not app(["convert", str(source), str(out), "-q", *arguments], standalone_mode=False)
    return out


@pytest.mark.parametrize(
    "kind", ["Q8_0", "Q6_K", "Q4_K", "Q4_0", "Q4_1", "Q2_K", "IQ4_XS", "MXFP4"]
)
def test_a_healthy_quantization_is_not_a_problem_either_way(
    tmp_path: Path, tiny_llama: Path, kind: str
) -> None:
    out = converted(tiny_llama, tmp_path / "out.gguf", "--quant", kind)
    for result in (against(out, tiny_llama), against(tiny_llama, out)):
        assert result.problems == ()
        assert isinstance(result.figures, ValuesFigures)
        worst = max(result.figures.tensors, key=lambda each: each.relative_rmse)
        assert worst.relative_rmse == pytest.approx(worst.expected, rel=0.3)


def test_two_quantizations_of_one_model_are_not_a_problem(tmp_path: Path, tiny_llama: Path) -> None:
    one = converted(tiny_llama, tmp_path / "one.gguf", "--quant", "Q4_K")
    other = converted(tiny_llama, tmp_path / "other.gguf", "--quant", "Q4_0")
    assert against(one, other).problems == ()
    assert against(other, one).problems == ()


def test_equal_checkpoints_have_no_error_at_all(tiny_llama: Path) -> None:
    result = against(tiny_llama, tiny_llama)
    assert result.problems == ()
    assert isinstance(result.figures, ValuesFigures)
    assert {each.relative_rmse for each in result.figures.tensors} == {0.0}


def test_an_error_ten_times_what_the_encoding_costs_is_a_problem(tmp_path: Path) -> None:
    noise = RANDOM.normal(0, 0.02 * 0.02, MATRIX.shape).astype(np.float32)
    result = compared(tmp_path, {"w": (MATRIX + noise).astype(np.float16)}, {"w": MATRIX})
    (problem,) = result.problems
    assert problem.where == "w"
    assert "of F16" in problem.text


def test_a_bar_of_ones_own_is_what_counts(tmp_path: Path) -> None:
    noise = RANDOM.normal(0, 0.02 * 0.02, MATRIX.shape).astype(np.float32)
    arrays = {"w": MATRIX + noise}, {"w": MATRIX}
    assert compared(tmp_path, *arrays, max_rmse=0.05).problems == ()
    (problem,) = compared(tmp_path, *arrays, max_rmse=0.01).problems
    assert "above 1 %" in problem.text


def test_tensors_of_one_side_alone_are_problems(tmp_path: Path) -> None:
    result = compared(tmp_path, {"w": MATRIX, "more": MATRIX}, {"w": MATRIX, "a.bias": MATRIX[0]})
    missing, more = result.problems
    assert (missing.where, more.where) == ("a.bias", "more")
    assert missing.cause is not None
    assert missing.cause.name == "bias_dropped"


def test_another_shape_is_a_problem(tmp_path: Path) -> None:
    (problem,) = compared(tmp_path, {"w": MATRIX.T.copy()}, {"w": MATRIX}).problems
    assert problem.text == "has shape [128, 64], and the reference [64, 128]"
    assert problem.cause is not None
    assert problem.cause.name == "transposed"


def test_whole_numbers_are_compared_by_their_bytes(tmp_path: Path) -> None:
    table = np.arange(10)
    assert compared(tmp_path, {"t": table}, {"t": table}).problems == ()
    (problem,) = compared(tmp_path, {"t": table}, {"t": table + 1}).problems
    assert problem.where == "t"


def test_whole_numbers_in_place_of_weights_are_a_problem(tmp_path: Path) -> None:
    (problem,) = compared(tmp_path, {"w": MATRIX.astype(np.int32)}, {"w": MATRIX}).problems
    assert problem.text == "has the encoding I32, and the reference F32"


def test_nan_where_the_reference_has_numbers_is_a_problem(tmp_path: Path) -> None:
    damaged = MATRIX.copy()
    damaged[7, 3:5] = np.nan
    (problem,) = compared(tmp_path, {"w": damaged}, {"w": MATRIX}).problems
    assert problem.text == (
        "2 values are NaN or infinite here but not in the reference, the first in row 7"
    )


def test_rows_are_counted_as_the_file_has_them(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"

    def ruin(arrays: Any) -> None:
        arrays[name][5, 7] = np.nan

    subjects: list[Subject] = []
    for directory, change in (("own", ruin), ("other", None)):
        (tmp_path / directory).mkdir()
        subjects.append(saved(tmp_path / directory, small_models.llama(), change=change))
    own, other = subjects
    result = check(Request(subject=own, reference=other))
    assert [(each.where, each.text) for each in result.problems] == [
        (name, "1 value is NaN here but not in the reference, in row 5")
    ]
    figures = result.figures
    assert isinstance(figures, ValuesFigures)
    assert [each.name for each in figures.tensors if np.isnan(each.cosine)] == [name]


def test_plain_numbers_of_one_encoding_should_be_equal(tmp_path: Path) -> None:
    own = MATRIX.astype(np.float16)
    other = (MATRIX * RANDOM.normal(1, 0.3, MATRIX.shape)).astype(np.float16)
    (problem,) = compared(tmp_path, {"w": own}, {"w": other}).problems
    assert problem.text.endswith("%, expected 0 because both are F16")


def test_a_lone_infinity_of_the_reference_is_said_to_be_there(tmp_path: Path) -> None:
    damaged = MATRIX.copy()
    damaged[7, 3] = -np.inf
    (problem,) = compared(tmp_path, {"w": MATRIX}, {"w": damaged}).problems
    assert problem.text == "1 value is infinite in the reference but not here, in row 7"


def test_checkpoints_that_share_no_name_are_not_said_to_be_fine(tmp_path: Path) -> None:
    assert compared(tmp_path, {"a": MATRIX}, {"b": MATRIX}).problems


def test_layers_that_are_not_there_are_reported(tiny_llama: Path) -> None:
    assert "the model has 3 layers" in against(tiny_llama, tiny_llama, layers=range(7, 9)).skipped


def test_only_the_layers_asked_for_are_looked_at(tiny_llama: Path) -> None:
    figures = against(tiny_llama, tiny_llama, layers=range(1, 2)).figures
    assert isinstance(figures, ValuesFigures)
    assert {each.layer for each in figures.tensors} == {1}


def test_thousands_of_bad_tensors_are_not_all_named(tmp_path: Path) -> None:
    random, noise = RANDOM.normal(0, 1, (2, 60, 8, 32)).astype(np.float32)
    noise *= np.logspace(-3, 0, 60, dtype=np.float32)[:, None, None]
    own = {f"h.{n}.w": each for n, each in enumerate(random)}
    other = {f"h.{n}.w": each for n, each in enumerate(random + noise)}
    problems = compared(tmp_path, own, other).problems
    assert len(problems) == 21
    assert problems[-1].text == "40 more tensors differ as much"


def test_progress_is_reported_up_to_the_end(tiny_llama: Path) -> None:
    reported: list[float] = []
    request = Request(
        subject=Subject(tiny_llama),
        reference=Subject(tiny_llama),
        progress=lambda _, done: reported.append(done),
    )
    check(request)
    assert reported == sorted(reported)
    assert reported[-1] == 1

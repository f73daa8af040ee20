"""`--compare` lists differences without judging them; two training steps are detected."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import each
from lazy import load_file, save_file, torch
from verdicts import Subject, report_on
from weightctl.cli import app
from weightctl.errors import ConversionError
from weightctl.verify import Request, verify_request
from weightctl.verify.figures import ValuesFigures
from weightctl.verify.report import make_document

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.verify import Report
COMPARING = ("metadata", "values", "forward")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    out = tmp_path_factory.mktemp("trained") / "step"
    shutil.copytree(tiny_llama, out)
    made = torch.Generator().manual_seed(3)
    tensors = {
        name: each + torch.randn(each.shape, generator=made) * each.std() * 0.02
        for name, each in load_file(out / "model.safetensors").items()
        for each in [each.float()]
    }
    save_file(tensors, out / "model.safetensors")
    return out


def compared(path: Path, reference: Path, *checks: str, **options: Any) -> Report:
    return report_on(path, reference, checks or COMPARING, compare=True, **options)


def test_two_training_steps_are_named_and_point_to_compare(trained: Path, tiny_llama: Path) -> None:
    report = report_on(trained, tiny_llama)
    (problem,) = report.problems
    assert problem.text.startswith(
        "A and B look like two training steps of one model, or a model and its fine-tune: 30 of "
        "30 tensors differ, relative RMSE "
    )
    assert problem.cause is not None
    assert problem.cause.name == "training_steps"
    assert any("`--compare`" in each for each in make_document(report)["next"])


def test_a_tensor_that_differs_by_far_more_is_still_a_problem(
    tmp_path: Path, trained: Path, tiny_llama: Path
) -> None:
    shutil.copytree(trained, tmp_path / "step")
    path = tmp_path / "step" / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = torch.randn(tensors[name].shape) * tensors[name].std()
    save_file(tensors, path)
    report = report_on(tmp_path / "step", tiny_llama, ("values",))
    assert [each.where for each in report.problems] == ["", name]


def test_a_quantization_is_not_a_training_step(tmp_path: Path, tiny_llama: Path) -> None:
    out = tmp_path / "tiny.gguf"
    assert not app(
        ["convert", str(tiny_llama), str(out), "-q", "--quant", "Q4_0"], standalone_mode=False
    )
    assert not report_on(out, tiny_llama, ("values",)).problems


def test_each_tensor_that_differs_is_listed_and_none_is_a_problem(
    trained: Path, tiny_llama: Path
) -> None:
    report = compared(trained, tiny_llama)
    assert not report.problems
    assert [*report.results] == ["metadata", "values", "forward"]
    values = report.results["values"]
    assert values.verdict == "30 differences"
    assert values.summary.startswith("30 of 30 tensors differ, relative RMSE ")
    figures = report.figures(ValuesFigures)
    assert figures is not None
    assert not any(each.is_problem for each in figures.tensors)
    errors = {each.name: each.relative_rmse for each in figures.tensors}
    listed = [errors[each.where] for each in values.differences]
    assert listed == sorted(errors.values(), reverse=True)
    (forward,) = report.results["forward"].differences
    assert "5 of 5 parts of the model differ" in forward.text


def test_equal_values_in_other_encodings_are_no_difference(
    tmp_path: Path, tiny_llama: Path
) -> None:
    out = tmp_path / "tiny.gguf"
    assert not app(
        ["convert", str(tiny_llama), str(out), "-q", "--dtype", "f32"], standalone_mode=False
    )
    report = compared(out, tiny_llama)
    assert not report.differences
    assert not report.problems


def test_what_a_quantization_costs_is_a_difference(tmp_path: Path, tiny_llama: Path) -> None:
    out = tmp_path / "tiny.gguf"
    assert not app(
        ["convert", str(tiny_llama), str(out), "-q", "--quant", "Q8_0"], standalone_mode=False
    )
    assert len(compared(out, tiny_llama, "values").differences) == 23


def test_missing_tensors_other_shapes_and_config_keys_are_differences(
    tmp_path: Path, tiny_llama: Path
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "other")
    path = tmp_path / "other" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:500].contiguous()
    save_file(tensors, path)
    config = tmp_path / "other" / "config.json"
    config.write_text(config.read_text().replace("10000.0", "20000.0"))
    report = compared(tmp_path / "other", tiny_llama, "metadata", "values")
    assert [each.where for each in report.differences] == [
        "rope_theta", "model.norm.weight", "lm_head.weight",
    ]  # fmt: skip
    assert not report.problems


def test_numbers_that_are_not_finite_are_an_infinite_difference(
    tmp_path: Path, tiny_llama: Path
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "other")
    path = tmp_path / "other" / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, path)
    (difference,) = compared(tmp_path / "other", tiny_llama, "values").differences
    assert difference.text.startswith("relative RMSE infinite")


@each(
    "options, message",
    [
        ({"reference": None}, "--compare needs a second checkpoint"),
        ({"max_rmse": 0.1}, "--compare and --max-rmse are both given"),
        ({"max_divergence": 0.1}, "--compare and --max-kld are both given"),
    ],
)
def test_what_does_not_go_with_compare_is_refused(
    tiny_llama: Path, options: dict[str, Any], message: str
) -> None:
    given = {"subject": Subject(tiny_llama), "reference": Subject(tiny_llama)} | options
    with pytest.raises(ConversionError, match=message):
        verify_request(Request(compare=True, **given))


def test_a_check_that_does_not_compare_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ConversionError, match="`finite` does not compare"):
        compared(tiny_llama, tiny_llama, "finite")


def test_the_exit_code_says_whether_there_are_differences(trained: Path, tiny_llama: Path) -> None:
    def call(path: Path) -> int:
        given = ["verify", str(path), "--against", str(tiny_llama), "--compare", "-q"]
        return app([*given, "--skip", "forward"], standalone_mode=False) or 0

    assert (call(tiny_llama), call(trained)) == (0, 1)

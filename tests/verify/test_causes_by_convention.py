"""Of a real family a mistake in a tensor is named in either convention, with what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest

import fault_files
from faults import of
from tensor_faults import MISTAKES, Mistake
from verdicts import explain, report_on

if TYPE_CHECKING:
    from pathlib import Path

    from healthy_models import Models
    from weightctl.verify import Report

MODEL = "tiny-llama"


def made(source: Path, out: Path, mistake: Mistake) -> tuple[Path, tuple[str, ...]]:
    files = fault_files.read(source)
    where = mistake.hurt(files)
    return files.write(out), where


def assert_caused(report: Report, where: tuple[str, ...], mistake: Mistake) -> None:
    """Fail where not exactly what was changed is named, each with its cause."""
    assert {problem.where for problem in report.problems} == {*where}, explain(report)
    for problem in report.problems:
        assert problem.cause is not None, explain(report)
        assert problem.cause.name == mistake.cause, explain(report)
        assert mistake.text in problem.cause.text


# What the mistake is made in, and what it is compared with; nothing is the directory in bf16.
SIDES = [("", ""), ("f32", ""), ("bf16", "Q4_K"), ("", "Q8_0")]


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize(("kind", "reference"), SIDES)
def test_a_mistake(name: str, kind: str, reference: str, healthy: Models, tmp_path: Path) -> None:
    source = healthy.gguf(MODEL, kind) if kind else healthy(MODEL)
    against = healthy.gguf(MODEL, reference) if reference else healthy(MODEL)
    path, where = made(source, tmp_path / ("a.gguf" if kind else "a"), MISTAKES[name])
    assert_caused(report_on(path, against, ["values"]), where, MISTAKES[name])


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_K"])
# NaN, of which swapped bytes make many, has no place in blocks.
@pytest.mark.parametrize("name", sorted(MISTAKES.keys() - {"bytes swapped"}))
def test_a_mistake_that_was_quantized(
    name: str, kind: str, healthy: Models, tmp_path: Path
) -> None:
    path, _ = made(healthy(MODEL), tmp_path / "a", MISTAKES[name])
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", kind)
    report = report_on(quantized, healthy(MODEL), ["values"])
    causes = {problem.cause and problem.cause.name for problem in report.problems}
    assert causes == {MISTAKES[name].cause}, explain(report)


READ_AS = [("bf16", np.float16), ("f16", ml_dtypes.bfloat16)]


@pytest.mark.parametrize(("kind", "stored"), READ_AS)
@pytest.mark.parametrize("is_widened", [False, True])
@pytest.mark.parametrize("reference", ["bf16", "Q8_0", "Q4_K"])
def test_bits_of_another_dtype(
    kind: str, stored: Any, is_widened: bool, reference: str, healthy: Models, tmp_path: Path
) -> None:
    module = of("mlp.down.weight")
    files = fault_files.read(healthy.gguf(MODEL, kind))
    right = fault_files.read(healthy.gguf(MODEL, "bf16")).numbers(module)
    misread = right.astype(stored).view(files.numbers(module).dtype)
    if is_widened:
        files = fault_files.read(healthy.gguf(MODEL, "f32"))
    where = files.put(module, misread)
    report = report_on(files.write(tmp_path / "a.gguf"), healthy.gguf(MODEL, reference), ["values"])
    names = {np.float16: "F16", ml_dtypes.bfloat16: "BF16"}
    text = f"those of {names[stored]} values, but were read as {kind.upper()}"
    assert_caused(report, (where,), Mistake(lambda _: (), "wrong_dtype", text))


def test_bits_of_another_dtype_are_named_after_they_were_quantized(
    healthy: Models, tmp_path: Path
) -> None:
    files = fault_files.read(healthy(MODEL))
    module = of("mlp.down.weight")
    files.put(module, files.numbers(module).view(np.float16))
    path = files.write(tmp_path / "a")
    quantized = healthy.converted(path, str(tmp_path / "a.gguf"), "--quant", "Q8_0")
    (problem,) = report_on(quantized, healthy(MODEL), ["values"]).problems
    assert problem.cause is not None
    assert problem.cause.name == "wrong_dtype"

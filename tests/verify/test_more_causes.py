"""Of a real family a mistake in a tensor is named in either convention, with what it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import fault_files
from tensor_faults import MISTAKES, Mistake, bits_as_bfloat16, bits_as_float16, changed
from faults import of
from verdicts import report_on, told

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
    assert {problem.where for problem in report.problems} == {*where}, told(report)
    for problem in report.problems:
        assert problem.cause is not None, told(report)
        assert problem.cause.name == mistake.cause, told(report)
        assert mistake.text in problem.cause.text


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.parametrize("kind", ["", "bf16", "f32"])
@pytest.mark.parametrize("reference", ["", "Q8_0"])
def test_a_mistake(name: str, kind: str, reference: str, healthy: Models, tmp_path: Path) -> None:
    source = healthy.gguf(MODEL, kind) if kind else healthy(MODEL)
    against = healthy.gguf(MODEL, reference) if reference else healthy(MODEL)
    path, where = made(source, tmp_path / ("a.gguf" if kind else "a"), MISTAKES[name])
    assert_caused(report_on(path, against, ["values"]), where, MISTAKES[name])

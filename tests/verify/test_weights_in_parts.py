"""Weights in several tensors that do not match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import small_models
from verdicts import saved
from weightctl.errors import ConversionError
from weightctl.verify import Request, Subject, verify

if TYPE_CHECKING:
    from pathlib import Path

_QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture
def misfit(tmp_path: Path) -> Subject:
    """A checkpoint of which nothing says how a weight is made of its parts."""

    def packed(arrays: small_models.Arrays) -> None:
        arrays[_QUERY] = arrays[_QUERY].astype(np.uint8)
        arrays[f"{_QUERY}_scale_inv"] = np.ones((1, 1), np.float32)

    (directory := tmp_path / "misfit").mkdir()
    return saved(directory, small_models.llama(num_hidden_layers=1), change=packed)


def test_parts_that_do_not_fit_are_one_problem(misfit: Subject) -> None:
    report = verify(Request(subject=misfit), ["structure", "finite", "names", "forward"])
    assert [problem.check for problem in report.problems] == ["finite"]
    assert f"{_QUERY}_scale_inv" in report.problems[0].text
    assert report.results["names"].skipped
    assert report.results["forward"].skipped
    assert not report.results["structure"].skipped


def test_a_reference_of_parts_that_do_not_fit_is_refused(misfit: Subject, tmp_path: Path) -> None:
    (directory := tmp_path / "whole").mkdir()
    subject = saved(directory, small_models.llama(num_hidden_layers=1))
    with pytest.raises(ConversionError, match="scale_inv"):
        verify(Request(subject=subject, reference=misfit), ["names"])

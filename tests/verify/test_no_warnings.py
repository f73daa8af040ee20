"""Values that cause arithmetic errors are found, without warnings of NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import small_models
from arrays import weights_of
from verdicts import saved
from weightctl.verify import Request, Subject, verify
from weightctl.weights.derived import DerivedTensor, tensor_of
from weightctl.weights.steps.numbers import Plus

if TYPE_CHECKING:
    from pathlib import Path

# Warnings are errors in tests. A NaN that signals trips over any arithmetic, a quiet one does not.
_SIGNALLING = 0x7F800001
_QUERY = "model.layers.0.self_attn.q_proj.weight"


def ruined(arrays: small_models.Arrays) -> None:
    arrays[_QUERY].view(np.uint32)[3, 5] = _SIGNALLING


@pytest.fixture
def models(tmp_path: Path) -> tuple[Subject, Subject]:
    model = small_models.llama(num_hidden_layers=1)
    for name in ("whole", "ruined"):
        (tmp_path / name).mkdir()
    return saved(tmp_path / "ruined", model, change=ruined), saved(tmp_path / "whole", model)


def test_a_signalling_nan_is_found_without_warnings(models: tuple[Subject, Subject]) -> None:
    report = verify(Request(subject=models[0]), ["finite"])
    assert [problem.where for problem in report.problems] == [_QUERY]


@pytest.mark.parametrize("is_reference", [False, True])
def test_a_signalling_nan_is_compared_without_warnings(
    is_reference: bool, models: tuple[Subject, Subject]
) -> None:
    subject, reference = reversed(models) if is_reference else models
    report = verify(Request(subject=subject, reference=reference), ["values"])
    assert [problem.where for problem in report.problems] == [_QUERY]


def test_numbers_that_float32_does_not_hold_are_found_without_warnings(tmp_path: Path) -> None:
    def widened(arrays: small_models.Arrays) -> None:
        arrays[_QUERY] = arrays[_QUERY].astype(np.float64) * 1e300

    subject = saved(tmp_path, small_models.llama(num_hidden_layers=1), change=widened)
    report = verify(Request(subject=subject), ["finite", "forward"])
    assert [problem.where for problem in report.problems][:1] == [_QUERY]


def test_a_number_is_added_to_a_signalling_nan_without_warnings() -> None:
    source = weights_of({"a": np.array([1, _SIGNALLING], np.uint32).view(np.float32)}).source
    made = DerivedTensor("a", Plus(1.0), [tensor_of(source, "a")])
    raw = bytearray(8)
    made.read_into(0, memoryview(raw))
    assert np.isnan(np.frombuffer(raw, np.float32)).tolist() == [False, True]

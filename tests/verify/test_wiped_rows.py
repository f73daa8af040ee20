"""Rows, and parts of rows, that are zeros are detected by their values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from arrays import stored
from weightctl import Plan, WeightData
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.verify import Request, Subject
from weightctl.verify.checks.values import check
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.verify import Problem

RANDOM = np.random.default_rng(3)
NAME, ROWS, WIDTH = "layers.1.down.weight", 64, 256
HEALTHY = RANDOM.normal(0, 0.02, (ROWS, WIDTH)).astype(np.float32)


def problem_of(tmp_path: Path, own: Any, reference: Any = HEALTHY, kind: str = "F32") -> Problem:
    """Return what is found where a tensor, in an encoding, stands for the reference."""
    data = WeightData.from_numpy(own, NAME)
    raw = transcode(own.view(np.uint8), ENCODINGS["F32"], ENCODINGS[kind]).raw
    info = data.info._replace(encoding=ENCODINGS[kind])
    held = WeightData.stored(info, memoryview(raw.tobytes()))
    save(Plan.copy(as_checkpoint({NAME: held}), "gguf"), tmp_path / "own.gguf")
    other = stored(tmp_path / "reference.safetensors", **{NAME: reference})
    request = Request(subject=Subject(tmp_path / "own.gguf"), reference=Subject(other))
    (problem,) = check(request).problems
    return problem


def wiped(*places: Any) -> Any:
    """Return the tensor with zeros in some places."""
    array = HEALTHY.copy()
    for place in places:
        array[place] = 0
    return array


def cause_of(problem: Problem) -> tuple[str, str]:
    return ("", "") if problem.cause is None else (problem.cause.name, problem.cause.text)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_K", "Q3_K", "Q2_K"])
@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([slice(3, 21)], "rows 3-20 are zeros"),
        ([slice(1, 2), slice(5, 10), slice(20, 21)], "rows 1, 5-9, 20 are zeros"),
        ([slice(0, 48)], "rows 0-47 are zeros"),
        ([slice(0, 64, 4)], "rows 0, 4, 8, 12, 16 and 11 more are zeros"),
    ],
)
def test_rows_of_zeros_are_told_by_their_numbers(
    tmp_path: Path, places: list[slice], message: str, kind: str
) -> None:
    name, text = cause_of(problem_of(tmp_path, wiped(*places), kind=kind))
    assert name == "rows_lost"
    assert text == f"{message}: never written, or erased"


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q6_K", "Q4_K", "Q3_K", "Q2_K"])
def test_one_row_of_zeros_is_named_in_the_coarsest_encoding(tmp_path: Path, kind: str) -> None:
    problem = problem_of(tmp_path, wiped(7), kind=kind)
    assert problem.where == NAME
    assert "in row 7 differ" in problem.text


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize(
    ("places", "message"),
    [
        ([(7, slice(64, 200))], "part of row 7 is zeros"),
        ([(slice(4, 7), slice(0, 64))], "parts of rows 4-6 are zeros"),
        ([(5, slice(40, 256)), slice(6, 9), (9, slice(0, 70))],
         "rows 6-8 and parts of rows 5, 9 are zeros"),
    ],
)  # fmt: skip
def test_rows_that_are_zeros_in_part_are_told_too(
    tmp_path: Path, places: list[Any], message: str, kind: str
) -> None:
    name, text = cause_of(problem_of(tmp_path, wiped(*places), kind=kind))
    assert name == "rows_lost"
    assert text == f"{message}: never written, or erased"


def test_of_a_large_tensor_all_rows_are_counted(tmp_path: Path) -> None:
    large = RANDOM.normal(0, 0.02, (3000, 512)).astype(np.float32)
    own = large.copy()
    own[1000:2900] = 0
    assert cause_of(problem_of(tmp_path, own, large))[1].startswith("rows 1000-2899 are zeros")


def test_rows_that_are_empty_in_the_reference_too_are_not_told(tmp_path: Path) -> None:
    reference = wiped(slice(10, 20))
    own = wiped(slice(10, 20), slice(30, 32))
    assert cause_of(problem_of(tmp_path, own, reference))[1].startswith("rows 30-31 are zeros")


@pytest.mark.parametrize("huge", [1.0, 1e12, 3e38])
def test_zeros_are_not_to_blame_where_more_is_wrong(tmp_path: Path, huge: float) -> None:
    own = wiped(slice(3, 6))
    own[40, 8] = huge
    assert cause_of(problem_of(tmp_path, own))[0] != "rows_lost"

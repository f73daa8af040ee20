"""`verify --against` names faults of every kind of block, and never by another cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from family_cases import make_checkpoint
from faults import KINDS
from once import once
from verdicts import explain, names, report_on
from weightctl import convert

if TYPE_CHECKING:
    from pathlib import Path

LEAST_FAULTS = 6
# One fault of each kind of block is in the usual run of the tests.
CASES = [
    pytest.param(kind, fault, marks=() if number == 0 else pytest.mark.long)
    for kind, (_, faults) in KINDS.items()
    for number, fault in enumerate(faults)
]


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_a_fault_of_a_block_is_named_by_its_own_cause_or_none(
    kind: str, fault: str, crossed: Path, tmp_path: Path
) -> None:
    case, faults = KINDS[kind]
    sound = make_checkpoint(case, crossed).path
    whole = once(
        sound.with_name("model.gguf"),
        lambda half: convert(sound, half, to="gguf", dtype="f32"),
    )
    files = faults.read(whole)
    where = faults[fault].hurt(files)
    report = report_on(files.write(tmp_path / "model.gguf"), sound)
    assert any(names(problem, where) for problem in report.problems), explain(report)
    causes = {problem.cause.name for problem in report.problems if problem.cause}
    expected = faults[fault].cause
    assert causes == ({expected} if expected else set()), explain(report)


def test_each_kind_of_block_has_six_faults_or_more() -> None:
    assert min(len(faults) for _, faults in KINDS.values()) >= LEAST_FAULTS

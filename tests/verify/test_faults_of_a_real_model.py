"""Every fault of a real model is named, without a reference if possible, else by comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import faults
from faults import APPLY, inject
from verdicts import assert_healthy, assert_named, explain, report_on

if TYPE_CHECKING:
    from pathlib import Path

    from crossing_fixtures import Models

pytestmark = pytest.mark.real

# The model that is healthy is at half of this with our own text.
MOST_SURPRISED = 30
RUINED = [
    "q and k permuted everywhere", pytest.param("layers exchanged", marks=pytest.mark.long)
]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("fault", APPLY["smollm2"])
def test_a_fault_is_named(fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("smollm2"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, healthy("smollm2")), injected)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["q permuted", "gate and up swapped", "rope theta"])
def test_a_fault_of_a_quantized_file_is_named(fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy.gguf("smollm2", "Q8_0"), tmp_path / "faulty.gguf", fault)
    assert_named(report_on(injected.path, healthy("smollm2")), injected)


@pytest.mark.long
@pytest.mark.parametrize("bit", faults.EXPONENT_BITS)
def test_an_exponent_bit_of_one_scale_is_named(bit: int, healthy: Models, tmp_path: Path) -> None:
    source = healthy.gguf("smollm2", "Q8_0")
    injected = faults.flip(source, tmp_path / "faulty.gguf", bit)
    assert_named(report_on(injected.path, healthy("smollm2"), ["finite", "values"]), injected)


@pytest.mark.long
@pytest.mark.parametrize("bit", [0, 9, 15])
def test_any_bit_of_one_scale_is_named_against_the_same_blocks(
    bit: int, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf("smollm2", "Q8_0")
    injected = faults.flip(source, tmp_path / "faulty.gguf", bit)
    assert_named(report_on(injected.path, source, ["values"]), injected, cause=False)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["zeroed", "row lost", "kv heads contradict"])
def test_a_fault_is_found_alone(fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("smollm2"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, checks=["finite", "names"]), injected)


@pytest.mark.long
def test_a_scale_that_is_nan_is_found_alone(healthy: Models, tmp_path: Path) -> None:
    source = healthy.gguf("smollm2", "Q8_0")
    injected = faults.make_nan(source, tmp_path / "faulty.gguf", "Q8_0")
    assert_named(report_on(injected.path, checks=["finite"]), injected)


@pytest.mark.parametrize("fault", RUINED)
def test_a_model_that_is_ruined_is_surprised(fault: str, smollm2: Path, tmp_path: Path) -> None:
    injected = inject(smollm2, tmp_path / "faulty.gguf", fault)
    report = report_on(injected.path, max_perplexity=MOST_SURPRISED)
    (problem,) = report.problems
    assert "perplexity" in problem.text, explain(report)


def test_the_healthy_model_is_not_surprised(smollm2: Path) -> None:
    assert_healthy(report_on(smollm2, max_perplexity=MOST_SURPRISED))

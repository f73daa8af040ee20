"""Compared with a healthy checkpoint, every fault is named: its tensor or key, and its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import faults
from crossing_fixtures import SMALL
from faults import APPLY, FAULTS, inject
from verdicts import assert_named, explain, names, report_on

if TYPE_CHECKING:
    from pathlib import Path

    from crossing_fixtures import Models
    from faults import Injected
    from weightctl.verify import Report

CASES = [(model, fault) for model in SMALL for fault in APPLY[model]]
# What is in the config, or tensors that are not there, a GGUF file says otherwise.
SAID_OTHERWISE = {
    "q and k permuted everywhere", "rope theta", "norm eps", "head count", "kv heads contradict",
    "bias dropped", "output forgotten",
}  # fmt: skip
NOT_IN_TENSORS = {fault for fault, each in FAULTS.items() if each.cause == "config"}
CANNOT_RUN = {"kv heads contradict", "bias dropped", "output forgotten"}
NOT_IN_THE_TEXT = {"row lost"}
ACROSS = ["q and k permuted everywhere", "gate and up swapped", "norm off by one", "rope theta"]


def assert_named_alone(report: Report, injected: Injected, fault: str) -> None:
    """Fail where it is not named, where the block is not found, and where another is blamed."""
    assert_named(report, injected)
    if fault not in CANNOT_RUN | NOT_IN_THE_TEXT:
        # A key of the config that `metadata` has named is not named again.
        first, *_ = (*report.results["forward"].problems, *report.results["metadata"].problems)
        assert names(first, (*injected.where, f"layers.{injected.layer}")), explain(report)
    if fault not in NOT_IN_TENSORS:
        for problem in report.results["values"].problems:
            assert names(problem, injected.where), explain(report)


@pytest.mark.parametrize(("model", "fault"), CASES)
def test_a_fault_is_named_and_nothing_else(
    model: str, fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy(model), tmp_path / "faulty", fault)
    assert_named_alone(report_on(injected.path, healthy(model)), injected, fault)


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        pytest.param(*case, marks=() if case[1] in SAID_OTHERWISE else pytest.mark.long)
        for case in CASES
    ],
)
def test_a_fault_of_a_gguf_file_is_named_against_the_directory(
    model: str, fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy.gguf(model), tmp_path / "faulty.gguf", fault)
    assert_named(report_on(injected.path, healthy(model)), injected)


@pytest.mark.parametrize("fault", ACROSS)
def test_a_fault_of_a_directory_is_named_against_a_gguf_file(
    fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, healthy.gguf("tiny-llama")), injected)


@pytest.mark.parametrize("fault", ACROSS)
def test_a_fault_is_named_against_a_quantized_file(
    fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path, healthy.gguf("tiny-llama", "Q4_K")), injected)


@pytest.mark.parametrize("bit", faults.EXPONENT_BITS)
@pytest.mark.parametrize("model", SMALL)
def test_an_exponent_bit_of_one_scale_is_named_against_the_numbers(
    model: str, bit: int, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf(model, "Q8_0")
    injected = faults.flip(source, tmp_path / "faulty.gguf", bit)
    report = report_on(injected.path, healthy(model), ["finite", "values"])
    assert_named(report, injected)


@pytest.mark.parametrize("bit", range(16))
def test_any_bit_of_one_scale_is_named_against_the_same_blocks(
    bit: int, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf("tiny-llama", "Q8_0")
    injected = faults.flip(source, tmp_path / "faulty.gguf", bit)
    assert_named(report_on(injected.path, source, ["values"]), injected, cause=False)

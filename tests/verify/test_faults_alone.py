"""Without a reference, faults are found that no healthy checkpoint has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import faults
from crossing_fixtures import SMALL
from faults import inject
from verdicts import assert_healthy, assert_named, explain, report_on

if TYPE_CHECKING:
    from pathlib import Path

    from crossing_fixtures import Models

# As tool's mistakes show in numbers, tensors and the config; and for which models.
FOUND = [
    *((model, fault) for model in SMALL for fault in ("zeroed", "row lost")),
    ("gpt2", "bias dropped"),
    ("bert", "bias dropped"),
    ("tiny-llama", "output forgotten"),
    ("tiny-llama", "kv heads contradict"),
]
# What was trained on such text is seldom as surprised as this.
MOST_SURPRISED = 30


def trained_on(tiny_llama: Path) -> str:
    return (tiny_llama / "held-out.txt").read_text()[:2000]


@pytest.mark.parametrize(("model", "fault"), FOUND)
def test_a_fault_is_found(model: str, fault: str, healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy(model), tmp_path / "faulty", fault)
    assert_named(report_on(injected.path), injected)


@pytest.mark.parametrize(
    ("model", "fault"), [case for case in FOUND if case[1] != "output forgotten"]
)
def test_a_fault_of_a_gguf_file_is_found(
    model: str, fault: str, healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy.gguf(model), tmp_path / "faulty.gguf", fault)
    assert_named(report_on(injected.path), injected)


@pytest.mark.parametrize("kind", faults.SCALE_AT)
@pytest.mark.parametrize("model", SMALL)
def test_a_scale_that_is_nan_is_found(
    model: str, kind: str, healthy: Models, tmp_path: Path
) -> None:
    source = healthy.gguf(model, kind)
    injected = faults.make_nan(source, tmp_path / "faulty.gguf", kind)
    assert_named(report_on(injected.path, checks=["finite"]), injected)


def test_a_row_that_is_lost_in_blocks_is_found(healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy.gguf("tiny-llama", "Q8_0"), tmp_path / "faulty.gguf", "row lost")
    assert_named(report_on(injected.path, checks=["finite"]), injected)


@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_a_healthy_model_is_not_surprised(form: str, healthy: Models, tiny_llama: Path) -> None:
    path = tiny_llama if form == "directory" else healthy.gguf("tiny-llama")
    assert_healthy(report_on(path, text=trained_on(tiny_llama), max_perplexity=MOST_SURPRISED))


@pytest.mark.parametrize("fault", ["q and k permuted everywhere", "layers exchanged"])
@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_a_model_that_is_ruined_is_surprised(
    form: str, fault: str, healthy: Models, tiny_llama: Path, tmp_path: Path
) -> None:
    source = tiny_llama if form == "directory" else healthy.gguf("tiny-llama")
    injected = inject(source, tmp_path / f"faulty{source.suffix}", fault)
    report = report_on(injected.path, text=trained_on(tiny_llama), max_perplexity=MOST_SURPRISED)
    (problem,) = report.problems
    assert "perplexity" in problem.text, explain(report)

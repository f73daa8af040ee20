"""No problem is found in a healthy checkpoint, whatever it was converted to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import families
from crossing_fixtures import CONVERSIONS, SMALL
from verdicts import assert_healthy, report_on
from weightctl.verify import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from crossing_fixtures import Models


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in {"bf16", "Q4_K"} else pytest.mark.long)
        for kind in CONVERSIONS
    ],
)
@pytest.mark.parametrize("model", SMALL)
def test_a_conversion_alone(model: str, kind: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy.gguf(model, kind)))


@pytest.mark.parametrize("kind", CONVERSIONS)
@pytest.mark.parametrize("model", SMALL)
def test_a_conversion_against_its_source(model: str, kind: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy.gguf(model, kind), healthy(model)))


@pytest.mark.parametrize("model", SMALL)
def test_a_source_against_a_conversion(model: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy(model), healthy.gguf(model, "Q4_K")))


@pytest.mark.parametrize("model", SMALL)
def test_a_conversion_against_another(model: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy.gguf(model, "Q4_0"), healthy.gguf(model, "Q6_K")))


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_in_both_forms(
    name: str, family: Callable[[str], families.Made], gguf: Callable[..., Path]
) -> None:
    assert_healthy(report_on(gguf(name), family(name).path))


@pytest.mark.long
@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_alone(name: str, family: Callable[[str], families.Made]) -> None:
    assert_healthy(report_on(family(name).path))


@pytest.mark.parametrize("form", ["directory", "gguf"])
def test_every_check_of_a_healthy_model(form: str, healthy: Models) -> None:
    path = healthy("tiny-llama") if form == "directory" else healthy.gguf("tiny-llama", "Q4_K")
    report = report_on(path, healthy("tiny-llama"), list(CHECKS))
    assert_healthy(report)
    assert list(report.results) == list(CHECKS)


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("kind", CONVERSIONS)
def test_a_real_model(kind: str, healthy: Models) -> None:
    assert_healthy(report_on(healthy.gguf("smollm2", kind), healthy("smollm2"), max_perplexity=30))


@pytest.mark.long
@pytest.mark.real
@pytest.mark.parametrize("kind", CONVERSIONS)
def test_a_real_encoder(kind: str, healthy: Models, minilm: Path) -> None:
    made = healthy.converted(minilm, f"minilm-healthy-{kind}.gguf", *CONVERSIONS[kind])
    assert_healthy(report_on(made, minilm))

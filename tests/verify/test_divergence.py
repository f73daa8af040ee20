"""A model runs beside its reference: the first block that differs, and the tensor in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from faults import inject
from verdicts import report_on
from weightctl.verify.checks.forward.walk import Share, is_beyond, measure_share
from weightctl.verify.figures import ForwardFigures

if TYPE_CHECKING:
    from pathlib import Path

    from crossing_fixtures import Models
    from weightctl.verify import Report

TOKENS = tuple(range(5, 69))


def _compared(path: Path, reference: Path, **more: Any) -> Report:
    return report_on(path, reference, ["forward"], **({"tokens": TOKENS} | more))


def _figures(report: Report) -> ForwardFigures:
    found = report.figures(ForwardFigures)
    assert found is not None
    return found


def test_every_part_costs_what_its_encoding_does(healthy: Models) -> None:
    report = _compared(healthy.gguf("tiny-llama", "Q4_0"), healthy("tiny-llama"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert not report.problems
    assert [each.divergence for each in divergence.layers] == pytest.approx(
        [each.expected for each in divergence.layers], rel=0.05
    )


def test_a_model_is_what_it_is_in_the_other_convention(healthy: Models) -> None:
    report = _compared(healthy.gguf("tiny-llama", "f32"), healthy("tiny-llama"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert divergence.top_1 == 1
    assert divergence.mean is not None
    assert divergence.mean < 1e-9


def test_one_block_alone_is_blamed_for_a_fault_that_all_later_ones_feel(
    healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "zeroed")
    report = _compared(injected.path, healthy("tiny-llama"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert [each.name for each in divergence.layers if each.is_problem] == ["layers.1"]
    assert [each.where for each in report.problems] == list(injected.where)


def test_a_whole_block_is_one_problem(healthy: Models, tmp_path: Path) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "layers exchanged")
    report = _compared(injected.path, healthy("tiny-llama"))
    assert [each.where for each in report.problems] == ["layers.0", "layers.1"]
    assert {each.cause and each.cause.name for each in report.problems} == {"layers_exchanged"}


def test_a_key_of_the_config_is_to_blame_for_the_blocks_that_it_changes(
    healthy: Models, tmp_path: Path
) -> None:
    injected = inject(healthy("tiny-llama"), tmp_path / "faulty", "rope theta")
    report = _compared(injected.path, healthy("tiny-llama"))
    assert [each.where for each in report.problems] == ["rope_theta", "layers.0"]
    assert len({each.cause for each in report.problems}) == 1


def test_a_divergence_above_the_bar_is_a_problem(healthy: Models) -> None:
    report = _compared(
        healthy.gguf("tiny-llama", "Q4_0"), healthy("tiny-llama"), max_divergence=1e-4
    )
    (problem,) = report.problems
    assert "above 0.0001" in problem.text


def test_only_the_layers_that_were_asked_for_are_looked_at(healthy: Models) -> None:
    report = _compared(healthy.gguf("tiny-llama", "Q8_0"), healthy("tiny-llama"), layers=range(2))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert [each.name for each in divergence.layers] == ["layers.0", "layers.1"]
    assert divergence.mean is None


def test_encoders_are_compared_by_their_states(healthy: Models) -> None:
    report = _compared(healthy.gguf("bert", "f16"), healthy("bert"))
    divergence = _figures(report).divergence
    assert divergence is not None
    assert divergence.mean is None
    assert divergence.cosine == pytest.approx(1, abs=1e-5)


def test_one_position_with_huge_numbers_does_not_hide_the_others() -> None:
    wanted = np.ones((100, 8), np.float32)
    wanted[0] *= 1e4
    found = wanted * np.float32(1.1)
    found[0] = wanted[0]
    assert measure_share(found, wanted, wanted).all == pytest.approx(0.1, rel=0.02)


def test_what_is_not_finite_is_beyond_all_that_is_expected() -> None:
    wanted = np.ones((2, 8), np.float32)
    assert is_beyond(measure_share(wanted * np.inf, wanted, wanted), Share(1.0, 1.0))

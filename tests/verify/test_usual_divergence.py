"""Where no part of a model diverges by more than is usual a page says so, and draws nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pages import pictures, section, text_of
from reports import against, faulty, report
from weightctl.verify.figures import Divergence, LayerDivergence
from weightctl.verify.report.html import render_page
from weightctl.verify.results import Result

CHART = "Difference of each part of the model from the reference"


def _page(*layers: LayerDivergence) -> str:
    figures = replace(against(2), divergence=Divergence(layers=layers))
    return render_page(report(forward=Result(figures=figures)))


def _part(number: int, divergence: float, expected: float = 0.08) -> LayerDivergence:
    return LayerDivergence(name=f"layers.{number}", divergence=divergence, expected=expected)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (
            (_part(0, 0.07), _part(1, 0.09), _part(2, 0.05)),
            "than expected. The largest difference is in layers.1, 9 %, expected 8 %.",
        ),
        (
            (_part(0, 1e-6, 0), _part(1, 0, 0)),
            "by more than expected. The largest difference is in layers.0",
        ),
        ((_part(0, 0, 0), _part(1, 0)), "The output of every part equals that of the reference."),
    ],
)
def test_a_sentence_stands_where_nothing_is_beyond_usual(
    layers: tuple[LayerDivergence, ...], message: str
) -> None:
    drawn = _page(*layers)
    assert CHART not in pictures(drawn)
    assert message in text_of(section(drawn, "Layers"))


def test_one_part_beyond_usual_is_shown_among_the_others() -> None:
    assert CHART in pictures(render_page(faulty()))
    drawn = _page(_part(0, 0.07), replace(_part(1, 1.7), is_problem=True))
    assert CHART in pictures(drawn)
    assert "No part is further" not in text_of(section(drawn, "Layers"))

"""The pictures of a report: what they show, and the sentences that replace them."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import TYPE_CHECKING
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import (
    MADE,
    against,
    encoder,
    experts,
    faulty,
    norm,
    of_class,
    page_of,
    pictures,
    report,
    section,
    tensor,
    text_of,
    unknown_family,
)
from weightctl.page.markup import make_axis
from weightctl.verify.figures import Divergence, LayerDivergence
from weightctl.verify.ranking import sort_worst_first
from weightctl.verify.report.charts import draw_histogram
from weightctl.verify.report.heat_map import draw_errors, make_grid
from weightctl.verify.report.html import render_page
from weightctl.verify.results import Result

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


ERRORS = "Relative RMSE of each tensor, by layer and part"
EXCESSES = "Error of each tensor as a multiple of the expected error, by layer and part"
ACTIVATIONS = "Root mean square and largest value of the output of each part of the model"
DIVERGENCES = "Difference of each part of the model from the reference"
HISTOGRAM = "Histogram of the KL divergence of each position"


def cells(picture: Element) -> dict[str, str]:
    """Return the classes of a heat map's cells by the name of the tensor that is shown."""
    kinds = {text_of(rect).split("\n")[0]: rect.get("class", "") for rect in picture.iter("rect")}
    return {name: kind for name, kind in kinds.items() if name}


def test_a_comparison_has_all_five_pictures_and_a_model_alone_one() -> None:
    usual = {ERRORS, EXCESSES, ACTIVATIONS, HISTOGRAM}
    assert set(pictures(render_page(faulty()))) == usual | {DIVERGENCES}
    assert set(pictures(render_page(report()))) == usual
    assert set(pictures(render_page(report(reference=None)))) == {ACTIVATIONS}
    assert set(pictures(render_page(encoder()))) == usual - {HISTOGRAM}
    assert not pictures(render_page(unknown_family()))


def test_a_heat_map_has_a_cell_for_each_tensor_and_shows_the_faulty_ones() -> None:
    drawn = pictures(render_page(faulty()))
    for title in (ERRORS, EXCESSES):
        shown = cells(drawn[title])
        assert len(shown) == 30 * 9 + 2
        assert {name.split(",")[0] for name, kind in shown.items() if "bad" in kind} == {
            "blk.7.attention_q.weight", "blk.7.attention_k.weight", "blk.20.mlp_down.weight",
        }  # fmt: skip
        assert len(of_class(drawn[title], "cross")) == 3


def test_what_is_equal_has_a_color_of_its_own() -> None:
    shown = cells(pictures(render_page(report()))[ERRORS])
    assert shown["output_norm.weight"] == "same"
    assert shown["blk.3.attention_norm.weight, layer 3"] == "same"
    assert shown["blk.3.attention_q.weight, layer 3"].startswith("h")


def test_a_greater_error_has_a_darker_color() -> None:
    errors = [tensor(f"w{n}", n, "x", error) for n, error in enumerate((0.001, 0.01, 0.1, 1.0))]
    picture = fromstring(draw_errors(make_grid(errors)))
    (svg,) = picture.iter("svg")
    levels = [int(kind[1:]) for kind in cells(svg).values()]
    assert levels == sorted(levels)
    assert len(set(levels)) == 4


def test_of_the_experts_of_a_layer_the_worst_is_shown() -> None:
    shown = cells(pictures(render_page(experts()))[EXCESSES])
    assert len(shown) == 6 * 3
    assert shown[
        "layers.3.mlp.experts.77.up.weight (the largest of 100 tensors), layer 3"
    ].endswith("bad")


def test_where_no_family_is_known_the_first_number_in_a_name_is_the_layer() -> None:
    errors = [
        tensor(f"encoder.{layer}.block.{block}.conv.weight", None,
               f"encoder.{layer}.block.{block}.conv.weight")
        for layer in (0, 1, 12) for block in (0, 1)
    ]  # fmt: skip
    found = make_grid([*errors, norm("stem.weight", None, "stem.weight")])
    labels = [text_of(label) for label in fromstring(draw_errors(found)).iter("text")]
    assert labels[:6] == ["encoder.*.block.*.conv", "stem", "\u2013", "0", "1", "12"]


def test_a_grid_keeps_the_worst_where_there_is_no_room_for_all() -> None:
    errors = [tensor(f"w.{n}", n, "w") for n in range(999)]
    errors[777] = replace(errors[777], is_problem=True)
    found = make_grid(errors)
    layers = {layer for _, layer in found.cells}
    assert len(layers) == 300
    assert 777 in layers
    assert found.left_out == 699


def test_no_error_is_too_large_or_too_little_a_number_to_be_ranked() -> None:
    wanted = [nan, inf, 1e300, 1.0, 5e-324, 0.0]
    errors = [tensor(f"w{n}", 0, "w", error) for n, error in enumerate(reversed(wanted))]
    ranked = [error.relative_rmse for error in sort_worst_first(errors)]
    assert set(map(str, ranked[:2])) == {"nan", "inf"}
    assert ranked[2:] == wanted[2:]


def test_a_deep_model_fits_the_page() -> None:
    for svg in pictures(page_of("deep")).values():
        _, _, width, height = map(float, svg.get("viewBox", "").split())
        assert width <= 970
        assert height <= 400


@pytest.mark.parametrize("name", MADE)
def test_nothing_is_drawn_outside_a_picture(name: str) -> None:
    for svg in pictures(page_of(name)).values():
        _, _, width, height = map(float, svg.get("viewBox", "").split())
        for shape in svg.iter():
            for key, most in {"x": width, "cx": width, "x2": width}.items():
                assert 0 <= float(shape.get(key, "0")) <= most
            for key in ("y", "cy", "y1", "y2"):
                assert 0 <= float(shape.get(key, "0")) <= height


def test_parts_that_diverge_too_far_and_those_with_nan_are_marked() -> None:
    drawn = pictures(render_page(faulty()))
    for title, reported in (
        (DIVERGENCES, "layers.7: 170 %, expected 8 %"),
        (
            ACTIVATIONS,
            "layers.24: root mean square 41, largest value 43, 31 values NaN or infinite",
        ),
    ):
        marked = [each for each in of_class(drawn[title], "bad") if each.tag == "circle"]
        assert len(marked) == 1
        assert reported in text_of(drawn[title])


def test_a_histogram_has_a_bar_for_each_bound_that_a_position_is_below() -> None:
    histogram = ((0.01, 0), (0.1, 0), (1.0, 30), (10.0, 10), (100.0, 0), (inf, 0))
    picture = fromstring(
        draw_histogram(Divergence(layers=(), mean=0.5, percentile_99=5.0, histogram=histogram))
    )
    bars = {text_of(bar): float(bar.get("height", "")) for bar in picture.iter("rect")}
    assert list(bars) == [
        "0 positions below 0.1 nats", "30 positions below 1 nats", "10 positions below 10 nats",
        "0 positions below 100 nats",
    ]  # fmt: skip
    none, thirty, ten, _ = bars.values()
    assert none == 0
    assert thirty == pytest.approx(3 * ten, rel=1e-3)
    assert {"mean", "99th percentile", "75 %"} <= {
        text_of(each) for each in of_class(picture, "tick")
    }


@given(st.lists(st.floats(), max_size=6), st.floats(), st.sampled_from([0.3, 1.0, 3.0]))
def test_an_axis_has_every_number_between_its_ends(
    values: list[float], value: float, decades: float
) -> None:
    found = make_axis(values, 200.0, 20.0, decades)
    assert found.high - found.low >= decades - 1e-6
    assert 20 <= found.at(value) <= 200
    assert all(20 - 1e-6 <= found.at(tick) <= 200 + 1e-6 for tick in found.ticks())
    assert len(found.ticks()) <= 12


@given(st.floats(1e-25, 1e25), st.floats(1e-25, 1e25))
def test_on_an_axis_the_greater_is_higher(one: float, other: float) -> None:
    found = make_axis([one, other], 200.0, 20.0)
    less, more = sorted([one, other])
    assert found.at(less) >= found.at(more)


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

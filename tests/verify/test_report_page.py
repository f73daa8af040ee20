"""HTML reports: what is on the page, and that file content cannot change its structure."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import os
import re
import threading
from base64 import b64encode
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import faults
from doc_tables import SCHEMA, update_schema
from each import each
from reports import (
    HOSTILE,
    MADE,
    Rendered,
    against,
    encoder,
    experts,
    faulty,
    hostile,
    nonfinite,
    norm,
    of_class,
    page_of,
    parsed,
    pictures,
    report,
    section,
    tensor,
    text_of,
    unknown_family,
)
from weightctl.errors import OutputError
from weightctl.system.registry import load
from weightctl.text.page.markup import make_axis, read_asset
from weightctl.verify import CHECKS, Check, Explanation, Problem, Report, Request, Result, Subject
from weightctl.verify import verify_request as run_checks
from weightctl.verify.compare.causes import CAUSES, Cause
from weightctl.verify.figures import (
    Activation,
    Divergence,
    Figures,
    ForwardFigures,
    LayerDivergence,
    NextToken,
    ValuesFigures,
    sort_worst_first,
)
from weightctl.verify.report import REPORTS, check_targets, list_remedies, make_document, write
from weightctl.verify.report import render_json as as_json
from weightctl.verify.report.charts import draw_errors, draw_histogram, make_grid
from weightctl.verify.report.html import render_page
from weightctl.verify.report.markdown import render_page as as_markdown

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from crossing_fixtures import Models
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing


OURS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "footer", "div",
    "span", "p", "h1", "h2", "h3", "b", "br", "code", "ul", "li", "table", "thead", "tbody", "tr",
    "th", "td", "figure", "figcaption", "svg", "g", "rect", "line", "path", "circle", "text",
    "script",
}  # fmt: skip


@each("name", MADE)
def test_a_page_is_well_formed_loads_nothing_and_runs_its_own_script_only(name: str) -> None:
    root = parsed(page_of(name))
    tags = {element.tag for element in root.iter()}
    assert not tags & {"link", "img", "iframe", "object", "base", "form", "image", "use"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on") or name.endswith("href")}
    assert not attributes & {"src", "srcset", "action", "data", "background"}
    style = next(text_of(each) for each in root.iter("style"))
    assert "url(" not in style
    assert "@import" not in style
    (script,) = (each.text or "" for each in root.iter("script"))
    assert script == read_asset("table.js")
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert policy in {meta.get("content") for meta in root.iter("meta")}


def test_a_page_says_at_its_head_what_came_of_it() -> None:
    root = parsed(render_page(faulty()))
    assert root.findtext("head/title") == "SmolLM2-135M-Q4_K_M.gguf: 5 problems in 3 of 5 checks"
    (verdict,) = of_class(root, "verdict")
    assert verdict.text == "5 problems in 3 of 5 checks"
    assert "bad" in verdict.get("class", "")


def test_both_checkpoints_have_the_names_that_sentences_use() -> None:
    text = text_of(parsed(render_page(faulty())).find("body/main/header"))
    assert "A: SmolLM2-135M-Q4_K_M.gguf" in text
    assert "B: " in text


def test_a_healthy_model_has_no_section_of_problems() -> None:
    root = parsed(render_page(report()))
    assert [each.text for each in of_class(root, "verdict")] == ["No problems found in 5 checks"]
    assert "Problems" not in [each.text for each in root.iter("h2")]
    assert not of_class(root, "problems")


def test_every_problem_is_on_the_page_with_its_likely_cause() -> None:
    reported = text_of(section(render_page(faulty()), "Problems"))
    for problem in faulty().problems:
        assert f"{problem.where}: {problem.text} ({problem.check})" in reported
    assert reported.count("(rope_rows)") == 3


def test_of_many_problems_the_later_ones_can_be_unfolded() -> None:
    many = tuple(Problem(check="names", where=f"w.{n}", text="is missing") for n in range(100))
    found = section(render_page(report(names=Result(problems=many))), "Problems")
    assert len(list(found.iter("li"))) == 100
    assert found.findtext("div/details/summary") == "60 more problems"


def test_where_a_problem_is_stands_there_once() -> None:
    twice = Problem(check="structure", where="a.gguf", text="a.gguf, byte 12: ends too soon")
    reported = text_of(
        section(render_page(report(structure=Result(problems=(twice,)))), "Problems")
    )
    assert reported.endswith("a.gguf: byte 12: ends too soon (structure)")


def test_the_lines_of_a_text_are_lines_and_what_stands_between_backticks_is_code() -> None:
    reported = Problem(check="names", where="", text="no `x.w`\n  hint: convert it")
    found = section(render_page(report(names=Result(problems=(reported,)))), "Problems")
    assert [each.text for each in found.iter("code")] == ["x.w"]
    assert len(list(found.iter("br"))) == 1


def test_each_check_says_what_it_looked_at_or_why_it_did_not_run() -> None:
    rows = [text_of(row) for row in parsed(page_of("unknown_family")).iter("tr")]
    assert rows[1].startswith("structure✓ ok")
    assert "the library gguf can read it; safetensors: does not read this format" in rows[1]
    assert "skippedthe tensors are those" in rows[3]
    assert "of no family that weightctl knows" in rows[3]
    assert "40 matrices, each on a random unit vector, on cpu" in rows[4]


def test_the_worst_tensors_come_first() -> None:
    found = section(page_of("experts"), "Values compared with the reference")
    names = [text_of(row) for row in found.iter("tr")]
    assert names[1].startswith("layers.3.mlp.experts.77.up.weight")
    assert text_of(found).count("800 more are in the JSON report.") == 1


def test_of_a_damaged_file_the_page_has_what_is_known() -> None:
    root = parsed(page_of("empty"))
    assert [each.text for each in root.iter("h2")] == ["Problems"]


def test_activations_of_which_none_is_finite_have_no_chart() -> None:
    parts = (Activation(name="layers.0", rms=0.0, greatest=0.0, nonfinite=4),)
    root = parsed(render_page(report(forward=Result(figures=ForwardFigures(activations=parts)))))
    assert "No part has an output that is finite and not 0." in text_of(root)
    assert "Activations" not in [each.text for each in root.iter("h3")]


def test_what_a_file_says_is_text_on_the_page() -> None:
    reported = text_of(parsed(page_of("hostile")))
    assert "<script>alert(1)</script>" in reported
    assert '"><img src=x onerror=alert(1)>' in reported
    assert "\\u202eright to left\\x1b[31m" in reported
    assert not re.search("[\u202e\x1b\udcff]", reported)


@given(st.text(max_size=12), st.text("`<>&'\"\n|\\ a]\u202e-", max_size=12))
def test_no_name_or_text_breaks_a_page(name: str, text: str) -> None:
    problem = Problem(check=name, where=name, text=text, cause=Explanation(name, text))
    made = replace(
        report(
            layers=1,
            structure=Result(problems=(problem,), notes=(name, text), skipped=text),
            values=Result(figures=ValuesFigures(tensors=(tensor(name, None, name),), pairing=text)),
            forward=Result(
                figures=ForwardFigures(
                    source=text, next_tokens=(NextToken(token=1, text=name, probability=0.5),)
                )
            ),
        ),
        path=name,
        reference=name,
        description=text,
    )
    root = parsed(render_page(made))
    assert {element.tag for element in root.iter()} <= OURS
    assert len([*root.iter("script")]) == 1
    if name.isprintable() and name.strip():
        assert text_of(root).count(name) >= 3


# The pictures of a report: what they show, and the sentences that replace them.


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


def test_the_ends_of_a_deep_model_and_every_tenth_layer_are_labeled() -> None:
    labels = [text_of(each) for each in pictures(page_of("deep"))[ACTIVATIONS].iter("text")]
    assert {"embedding", "output", *map(str, range(10, 120, 10))} <= {*labels}


@each("name", MADE)
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


@each(
    "layers, message",
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


# Markdown reports, as a renderer shows them.


IN_MARKDOWN = {
    "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li", "em",
    "strong", "br",
}  # fmt: skip


@each("name", MADE)
def test_a_page_has_tags_of_ours_only(name: str) -> None:
    rendered = Rendered(as_markdown(MADE[name]()))
    assert rendered.tags <= IN_MARKDOWN
    assert set(rendered.tables()) <= {2, 3, 4, 5, 8}


def test_problems_causes_and_the_worst_tensors_are_reported() -> None:
    rendered = Rendered(as_markdown(faulty()))
    assert "SmolLM2-135M-Q4_K_M.gguf: 5 problems in 3 of 5 checks" in rendered.text
    assert "blk.7.attn_q.weight: the relative RMSE is 1.39" in rendered.text
    assert "Likely cause: its rows are in the order" in rendered.text
    worst = rendered.rows.index(
        [
            "Tensor",
            "Encoding",
            "Relative RMSE",
            "Expected",
            "Times expected",
            "Worst group",
            "Cosine",
            "",
        ]
    )
    assert rendered.rows[worst + 1][0] == "blk.7.attention_q.weight"
    assert rendered.rows[worst + 1][-1] == "problem"


def test_markdown_has_the_names_of_both_checkpoints() -> None:
    text = Rendered(as_markdown(faulty())).text
    assert "A: SmolLM2-135M-Q4_K_M.gguf" in text
    assert "B: " in text
    assert "A: " not in Rendered(as_markdown(replace(faulty(), reference=None))).text


def test_what_to_do_next_is_reported_beside_a_hint() -> None:
    hinted = Problem(check="structure", where="a", text="is cut off", hint="fetch it again")
    text = Rendered(as_markdown(report(structure=Result(problems=(hinted,))))).text
    assert "Hint: fetch it again" in text
    assert "What to do next" not in text
    assert "convert the original model again" in Rendered(as_markdown(faulty())).text


def test_activations_of_which_none_is_finite_have_no_range() -> None:
    parts = (Activation(name="layers.0", rms=math.nan, greatest=0.0, nonfinite=4),)
    text = Rendered(
        as_markdown(report(forward=Result(figures=ForwardFigures(activations=parts))))
    ).text
    assert "No part has an output that is finite and not 0." in text


def test_divergences_are_reported_the_worst_first() -> None:
    rendered = Rendered(as_markdown(faulty()))
    title = rendered.rows.index(["Part", "Divergence", "Expected", "Times expected", ""])
    assert rendered.rows[title + 1][0] == "layers.7"


def test_what_a_file_says_is_text() -> None:
    rendered = Rendered(as_markdown(hostile()))
    names = {row[0] for row in rendered.rows}
    assert {"<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'} <= names
    assert HOSTILE[1] in names


def test_a_note_that_looks_like_a_list_is_a_sentence() -> None:
    text = Rendered(as_markdown(report(names=Result(notes=("- a", "1. b", "# c", "---"))))).text
    assert all(note in text for note in ("- a", "1. b", "# c", "---"))


@given(
    st.text("`|\\<>_*[]()#!&-+=~$@\n a1.:", min_size=1, max_size=14),
    st.text("`|\\<>_*[]()#!&-+=~$@\n a1.:", max_size=14),
)
def test_no_name_or_text_becomes_markup(name: str, text: str) -> None:
    problem = Problem(check="names", where=name, text=text, cause=Explanation("config", text))
    rendered = Rendered(
        as_markdown(
            report(
                layers=1,
                names=Result(problems=(problem,), notes=(text,), skipped=text),
                values=Result(figures=ValuesFigures(tensors=(tensor(name, 0, "x"),))),
            )
        )
    )
    assert rendered.tags <= IN_MARKDOWN
    assert set(rendered.tables()) <= {2, 3, 4, 5, 8}
    shown = rendered.rows[-1][0]
    assert shown.replace("\\n", "\n").strip(' "') == name.strip(' "') or "\\" in name


# JSON reports have all findings, whatever the numbers are.


def read(text: str) -> Any:
    def refuse(word: str) -> float:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


@each("name", MADE)
def test_a_report_is_json_that_every_reader_takes(name: str) -> None:
    made = MADE[name]()
    assert read(as_json(made)) == make_document(made)


def test_every_problem_is_reported_with_its_cause() -> None:
    document = make_document(faulty())
    assert not document["ok"]
    assert [problem["where"] for problem in document["problems"]] == [
        "blk.24.attn_v.weight", "blk.7.attn_q.weight", "blk.7.attn_k.weight",
        "blk.20.mlp_down.weight", "layers.7",
    ]  # fmt: skip
    assert document["problems"][1]["cause"]["name"] == "rope_rows"
    assert document["problems"][3]["cause"] is None
    assert document["checks"]["values"]["problems"] == 3


def test_what_to_do_next_is_reported_and_the_hint_of_an_error_beside_its_text() -> None:
    document = make_document(faulty())
    assert [re.split("[:,]", advice)[0] for advice in document["next"]] == [
        "values are lost",
        "convert the original model again",
        "download the file again",
    ]  # fmt: skip
    assert make_document(report())["next"] == []
    hinted = Problem(check="structure", where="a", text="is cut off", hint="fetch it again")
    (problem,) = make_document(report(structure=Result(problems=(hinted,))))["problems"]
    assert (problem["text"], problem["hint"]) == ("is cut off", "fetch it again")


def test_the_checks_are_in_the_order_in_which_they_ran() -> None:
    assert list(make_document(report())["checks"]) == [
        "structure", "finite", "names", "values", "forward"
    ]  # fmt: skip


def test_a_check_that_did_not_run_says_why() -> None:
    document = make_document(MADE["unknown_family"]())["checks"]["names"]
    assert not document["ran"]
    assert "no family" in document["skipped"]
    assert document["figures"] is None


def test_what_was_measured_has_the_names_of_the_figures() -> None:
    checks = make_document(report())["checks"]
    figures = checks["forward"]["figures"]
    assert figures["perplexity"] == 18.37
    assert figures["activations"][0]["name"] == "embedding"
    assert figures["divergence"]["histogram"][-1] == {"below": 10.0, "positions": 1}
    assert checks["structure"]["figures"]["readers"]["gguf"] is None
    assert checks["values"]["figures"]["tensors"][0]["shape"] == [576, 576]


def test_infinities_and_nan_are_told_apart() -> None:
    checks = make_document(nonfinite())["checks"]
    assert checks["forward"]["figures"]["perplexity"] == "nan"
    errors = checks["values"]["figures"]["tensors"]
    assert {error["relative_rmse"] for error in errors} == {
        "nan", "inf", "-inf", 0.0, 5e-324, 1.7e308
    }  # fmt: skip


def test_what_an_encoder_has_not_is_null() -> None:
    figures = make_document(encoder())["checks"]["forward"]["figures"]
    assert figures["perplexity"] is None
    assert figures["divergence"]["mean"] is None
    assert figures["divergence"]["cosine"] == 0.99871


def test_names_are_kept_as_they_are() -> None:
    wanted = [problem.where for problem in hostile().problems]
    assert [problem["where"] for problem in read(as_json(hostile()))["problems"]] == wanted


def test_no_tensor_is_left_out() -> None:
    assert len(make_document(experts())["checks"]["values"]["figures"]["tensors"]) == 6 * 100 * 3


# Report files: refused before the work begins, and complete or absent.


@each("suffix", REPORTS)
def test_the_suffix_says_what_a_report_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix.upper()}"
    write([str(path)], faulty())
    begins = {".html": b"<!DOCTYPE html>", ".md": b"# `SmolLM2", ".json": b"{\n"}
    assert path.read_bytes().startswith(begins[suffix])
    assert os.listdir(tmp_path) == [path.name]


@each("name", ["hostile", "nonfinite"])
def test_whatever_was_found_can_be_written(tmp_path: Path, name: str) -> None:
    paths = [str(tmp_path / f"out{suffix}") for suffix in REPORTS]
    write(paths, MADE[name]())
    assert all("\x1b" not in (tmp_path / path).read_text() for path in paths)


def test_a_file_that_is_there_stays_without_force(tmp_path: Path) -> None:
    old, new = tmp_path / "old.md", tmp_path / "new.json"
    old.write_text("mine")
    for refused in (check_targets, lambda paths: write(paths, faulty())):
        with pytest.raises(OutputError, match="--force"):
            refused([str(new), str(old)])
    assert old.read_text() == "mine"
    assert os.listdir(tmp_path) == ["old.md"]
    check_targets([str(old)], force=True)
    write([str(old)], faulty(), force=True)
    assert old.read_text().startswith("# ")


@each("name", ["out.txt", "out", "html", "out.html.bak"])
def test_another_suffix_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match=r"one of \.html, \.md, \.json"):
        check_targets([str(tmp_path / name)])


def test_a_report_cannot_take_the_place_of_what_is_read(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text("{}")
    link = tmp_path / "link.json"
    link.symlink_to(config)
    for path in (config, link):
        with pytest.raises(OutputError, match="is the input itself"):
            check_targets([str(path)], [str(config)], force=True)


def test_places_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "is.html").mkdir()
    with pytest.raises(OutputError, match="is a directory"):
        check_targets([str(tmp_path / "is.html")], force=True)
    with pytest.raises(OutputError, match="does not exist"):
        check_targets([str(tmp_path / "no" / "out.html")])


def test_a_report_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "out.html")
    with pytest.raises(OutputError, match="given twice"):
        check_targets([path, os.path.join(str(tmp_path), ".", "out.html")])


def test_a_pipe_takes_a_report(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    check_targets([str(pipe)])
    write([str(pipe)], faulty())
    reader.join(30)
    assert read[0].startswith(b"{\n")


# The schema and the remedies follow the tables of checks and causes.


ROOT = Path(__file__).parent.parent.parent
FIXTURE = str(ROOT / "fixtures" / "tiny-llama")
SOURCES = sorted(Path(str(files("weightctl.verify"))).rglob("*.py"))
SCRIPT = "run `python tests/test_docs.py`"


def list_explained() -> set[str]:
    """Return the names of the causes by which checks and detectors explain problems."""
    return {
        str(node.args[0].value)
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Explanation"
        and isinstance(node.args[0], ast.Constant)
    }


def test_the_schema_lists_the_checks_and_causes_of_the_tables() -> None:
    page = SCHEMA.read_text()
    assert update_schema(page) == page, SCRIPT
    assert all(name in page for name in (*CHECKS, *CAUSES))


@each("name", CHECKS)
def test_the_schema_describes_the_figures_of_each_check(name: str) -> None:
    kind: type[Any] = load(CHECKS[name].figures)
    assert issubclass(kind, Figures)
    described = json.loads(SCHEMA.read_text())["$defs"][name]["properties"]
    assert list(described) == [field.name for field in fields(kind)]


def test_causes_are_those_that_explain_something() -> None:
    assert list_explained() == CAUSES.keys()


def test_what_the_tables_refer_to_is_there() -> None:
    references = [each.run for each in CHECKS.values()]
    references += [each.prepares for each in CHECKS.values() if each.prepares]
    for cause in CAUSES.values():
        assert not (cause.detector and cause.guess)
        references += filter(None, (cause.detector, cause.guess))
    assert all(callable(load(each)) for each in references)


@each("name", CAUSES)
def test_there_is_something_to_do_about_every_cause(name: str) -> None:
    problem = Problem(check="values", where="a", text="is wrong", cause=Explanation(name, "so"))
    report = Report(
        path="a",
        reference="b",
        description="a model",
        results={"values": Result(problems=(problem,))},
        seconds={"values": 0.0},
    )
    assert len(list_remedies(report)) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFigures(Figures):
    """How many letters the path of a checkpoint has."""

    letters: int

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        return f"{self.letters} letters"


def check_letters(request: Request) -> Result:
    """Find that the path of a checkpoint is long."""
    count = len(request.subject.path)
    problem = Problem(where="", text="the path is long")
    return Result(problems=(problem,), figures=LetterFigures(letters=count))


def test_a_check_is_a_function_and_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    about = "the path is short"
    line = Check(
        f"{__name__}:check_letters", about, about, f"{__name__}:LetterFigures", "shorten it"
    )
    monkeypatch.setitem(CHECKS, "letters", line)
    report = run_checks(Request(subject=Subject(FIXTURE)), ["letters"])
    assert [problem.check for problem in report.problems] == ["letters"]
    assert list_remedies(report) == ["shorten it"]
    document = make_document(report)
    assert document["checks"]["letters"]["figures"] == {"letters": len(FIXTURE)}
    assert "the path is long" in as_markdown(report)


def find_anything(pair: Pair, pairing: Pairing, found: Measured) -> Explanation:
    """Explain whatever differs."""
    del pairing, found
    return Explanation("anything", f"`{pair.name}` is anything")


def test_a_cause_is_a_function_and_a_line_of_the_table(
    healthy: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Cause("a tensor is anything", "do it", f"{__name__}:find_anything")
    monkeypatch.setitem(CAUSES, "anything", line)
    made = faults.read(healthy("tiny-llama"))
    module = "layers.0.mlp.down.weight"
    noise = np.random.default_rng(1).standard_normal(made.numbers(module).shape)
    made.put(module, noise.astype(np.float32))
    subject = Subject(made.write(tmp_path / "faulty"))
    request = Request(subject=subject, reference=Subject(healthy("tiny-llama")))
    report = run_checks(request, ["values"])
    causes = [problem.cause and problem.cause.name for problem in report.problems]
    assert (causes, list_remedies(report)) == (["anything"], ["do it"])

"""Markdown reports, as a renderer shows them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import HOSTILE, MADE, Rendered, faulty, hostile, report, tensor
from weightctl.verify.figures import Activation, ForwardFigures, ValuesFigures
from weightctl.verify.report.markdown import render_page
from weightctl.verify.results import Explanation, Problem, Result

OURS = {
    "h1", "h2", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "ul", "li", "em",
    "strong", "br",
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_page_has_tags_of_ours_only(name: str) -> None:
    rendered = Rendered(render_page(MADE[name]()))
    assert rendered.tags <= OURS
    assert set(rendered.tables()) <= {2, 3, 4, 5, 8}


def test_problems_causes_and_the_worst_tensors_are_reported() -> None:
    rendered = Rendered(render_page(faulty()))
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


def test_both_checkpoints_have_the_names_that_sentences_use() -> None:
    text = Rendered(render_page(faulty())).text
    assert "A: SmolLM2-135M-Q4_K_M.gguf" in text
    assert "B: " in text
    assert "A: " not in Rendered(render_page(replace(faulty(), reference=None))).text


def test_what_to_do_next_is_reported_beside_a_hint() -> None:
    hinted = Problem(check="structure", where="a", text="is cut off", hint="fetch it again")
    text = Rendered(render_page(report(structure=Result(problems=(hinted,))))).text
    assert "Hint: fetch it again" in text
    assert "What to do next" not in text
    assert "convert the original model again" in Rendered(render_page(faulty())).text


def test_activations_of_which_none_is_finite_have_no_range() -> None:
    parts = (Activation(name="layers.0", rms=math.nan, greatest=0.0, nonfinite=4),)
    text = Rendered(
        render_page(report(forward=Result(figures=ForwardFigures(activations=parts))))
    ).text
    assert "No part has an output that is finite and not 0." in text


def test_divergences_are_reported_the_worst_first() -> None:
    rendered = Rendered(render_page(faulty()))
    title = rendered.rows.index(["Part", "Divergence", "Expected", "Times expected", ""])
    assert rendered.rows[title + 1][0] == "layers.7"


def test_what_a_file_says_is_text() -> None:
    rendered = Rendered(render_page(hostile()))
    names = {row[0] for row in rendered.rows}
    assert {"<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'} <= names
    assert HOSTILE[1] in names


def test_a_note_that_looks_like_a_list_is_a_sentence() -> None:
    text = Rendered(render_page(report(names=Result(notes=("- a", "1. b", "# c", "---"))))).text
    assert all(note in text for note in ("- a", "1. b", "# c", "---"))


@given(
    st.text("`|\\<>_*[]()#!&-+=~$@\n a1.:", min_size=1, max_size=14),
    st.text("`|\\<>_*[]()#!&-+=~$@\n a1.:", max_size=14),
)
def test_no_name_or_text_becomes_markup(name: str, text: str) -> None:
    problem = Problem(check="names", where=name, text=text, cause=Explanation("config", text))
    rendered = Rendered(
        render_page(
            report(
                layers=1,
                names=Result(problems=(problem,), notes=(text,), skipped=text),
                values=Result(figures=ValuesFigures(tensors=(tensor(name, 0, "x"),))),
            )
        )
    )
    assert rendered.tags <= OURS
    assert set(rendered.tables()) <= {2, 3, 4, 5, 8}
    shown = rendered.rows[-1][0]
    assert shown.replace("\\n", "\n").strip(' "') == name.strip(' "') or "\\" in name

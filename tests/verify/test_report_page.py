"""HTML reports: what is on the page, and that file content cannot change its structure."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports import MADE, faulty, of_class, page_of, parsed, report, section, tensor, text_of
from weightctl.verify.figures import Activation, ForwardFigures, NextToken, ValuesFigures
from weightctl.verify.report.html import render_page
from weightctl.verify.results import Explanation, Problem, Result

OURS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "footer", "div",
    "span", "p", "h1", "h2", "h3", "b", "br", "code", "ul", "li", "table", "thead", "tbody", "tr",
    "th", "td", "figure", "figcaption", "svg", "g", "rect", "line", "path", "circle", "text",
}  # fmt: skip


@pytest.mark.parametrize("name", MADE)
def test_a_page_is_well_formed_and_loads_and_runs_nothing(name: str) -> None:
    root = parsed(page_of(name))
    tags = {element.tag for element in root.iter()}
    assert not tags & {"script", "link", "img", "iframe", "object", "base", "form", "image", "use"}
    attributes = {name for element in root.iter() for name in element.attrib}
    assert not {name for name in attributes if name.startswith("on") or name.endswith("href")}
    assert not attributes & {"src", "srcset", "action", "data", "background"}
    style = next(text_of(each) for each in root.iter("style"))
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'; style-src 'unsafe-inline'" in {
        meta.get("content") for meta in root.iter("meta")
    }


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
    if name.isprintable() and name.strip():
        assert text_of(root).count(name) >= 3

"""JSON reports have all findings, whatever the numbers are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from reports import MADE, encoder, experts, faulty, hostile, nonfinite, report
from weightctl.verify.report.json_document import make_document, render_page
from weightctl.verify.results import Problem, Result


def read(text: str) -> Any:
    def refuse(word: str) -> float:
        raise AssertionError(word)

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", MADE)
def test_a_report_is_json_that_every_reader_takes(name: str) -> None:
    made = MADE[name]()
    assert read(render_page(made)) == make_document(made)


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
    assert [problem["where"] for problem in read(render_page(hostile()))["problems"]] == wanted


def test_no_tensor_is_left_out() -> None:
    assert len(make_document(experts())["checks"]["values"]["figures"]["tensors"]) == 6 * 100 * 3

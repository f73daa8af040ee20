"""The output of `weightctl verify` for people, scripts and terminals."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

import small_checkpoints
from reports import MADE
from terminal import on_a_terminal, without_color
from weightctl.cli import app
from weightctl.verify import CHECKS
from weightctl.verify.report.json_document import make_document

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def validator() -> Draft202012Validator:
    schema = files("weightctl") / "schemas" / "verify.json"
    return Draft202012Validator(json.loads(schema.read_text()))


class Ran:
    """The command run in this process: its exit code, and what it has written."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> None:
        with pytest.raises(SystemExit) as done:
            app(["verify", *map(str, arguments)], prog_name="weightctl")
        self.code = done.value.code
        self.out, self.err = capsys.readouterr()

    @property
    def document(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded


@pytest.mark.parametrize("name", MADE)
def test_all_that_can_be_measured_is_as_the_schema_says(
    name: str, validator: Draft202012Validator
) -> None:
    validator.validate(json.loads(json.dumps(make_document(MADE[name]()), allow_nan=False)))


def test_a_healthy_model_has_a_verdict_for_each_check_and_exit_code_0(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(capsys, tiny_llama, "--skip", "forward")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines[0] == f"{tiny_llama}: safetensors, llama, 1,935,104 parameters, BF16"
    assert [line.split()[:2] for line in lines[2:6]] == [
        ["structure", "ok"],
        ["finite", "ok"],
        ["names", "ok"],
        ["metadata", "ok"],
    ]
    assert lines[-1] == "no problems found in 4 checks"


def test_a_healthy_model_is_silent_when_it_should_be(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(capsys, tiny_llama, "--check", "names", "--check", "structure", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_the_model_runs_and_says_how(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.md"
    asked = ("--tokens", "1,42,7,261", "--check", "forward")
    ran = Ran(capsys, tiny_llama, *asked, "--report", report)
    assert ran.code == 0
    assert re.search(r"forward +ok +4 tokens .* on cpu, perplexity \d+", ran.out)
    assert "activations: " in ran.out
    assert "\nnext token " in ran.out
    assert "perplexity" in report.read_text().lower()


def test_a_script_gets_what_was_measured(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str], validator: Draft202012Validator
) -> None:
    reported = Ran(capsys, tiny_llama, "--tokens", "1,42,7,261", "--check", "forward", "--json")
    validator.validate(reported.document)
    figures = reported.document["checks"]["forward"]["figures"]
    assert [each["name"] for each in figures["activations"]] == [
        "embedding", "layers.0", "layers.1", "layers.2", "output",
    ]  # fmt: skip


def test_a_perplexity_over_the_bar_is_exit_code_1(
    tiny_llama: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Ran(capsys, tiny_llama, "--tokens", "1,2,3", "--check", "forward", "--max-ppl", "1", "-q")
    assert ran.code == 1
    assert re.match(r"forward: .*perplexity", ran.out)


def test_a_model_is_compared_and_the_report_kept(
    tiny_llama: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    validator: Draft202012Validator,
) -> None:
    report = tmp_path / "report.json"
    asked = ("--against", tiny_llama, "--tokens", "1,2,3", "--report", report)
    ran = Ran(capsys, tiny_llama, *asked)
    assert ran.code == 0
    assert f"\nB: {tiny_llama}\n" in ran.out
    assert re.search(r"values +ok +30 tensors compared, all values are equal", ran.out)
    kept = json.loads(report.read_text())
    validator.validate(kept)
    assert [*kept["checks"]] == [*CHECKS]
    assert kept["ok"]


def test_a_tensor_that_is_not_there_is_named(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copytree(tiny_llama, tmp_path / "model")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"attention_bias": True}))
    ran = Ran(capsys, path, "--check", "names")
    assert ran.code == 1
    assert re.search(r"names +\d+ problems?", ran.out)
    assert "self_attn.q_proj.bias" in ran.out
    assert re.search(r"^\d+ problems? in names$", ran.out, re.MULTILINE)


def test_a_terminal_shows_how_far_it_is_and_then_the_verdict_in_colors(tmp_path: Path) -> None:
    small_checkpoints.small(tmp_path)
    shown = on_a_terminal(80, "verify", "small", "--check", "finite", cwd=tmp_path)
    progress, _, verdict = shown.rpartition("\x1b[2K")
    assert "finite" in without_color(progress)
    assert "100%" in without_color(progress)
    assert re.match(r"\x1b\[1msmall\x1b\[0m: safetensors", verdict)


def test_a_terminal_without_colors_has_none_and_lines_that_fit(tmp_path: Path) -> None:
    small_checkpoints.small(
        tmp_path, "a-model-whose-name-is-so-long-that-it-and-what-it-is-need-two-lines"
    )
    (path,) = tmp_path.iterdir()
    asked = ("verify", path.name, "--check", "structure", "--check", "names")
    shown = on_a_terminal(80, *asked, cwd=tmp_path, NO_COLOR="1")
    verdict = shown.rpartition("\x1b[2K")[2].partition("note: ")[0]
    assert "\x1b" not in verdict
    assert verdict.startswith(f"{path.name}:\n    safetensors")
    assert [line for line in verdict.splitlines() if len(line) > 80] == []

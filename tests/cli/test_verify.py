"""The output of `weightctl verify` for people, scripts and terminals."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from importlib.resources import files
from shutil import copytree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

import small_checkpoints
from arrays import stored
from commands import TINY
from commands import run_command as weightctl
from each import each
from llama_cpp import ggml_quantize
from reports import MADE
from terminal import on_a_terminal, without_color
from weightctl import open_weights
from weightctl.cli import app
from weightctl.cli.options import device_named, layers_named, parse_tokens, text_of
from weightctl.device import CPU
from weightctl.errors import ConversionError, FormatError, OutputError, WeightctlError
from weightctl.verify import CHECKS
from weightctl.verify.report import make_document
from weightctl.verify.request import Request
from weightctl.verify.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


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
    capsys: pytest.CaptureFixture[str],
) -> None:
    ran = Ran(capsys, TINY, "--skip", "forward")
    lines = ran.out.splitlines()
    assert ran.code == 0
    assert lines[0] == f"{TINY}: safetensors, llama, 1,935,104 parameters, BF16"
    assert [line.split()[:2] for line in lines[2:6]] == [
        ["structure", "ok"],
        ["finite", "ok"],
        ["names", "ok"],
        ["metadata", "ok"],
    ]
    assert lines[-1] == "no problems found in 4 checks"


def test_a_healthy_model_is_silent_when_it_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, TINY, "--check", "names", "--check", "structure", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_the_model_runs_and_says_how(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.md"
    asked = ("--tokens", "1,42,7,261", "--check", "forward")
    ran = Ran(capsys, TINY, *asked, "--report", report)
    assert ran.code == 0
    assert re.search(r"forward +ok +4 tokens .* on cpu, perplexity \d+", ran.out)
    assert "activations: " in ran.out
    assert "\nnext token " in ran.out
    assert "perplexity" in report.read_text().lower()


def test_a_script_gets_what_was_measured(
    capsys: pytest.CaptureFixture[str], validator: Draft202012Validator
) -> None:
    reported = Ran(capsys, TINY, "--tokens", "1,42,7,261", "--check", "forward", "--json")
    validator.validate(reported.document)
    figures = reported.document["checks"]["forward"]["figures"]
    assert [each["name"] for each in figures["activations"]] == [
        "embedding", "layers.0", "layers.1", "layers.2", "output",
    ]  # fmt: skip


def test_a_perplexity_over_the_bar_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    ran = Ran(capsys, TINY, "--tokens", "1,2,3", "--check", "forward", "--max-ppl", "1", "-q")
    assert ran.code == 1
    assert re.match(r"forward: .*perplexity", ran.out)


def test_a_model_is_compared_and_the_report_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], validator: Draft202012Validator
) -> None:
    report = tmp_path / "report.json"
    asked = ("--against", TINY, "--tokens", "1,2,3", "--report", report)
    ran = Ran(capsys, TINY, *asked)
    assert ran.code == 0
    assert f"\nB: {TINY}\n" in ran.out
    assert re.search(r"values +ok +30 tensors compared, all values are equal", ran.out)
    kept = json.loads(report.read_text())
    validator.validate(kept)
    assert [*kept["checks"]] == [name for name, each in CHECKS.items() if not each.is_asked_for]
    assert kept["ok"]


def test_a_tensor_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copytree(TINY, tmp_path / "model")
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


# The options of `verify`, and what it refuses before it begins.


def verify(*arguments: str | Path) -> int:
    """Run the command in this process; return its exit code."""
    with pytest.raises(SystemExit) as done:
        app(["verify", *map(str, arguments)], prog_name="weightctl")
    assert isinstance(done.value.code, int)
    return done.value.code


def refusal(*arguments: str | Path) -> WeightctlError:
    with pytest.raises(WeightctlError) as raised:
        app(["verify", *map(str, arguments)], prog_name="weightctl")
    return raised.value


def test_devices_are_called_as_torch_calls_them() -> None:
    assert device_named("cpu") == device_named("CPU:0") == CPU
    for name in ("", "tpu", "cpu:1", "cuda:", "cuda:-1", "cuda:x", "gpu0"):
        with pytest.raises(ConversionError, match="is not a device"):
            device_named(name)


def test_a_device_that_is_not_there_is_reported_before_anything_is_read() -> None:
    error = refusal("nowhere", "--device", "cuda:9999")
    assert isinstance(error, ConversionError)
    assert error.message.startswith("cuda:9999 is not available: ")
    assert error.hint == "use --device cpu"


def test_layers_are_a_number_or_from_one_to_another() -> None:
    assert layers_named("5") == range(5, 6)
    assert layers_named("0-3") == layers_named(" 0 - 3 ") == range(4)
    for written in ("", "3-1", "-1", "0-", "a", "0:3", "1,2", "9" * 30, "٣"):
        with pytest.raises(ConversionError, match="is not a range of layers"):
            layers_named(written)


def test_tokens_are_numbers_with_commas_or_spaces_between() -> None:
    assert parse_tokens("1,42,7") == parse_tokens(" 1, 42 7,") == (1, 42, 7)
    for written in ("", ",", "1,a", "-1", "1.5", "9" * 30, "٣"):
        with pytest.raises(ConversionError, match="is not a list of token ids"):
            parse_tokens(written)


def test_a_text_is_read_from_a_file_without_its_mark_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfGr\xc3\xbc\xc3\x9fe")
    assert text_of(str(path)) == "Grüße"


def test_a_long_text_is_cut_between_letters(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"a" + "ü".encode() * (1 << 20))
    assert text_of(str(path)) == "a" + "ü" * ((1 << 19) - 1)


def test_a_file_that_is_not_text_says_where(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"abc\xff")
    with pytest.raises(ConversionError, match="byte 3: the file is not UTF-8 text"):
        text_of(str(path))
    path.write_bytes(b"ab\xc3")
    with pytest.raises(ConversionError, match="the file is not UTF-8 text"):
        text_of(str(path))
    path.write_bytes(b" \n")
    with pytest.raises(ConversionError, match="the file contains no text"):
        text_of(str(path))
    with pytest.raises(FileNotFoundError):
        text_of(str(tmp_path / "nowhere"))


def test_a_text_comes_from_a_pipe_too() -> None:
    reading, writing = os.pipe()
    saved = os.dup(0)
    try:
        os.dup2(reading, 0)
        os.write(writing, b"piped")
        os.close(writing)
        assert text_of("-") == "piped"
    finally:
        os.dup2(saved, 0)
        for descriptor in (reading, saved):
            os.close(descriptor)


@each(
    ("asked", "message"),
    [
        ("--check nonsense", "there is no check `nonsense`"),
        ("--skip nonsense", "there is no check `nonsense`"),
        ("--check values", "needs a reference"),
        ("--max-kld 1", "--max-kld limits a difference"),
        ("--max-rmse 0.1", "--max-rmse limits a difference"),
        ("--max-ppl nan", "--max-ppl is nan, and must be finite and not negative"),
        ("--max-ppl inf", "--max-ppl is inf, and must be finite and not negative"),
        ("--max-rmse -1", "--max-rmse is -1, and must be finite and not negative"),
        ("--text a --tokens 1", "--text and --tokens are both given"),
        ("--text a --text-file b", "--text and --text-file are both given"),
        ("--text=", "--text is empty"),
        ("--report page.pdf", "the report format is not supported"),
        ("--report there.md", "there.md exists"),
        ("--report nowhere/page.md", "does not exist"),
        ("--report small/model.safetensors --force", "the suffix must be one of"),
        ("--report small/config.json --force", "is the input itself"),
        ("--report a.md --report ./a.md", "is given twice"),
        ("--from nonsense", "nonsense"),
        ("--against nowhere", "nowhere: No such file or directory"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is(
    asked: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_checkpoints.small(tmp_path)
    (tmp_path / "there.md").write_text("kept")
    monkeypatch.chdir(tmp_path)
    error = refusal("small", *asked.split())
    assert message in error.message
    assert error.hint
    assert sorted(os.listdir()) == ["small", "there.md"]
    assert (tmp_path / "there.md").read_text() == "kept"


def test_a_path_that_is_not_there_is_a_mistake_and_no_verdict(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path / "nowhere"), FormatError)


@pytest.mark.parametrize("asked", ["empty", "several", "small/config.json", "small --from gguf"])
def test_a_path_or_a_format_that_is_not_meant_is_a_mistake(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = small_checkpoints.small(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "several").mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        shutil.copy(small / "model.safetensors", tmp_path / "several" / name)
    monkeypatch.chdir(tmp_path)
    assert isinstance(refusal(*asked.split()), FormatError)


def test_a_directory_whose_only_weights_are_damaged_is_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = small_checkpoints.small(tmp_path)
    (small / "model.safetensors").write_bytes(b"<!doctype html><html>")
    assert verify(small, "-q") == 1
    assert capsys.readouterr().out.startswith("structure: ")


def test_a_file_that_is_not_a_checkpoint_is_a_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.html").write_text("<!doctype html><html>")
    assert verify(tmp_path / "page.html", "-q") == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"structure: {tmp_path / 'page.html'}: not a checkpoint")
    assert line.count("page.html") == 1


def test_a_reference_that_is_damaged_is_a_mistake_and_no_verdict(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<!doctype html><html>")
    error = refusal(small_checkpoints.small(tmp_path), "--against", tmp_path / "page.html")
    assert isinstance(error, FormatError)


def test_the_table_of_checks_is_all_that_help_and_completion_know(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from weightctl.verify import CHECKS

    monkeypatch.setenv("COLUMNS", "200")
    assert verify("--help") == 0
    assert ", ".join(CHECKS) in capsys.readouterr().out


def test_reports_may_be_replaced_when_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "page.json"
    path.write_text("old")
    small = small_checkpoints.small(tmp_path)
    assert isinstance(refusal(small, "--check", "structure", "--report", path), OutputError)
    assert verify(small, "--check", "structure", "--report", path, "--force") == 0
    assert path.read_text().startswith("{")


# NaN and infinity, which blocks cannot hold: refused, or replaced with 0 and reported.


DAMAGED = np.random.default_rng(8).standard_normal((4, 256), np.float32)
DAMAGED[0, 3], DAMAGED[2, 0], DAMAGED[3, 255] = np.nan, np.inf, -np.inf
REPAIRED = np.where(np.isfinite(DAMAGED), DAMAGED, np.float32(0))


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    return stored(tmp_path / "in.safetensors", a_weight=DAMAGED, b_weight=np.abs(REPAIRED))


def test_the_refusal_says_how_to_go_on(damaged: Path, tmp_path: Path) -> None:
    for choice in ([], ["--nonfinite", "error"]):
        done = weightctl("convert", damaged, tmp_path / "out.gguf", "--quant", "Q8_0", *choice)
        assert done.returncode == 2
        assert "`a_weight` has nan at element 3" in done.stderr
        assert "to store 0 instead, use --nonfinite zero" in done.stderr


@pytest.mark.parametrize("encoding", ["Q8_0", "Q4_K"])
def test_zero_takes_their_place_and_is_reported(
    damaged: Path, tmp_path: Path, encoding: str
) -> None:
    out, report = tmp_path / "out.gguf", tmp_path / "report.json"
    done = weightctl("convert", damaged, out, "--quant", encoding, "--nonfinite", "zero", "--quiet",
                     "--report", report)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "note: `a_weight`: 3 values that are not finite became 0\n" in done.stderr
    made = open_weights(out)["a_weight"].data().view()
    assert made.tobytes() == ggml_quantize(encoding, REPAIRED, None).tobytes()
    entries = json.loads(report.read_text())["tensors"]
    assert {entry["name"]: entry["nonfinite"] for entry in entries} == {
        "a_weight": 3,
        "b_weight": 0,
    }


def test_several_tensors_are_reported_together(tmp_path: Path) -> None:
    one = np.where(np.isfinite(DAMAGED), DAMAGED, np.float32(1))
    one[1, 1] = np.nan
    source = stored(tmp_path / "in.safetensors", a_weight=DAMAGED, b_weight=one)
    done = weightctl("convert", source, tmp_path / "out.gguf", "--quant", "Q8_0", "--nonfinite",
                     "zero")  # fmt: skip
    assert (
        "2 tensors: 4 values that are not finite became 0, 3 of them in `a_weight`" in done.stderr
    )


def test_a_float_type_keeps_them_and_the_option_says_so(damaged: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    done = weightctl("convert", damaged, out, "--dtype", "f16", "--nonfinite", "zero")
    assert "no tensor becomes one: NaN stays NaN" in done.stderr
    found = open_weights(out).a_weight.data().to_numpy()
    assert np.isnan(found[0, 3])
    assert np.isinf(found[2, 0])


def test_the_time_of_a_run_grows_with_weights_tokens_and_models() -> None:
    short = Request(subject=Subject(str(TINY)))
    seconds = short.estimate_seconds()
    assert seconds is not None
    assert 0 < seconds < 0.1
    long = replace(short, text="abcd" * 250_000, reference=short.subject).estimate_seconds()
    assert long == pytest.approx(2000 * seconds)


def test_a_long_run_is_announced_on_a_terminal(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("word " * 100_000)
    given = (TINY, "--text-file", text, "--check", "forward", "--device", "cpu")
    shown = on_a_terminal(80, "verify", *given)
    assert re.search(r"note: running the model takes about \d+ s on \d+ cores?,", shown)

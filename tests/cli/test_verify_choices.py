"""The options of `verify`, and what it refuses before it begins."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

import small_checkpoints
from weightctl.cli import app
from weightctl.cli.run_on import device_named, layers_named, parse_tokens, text_of
from weightctl.device import CPU
from weightctl.errors import ConversionError, FormatError, OutputError, WeightctlError

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
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

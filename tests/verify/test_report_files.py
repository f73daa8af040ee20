"""Report files: refused before the work begins, and complete or absent."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from reports import MADE, faulty
from weightctl.errors import OutputError
from weightctl.verify.report import REPORTS, check_targets, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("suffix", REPORTS)
def test_the_suffix_says_what_a_report_is(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix.upper()}"
    write([str(path)], faulty())
    begins = {".html": b"<!DOCTYPE html>", ".md": b"# `SmolLM2", ".json": b"{\n"}
    assert path.read_bytes().startswith(begins[suffix])
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("name", ["hostile", "nonfinite"])
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


@pytest.mark.parametrize("name", ["out.txt", "out", "html", "out.html.bak"])
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

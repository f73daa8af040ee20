"""Programs that use `logging` get phases and notes."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import weightctl

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PROGRAM = """
import logging, sys
import numpy, weightctl
assert weightctl.convert({"a": numpy.ones(3)}, sys.argv[1]).notes
"""


def test_phases_and_notes_are_logged(
    tiny_llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "weightctl")
    done = weightctl.convert(tiny_llama, tmp_path / "model.gguf", names="keep")
    found = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert ("INFO", "planning the conversion") in found
    assert done.notes
    assert [text for level, text in found if level == "WARNING"] == done.notes


def test_nothing_is_printed_if_logging_is_not_set_up(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "out.gguf"], capture_output=True, check=True
    )
    assert (run.stdout, run.stderr) == (b"", b"")

"""Programs get progress, and phases and notes through `logging`."""

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


class Recorded:
    """What is reported to a caller's `progress`."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, int]] = []
        self.done = 0

    def begin(self, name: str, total: int) -> None:
        self.begun.append((name, total))

    def __call__(self, nbytes: int) -> None:
        self.done += nbytes


def test_progress_gets_the_name_and_the_total_of_what_is_done(
    tiny_llama: Path, tmp_path: Path
) -> None:
    weights = weightctl.open_weights(tiny_llama)
    for name, act in {
        f"writing {tmp_path / 'a.gguf'}": lambda progress: weightctl.convert(
            weights, tmp_path / "a.gguf", quant="Q8_0", progress=progress
        ),
        f"writing {tmp_path / 'b'}": lambda progress: weightctl.save(
            weights, tmp_path / "b", progress=progress
        ),
        f"writing {tmp_path / 'c'}": lambda progress: weightctl.shard(
            weights, tmp_path / "c", tp=2, progress=progress
        ),
        "measuring values": lambda progress: weightctl.stat(weights, progress=progress),
    }.items():
        found = Recorded()
        act(found)
        assert found.begun == [(name, found.done)]
        assert found.done

"""Pipes that report that they are full instead of waiting, as event loops open them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from weightctl import Plan, open_weights
from weightctl.errors import OutputError
from weightctl.storage.local import PipeWriter
from weightctl.write.save import save

if TYPE_CHECKING:
    from pathlib import Path


def test_a_pipe_that_does_not_block_gets_everything(tiny_llama: Path, tmp_path: Path) -> None:
    save(Plan.copy(open_weights(tiny_llama), "gguf"), tmp_path / "whole.gguf")
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    command = [sys.executable, "-m", "weightctl", "convert", tiny_llama, "-", "--to", "gguf"]
    command += ["--names", "keep"]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb") as pipe:
            got = pipe.read()
        assert process.stderr is not None
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert got == (tmp_path / "whole.gguf").read_bytes()


def test_a_reader_of_a_pipe_that_does_not_block_may_stop_early() -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    file = PipeWriter(theirs, "pipe")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(file.write, bytes(4 << 20))
        os.read(ours, 100)
        os.close(ours)
        with pytest.raises(OutputError, match="Broken pipe"):
            writing.result(timeout=60)
    os.close(theirs)

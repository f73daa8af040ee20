"""Which output paths are pipes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from weightctl.formats import FORMATS
from weightctl.write.targets import Target, target

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", FORMATS)
def test_the_suffix_of_a_pipe_is_its_format(tmp_path: Path, name: str) -> None:
    pipe = tmp_path / f"out{FORMATS[name].suffix}"
    os.mkfifo(pipe)
    assert target(str(pipe)) == Target(str(pipe), name, is_stream=True)


def test_a_link_to_a_pipe_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out.gguf").symlink_to("pipe")
    assert target(str(tmp_path / "out.gguf")).is_stream

"""New files of edits share the data of the old ones, on file systems that can do so."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

from weightctl import convert, edit, open_weights

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

ROWS = 512
TENSORS = {
    f"layers.{number}.weight": np.random.default_rng(number).standard_normal(
        (ROWS, 1024), np.float32
    )
    for number in range(4)
}


@pytest.fixture
def disk(tmp_path: Path) -> Generator[Path, None, None]:
    """A file system whose files can share blocks."""
    image, place = tmp_path / "image", tmp_path / "disk"
    place.mkdir()
    with image.open("wb"):
        os.truncate(image, 320 << 20)
    make = shutil.which("mkfs.xfs", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    for command in ([make, "-q", "-m", "reflink=1", image], ["mount", "-o", "loop", image, place]):
        if (
            command[0] is None
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            pytest.skip("this needs mkfs.xfs, and the right to mount a file")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.parametrize("name", ["m.gguf", "m.safetensors"])
def test_data_is_shared_and_not_written(disk: Path, name: str) -> None:
    path = disk / name
    convert(TENSORS, path)
    size = path.stat().st_size
    for changes in ({"metadata": {"general.name": "x" * 5000}}, {"drop": "layers.1.weight"}):
        edited = edit(path, **changes)  # type: ignore[arg-type]
        assert edited.written_bytes is not None
        assert edited.written_bytes < 20_000
        assert (edited.shared_bytes or 0) > 0.7 * size
    weights = open_weights(path)
    assert all(
        (np.asarray(weights[name].data()) == values).all()
        for name, values in TENSORS.items()
        if name != "layers.1.weight"
    )

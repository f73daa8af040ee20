"""Files that are not checkpoints, and the error of opening them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from build import F32, Gguf, Tensor, safetensors_of
from weightctl import open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

LAYERS = {f"l.{number}": ("F32", (100,), bytes(400)) for number in range(5)}
SAFETENSORS = safetensors_of(LAYERS)
GGUF = Gguf().file([Tensor(name, (100,), F32, bytes(400)) for name in LAYERS])
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4920916240\n"


def error_of(path: Path | str) -> FormatError:
    with pytest.raises(FormatError) as caught:
        open_weights(path)
    return caught.value


def zipped(*names: str) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in names:
            archive.writestr(name, b"x")
    return made.getvalue()


def tarred(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return made.getvalue()


def fill(directory: Path, files: dict[str, bytes | str]) -> None:
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

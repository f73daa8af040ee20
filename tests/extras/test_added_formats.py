"""Formats of packages that are found by their entry points."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np
import pytest

from installed import importing_from, install
from weightctl import convert, open_weights
from weightctl.formats import added_formats, list_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from commands import Completed

EXAMPLE = Path(__file__).parents[1] / "extending" / "example_plugin" / "weightctl_example"
WEIGHTCTL = ("whisper.cpp", "npz", "keras")


@pytest.fixture
def site(tmp_path: Path) -> Generator[Path, None, None]:
    """A folder in which a test installs packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    with importing_from(folder):
        yield folder


@pytest.fixture
def raw(site: Path) -> Path:
    """The format of the example plug-in, in a package of its own."""
    code = (EXAMPLE / "raw.py").read_text("utf-8")
    code += "\n\nfrom weightctl.formats import FormatLine\n"
    code += 'FORMATS = {"raw": FormatLine("raw_format", (".raw",), types_of="pytorch")}\n'
    install(site, "raw_format", code, "[weightctl.formats]", "raw = raw_format:FORMATS")
    return site


@pytest.mark.usefixtures("raw")
def test_a_package_adds_a_format(
    weightctl: Callable[..., Completed], tiny_llama: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.raw"
    done = weightctl("convert", tiny_llama, path, "--dtype", "f32")
    assert done.returncode == 0, done.stderr
    listed = weightctl("ls", path, "--flat")
    assert "model.norm.weight" in listed.stdout
    expected = open_weights(tiny_llama)
    found = open_weights(path)
    assert found.header.format == "raw"
    assert set(found.header.tensors) == set(expected.header.tensors)
    for name in found.header.tensors:
        stored = found[name].data().to_numpy()
        assert np.array_equal(stored, expected[name].data().astype("float32").to_numpy())
    convert(path, tmp_path / "back.safetensors")
    back = open_weights(tmp_path / "back.safetensors")
    assert np.array_equal(back["model.norm.weight"], found["model.norm.weight"])


def test_a_format_of_a_package_is_listed_as_the_others_are(
    raw: Path,
    weightctl: Callable[..., Completed],
    weightctl_process: Callable[..., Completed],
    tiny_llama: Path,
    tmp_path: Path,
) -> None:
    assert list(list_formats()) == [
        "safetensors", "gguf", "pytorch", "whisper.cpp", "raw", "dcp", "npz", "keras",
    ]  # fmt: skip
    # A process of its own, because this one may have made the page already.
    path = os.pathsep.join([str(raw), os.environ.get("PYTHONPATH", "")])
    page = weightctl_process("convert", "--help", PYTHONPATH=path).stdout
    assert "whisper.cpp, raw or dcp" in " ".join(page.split())
    refused = weightctl("convert", tiny_llama, tmp_path / "model.raw")
    assert "is not F32" in refused.stderr
    refused = weightctl("ls", tiny_llama, "--from", "raw")
    assert "has no raw file" in refused.stderr


@pytest.mark.usefixtures("raw")
def test_a_format_of_a_package_is_found_in_a_directory(tiny_llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    convert(tiny_llama, tmp_path / "model.raw", dtype="f32")
    # The name does not matter where nothing else has weights.
    (tmp_path / "model.raw").rename(folder / "weights.model")
    (folder / "config.json").write_text("{}")
    found = open_weights(folder).header
    assert found.format == "raw"
    convert(tiny_llama, folder / "model.raw", dtype="f32")
    convert(tiny_llama, folder / "model.safetensors")
    note = f"{folder} contains safetensors and raw checkpoints; safetensors is read"
    assert note in open_weights(folder).header.notes
    assert open_weights(folder / "model.raw", "raw").header.format == "raw"


def test_files_in_the_formats_of_weightctl_need_no_package(site: Path, tiny_llama: Path) -> None:
    install(site, "odd", "FORMATS = 1", "[weightctl.formats]", "odd = odd:FORMATS")
    assert open_weights(tiny_llama).header.format == "safetensors"
    # Such files are usual beside weights.
    beside = site / "model"
    beside.mkdir()
    for path in tiny_llama.iterdir():
        (beside / path.name).write_bytes(path.read_bytes())
    for name in ("tokenizer.model", "LICENSE", "LICENSE.txt", ".gitattributes", "README.md"):
        (beside / name).write_text("text")
    assert open_weights(beside).header.format == "safetensors"


def test_weightctl_has_formats_that_are_found_as_those_of_packages() -> None:
    assert tuple(added_formats()) == WEIGHTCTL


def test_a_scan_needs_no_package(
    weightctl: Callable[..., Completed], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    objects = np.array([print], dtype=object)
    np.savez(tmp_path / "a.npz", a=objects)
    with ZipFile(tmp_path / "b.keras", "w") as archive:
        archive.writestr("config.json", json.dumps({"class_name": "Lambda", "config": {}}))
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    added_formats.cache_clear()
    try:
        assert "npz" not in list_formats()
        found = [weightctl("ls", tmp_path / name, "--scan") for name in ("a.npz", "b.keras")]
    finally:
        added_formats.cache_clear()
    assert [done.returncode for done in found] == [1, 1]
    assert "builtins.print" in found[0].stdout
    assert "Lambda" in found[1].stdout

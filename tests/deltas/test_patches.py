"""A patch restores the second checkpoint from the first one, byte for byte."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest

import weightctl
from weightctl.deltas import creating, patch_file
from weightctl.deltas.applying import apply_patch
from weightctl.deltas.creating import write_patch
from weightctl.errors import ConversionError, FormatError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

RANDOM = np.random.default_rng(9)


def contents(path: Path) -> dict[str, bytes]:
    """Return the bytes of a file, or of all files of a directory by their names."""
    if path.is_file():
        return {"": path.read_bytes()}
    files = (each for each in path.rglob("*") if each.is_file())
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def move_words(path: Path, start: int, share: float = 0.05) -> None:
    """Add 1 to a share of the 16-bit words of a file."""
    raw = path.read_bytes()
    words = np.frombuffer(raw[start : start + (len(raw) - start) // 2 * 2], "<u2").copy()
    words[RANDOM.random(len(words)) < share] += 1
    path.write_bytes((raw[:start] + words.tobytes()).ljust(len(raw), b"\0"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Path:
    """Return a folder with a model and others that were made from it."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copytree(tiny_llama, folder / "model")
    shutil.copytree(tiny_llama, folder / "tuned")
    move_words(folder / "tuned" / "model.safetensors", 10_000)
    (folder / "tuned" / "notes").mkdir()
    (folder / "tuned" / "notes" / "empty.txt").touch()
    (folder / "tuned" / "notes" / "step.json").write_text('{"step": 1}')
    weightctl.convert(folder / "model", folder / "model.gguf")
    weightctl.convert(folder / "tuned", folder / "tuned.gguf")
    weightctl.convert(folder / "model", folder / "q8.gguf", quant="Q8_0")
    weightctl.convert(folder / "model", folder / "model.bin")
    weightctl.convert(folder / "tuned", folder / "tuned.bin")
    weightctl.convert(folder / "tuned", folder / "parts", max_shard_size="1MB")
    return folder


PAIRS = {
    "directories": ("model", "tuned", 0.1),
    "the same directory": ("model", "model", 0.01),
    "GGUF files": ("model.gguf", "tuned.gguf", 0.1),
    "PyTorch files": ("model.bin", "tuned.bin", 0.1),
    "a file and parts": ("model", "parts", 0.1),
    "parts and a file": ("parts", "tuned", 0.1),
    "quantized and not": ("model.gguf", "q8.gguf", 1.01),
    "other formats": ("model.bin", "model.gguf", 1.01),
    "a directory and a file": ("model", "tuned.gguf", 1.01),
}


@pytest.mark.parametrize(("first", "second", "most"), PAIRS.values(), ids=PAIRS)
def test_a_patch_restores_every_file(
    first: str, second: str, most: float, models: Path, tmp_path: Path
) -> None:
    written = write_patch(models / first, models / second, tmp_path / "patch")
    made = apply_patch(models / first, tmp_path / "patch", tmp_path / "out")
    expected = contents(models / second)
    assert contents(tmp_path / "out") == expected
    assert {each.sha256 for each in made.files} == {
        hashlib.sha256(each).hexdigest() for each in expected.values()
    }
    assert written.bytes == (tmp_path / "patch").stat().st_size
    assert written.bytes < most * written.restored_bytes
    assert sum(written.methods.values()) == written.restored_bytes


def test_the_number_of_threads_does_not_change_a_patch(models: Path, tmp_path: Path) -> None:
    for threads in (1, 3):
        write_patch(models / "model", models / "tuned", tmp_path / f"{threads}", threads=threads)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "3").read_bytes()


def test_tensors_are_compared_in_several_chunks(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (creating, patch_file):
        monkeypatch.setattr(module, "CHUNK", 4096)
    write_patch(models / "model", models / "tuned", tmp_path / "patch")
    apply_patch(models / "model", tmp_path / "patch", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(models / "tuned")


def test_another_model_is_refused_and_nothing_is_left(models: Path, tmp_path: Path) -> None:
    write_patch(models / "model", models / "tuned", tmp_path / "patch")
    with pytest.raises(FormatError, match=r"not the file that the patch was made from.* differ"):
        apply_patch(models / "tuned", tmp_path / "patch", tmp_path / "out")
    with pytest.raises(FormatError, match=r"needs the file .* not there"):
        apply_patch(models / "parts", tmp_path / "patch", tmp_path / "out")
    write_patch(models / "model.gguf", models / "tuned.gguf", tmp_path / "patch", force=True)
    with pytest.raises(FormatError, match=r"bytes instead of"):
        apply_patch(models / "q8.gguf", tmp_path / "patch", tmp_path / "out")
    assert [each.name for each in tmp_path.iterdir()] == ["patch"]


def test_one_of_several_files_is_refused(models: Path, tmp_path: Path) -> None:
    index = models / "parts" / "model.safetensors.index.json"
    with pytest.raises(ConversionError, match="one of several files"):
        write_patch(models / "model", index, tmp_path / "patch")
    assert list(tmp_path.iterdir()) == []


def test_outputs_are_not_replaced_without_force_and_inputs_never(
    models: Path, tmp_path: Path
) -> None:
    patch, out = tmp_path / "patch", tmp_path / "out"
    write_patch(models / "model", models / "tuned", patch)
    with pytest.raises(OutputError, match="exists"):
        write_patch(models / "model", models / "tuned", patch)
    apply_patch(models / "model", patch, out)
    with pytest.raises(OutputError, match="exists"):
        apply_patch(models / "model", patch, out)
    apply_patch(models / "model", patch, out, force=True)
    assert contents(out) == contents(models / "tuned")
    (out / "other.txt").touch()
    with pytest.raises(OutputError, match="not part of the output"):
        apply_patch(models / "model", patch, out, force=True)
    with pytest.raises(OutputError, match="input"):
        apply_patch(models / "model", patch, models / "model", force=True)
    with pytest.raises(OutputError, match="input"):
        write_patch(
            models / "model", models / "tuned", models / "model" / "config.json", force=True
        )
    with pytest.raises(OutputError, match="input"):
        apply_patch(models / "model", patch, patch, force=True)


def test_the_commands_write_and_apply_a_patch(
    models: Path, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    patch, out = tmp_path / "a.patch", tmp_path / "out"
    done = weightctl("diff", models / "model", models / "tuned", "--patch", patch)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("8 files")
    done = weightctl("apply", models / "model", patch, out)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(out) == contents(models / "tuned")
    done = weightctl("diff", models / "model", models / "tuned", "--patch", patch, "--hash")
    assert done.returncode == 2
    assert "--patch" in done.stderr

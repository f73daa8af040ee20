"""The error for a directory without a checkpoint describes its contents."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from build import safetensors_of
from non_checkpoints import GGUF, LAYERS, POINTER, SAFETENSORS, error_of, fill, tarred
from weightctl import open_weights
from weightctl.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

DIRECTORIES: dict[str, tuple[dict[str, bytes | str], str, str]] = {
    "empty": ({}, "it is empty", "check that this is the directory that you downloaded to"),
    "hidden": ({".gitattributes": "x"}, "it is empty", "check that this is"),
    "texts": ({"config.json": "{}", "a.md": "x"}, "it contains `a.md`, `config.json`", "formats:"),
    "pointer": (
        {"model.safetensors": POINTER, "config.json": "{}"},
        *("read: `model.safetensors` is a Git LFS pointer, and the actual file", "git lfs pull"),
    ),
    "pointers": (
        {f"model-0000{number}-of-00002.safetensors": POINTER for number in (1, 2)},
        *(": each of these 2 files is a Git LFS pointer", "git lfs pull"),
    ),
    "zeros": ({"model.gguf": bytes(99)}, "`model.gguf` is nothing but zeros", "download it again"),
    "nemo": (
        {"m.nemo": tarred("model_config.yaml", "model_weights.ckpt")},
        *("`m.nemo` is a NeMo model", "model_weights.ckpt"),
    ),
    "download": (
        {".cache/huggingface/download/x.incomplete": "x", "config.json": "{}"},
        *("a download into it is not complete: 1 file in .cache", "start the download again"),
    ),
    "pipeline": (
        {"unet/m.safetensors": SAFETENSORS, "vae/m.safetensors": SAFETENSORS},
        *("its directories `unet`, `vae` contain checkpoints", "pipeline/unet"),
    ),
    "models--a--b": (
        {"snapshots/12/m.safetensors": SAFETENSORS, "snapshots/34/m.gguf": GGUF, "refs/main": "34"},
        *("its directories `snapshots/34`, `snapshots/12`", "use one of them: "),
    ),
    "hub": (
        {"models--a--b/snapshots/12/m.safetensors": SAFETENSORS},
        *(
            "its directory `models--a--b/snapshots/12` contains a checkpoint",
            "hub/models--a--b/snapshots/12",
        ),
    ),
}


@pytest.mark.parametrize("name", DIRECTORIES)
def test_a_directory_without_a_checkpoint_says_what_is_there(name: str, tmp_path: Path) -> None:
    files, what, hint = DIRECTORIES[name]
    (tmp_path / name).mkdir()
    fill(tmp_path / name, files)
    error = error_of(tmp_path / name)
    assert "the directory has no checkpoint that weightctl can read" in error.message
    assert what in error.message
    assert hint in error.hint


def test_links_to_nothing_and_what_is_not_a_file_are_reported_for_a_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "model.safetensors").symlink_to("../../blobs/0123")
    os.mkfifo(tmp_path / "model.gguf")
    message = error_of(tmp_path).message
    assert "`model.safetensors` is a link to a missing file: ../../blobs/0123" in message
    assert "`model.gguf` is a file that cannot be read: it is not a regular file" in message


def test_a_format_that_is_asked_for_and_not_there_is_reported_with_what_is(tmp_path: Path) -> None:
    fill(tmp_path, {"a.gguf": GGUF})
    with pytest.raises(
        FormatError,
        match=r"no safetensors file that weightctl can read: it contains gguf \(`a\.gguf`\)",
    ):
        open_weights(tmp_path, "safetensors")


@pytest.mark.parametrize("name", ["model.safetensors", "other.safetensors"])
def test_a_file_that_would_have_been_chosen_is_not_passed_over_in_silence(
    name: str, tmp_path: Path
) -> None:
    fill(tmp_path, {"adapter.safetensors": SAFETENSORS, name: POINTER, "training_args.bin": "x"})
    assert open_weights(tmp_path).header.notes == (
        (
            f"`{name}` is not read: it is a Git LFS pointer, and the actual file (4.92 GB) has "
            "not been downloaded"
        ),
    )


def test_what_a_trainer_leaves_is_not_a_checkpoint_beside_one(tmp_path: Path) -> None:
    fill(tmp_path, {"model.safetensors": SAFETENSORS})
    for name in ("training_args.bin", "optimizer.pt", "rng_state_0.pth"):
        fill(tmp_path, {name: safetensors_of({name: ("I8", (1,), b"x")})})
    header = open_weights(tmp_path).header
    assert (list(header.tensors), header.notes) == (list(LAYERS), ())
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "optimizer.pt").unlink()
    (tmp_path / "rng_state_0.pth").unlink()
    assert list(open_weights(tmp_path).header.tensors) == ["training_args.bin"]


def test_a_directory_of_many_non_checkpoint_files_is_looked_at_in_part(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number}.gguf").write_bytes(bytes(1 << 20))
    before = time.process_time()
    assert (
        "`0.gguf`, `1.gguf`, `10.gguf`, ...: each of these 50 files is nothing but zeros"
        in error_of(tmp_path).message
    )
    assert time.process_time() - before < 2

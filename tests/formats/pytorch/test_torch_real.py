"""Published checkpoints in the formats of their time are read as torch reads them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import pytest

from lazy import load_file, torch
from real_files import fetch
from torch_checkpoints import assert_same, contents_of
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

pytestmark = pytest.mark.real


@pytest.mark.parametrize("network", ["alex", "squeeze", "vgg"])
def test_streams_that_were_saved_on_a_gpu_are_read(network: str) -> None:
    path = fetch("lpips") / f"{network}.pth"
    assert b"cuda:0" in path.read_bytes()
    weights = open_weights(path)
    assert_same(weights, torch.load(path, map_location="cpu", weights_only=True))
    assert weights.header.notes == ()


def test_a_published_torchscript_archive_has_the_names_of_its_state_dict() -> None:
    path = fetch("silero") / "silero_vad.jit"
    weights = open_weights(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        state = torch.jit.load(path, map_location="cpu").state_dict()
    # These two attributes are tensors, but neither parameters nor buffers.
    assert_same(weights, {**state, "_state": torch.zeros(0), "_context": torch.zeros(0)})
    assert weights.header.notes[0].startswith("a TorchScript archive")


def test_minilm_is_the_same_as_pytorch_and_as_safetensors(minilm: Path) -> None:
    path = fetch("minilm-pytorch") / "pytorch_model.bin"
    weights = open_weights(path)
    assert_same(weights, torch.load(path, map_location="cpu", weights_only=True, mmap=True))
    assert contents_of(weights) == contents_of(open_weights(minilm))


@pytest.mark.parametrize("name", ["out.safetensors", "out.bin"])
def test_minilm_converts_from_each_to_the_other(
    weightctl: Run, minilm: Path, tmp_path: Path, name: str
) -> None:
    as_pytorch = fetch("minilm-pytorch") / "pytorch_model.bin"
    as_safetensors = minilm / "model.safetensors"
    source, other = as_pytorch, as_safetensors
    if name.endswith(".bin"):
        source, other = other, source
    done = weightctl("convert", source, tmp_path / name)
    assert done.returncode == 0, done.stderr
    assert weightctl("diff", "--hash", tmp_path / name, other).returncode == 0
    theirs = (
        torch.load(tmp_path / name, weights_only=True, mmap=True)
        if name.endswith(".bin")
        else load_file(tmp_path / name)
    )
    expected = load_file(as_safetensors)
    assert theirs.keys() == expected.keys()
    assert all(torch.equal(theirs[key], tensor) for key, tensor in expected.items())


def test_minilm_as_pytorch_differs_from_safetensors_in_nothing(
    weightctl: Run, minilm: Path
) -> None:
    path = fetch("minilm-pytorch") / "pytorch_model.bin"
    done = weightctl("diff", path, minilm / "model.safetensors")
    assert done.returncode == 0, done.stdout + done.stderr

"""The experts of Qwen3-VL as the Hub has them, and as transformers 5 saves them: transposed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from family_cases import make_checkpoint
from weightctl import convert, open_weights, shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

_FILE, _METADATA = "model.safetensors", {"format": "pt"}
_EXPERTS = "model.layers.1.mlp.experts."


@pytest.fixture
def published(crossed: Path) -> Path:
    """Return a checkpoint as the Hub has it: `[experts, inputs, outputs]`."""
    return make_checkpoint("qwen3vlmoe", crossed).path


def transpose(source: Path, into: Path) -> Path:
    """Copy a checkpoint, with the matrices of its experts transposed."""
    shutil.copytree(source, into)
    tensors = load_file(source / _FILE)
    for name in [each for each in tensors if ".experts." in each]:
        tensors[name] = tensors[name].mT.contiguous()
    save_file(tensors, into / _FILE, _METADATA)
    return into


def with_width(source: Path, into: Path, width: int) -> Path:
    """Copy a checkpoint, with other experts of this width, as the Hub has them."""
    shutil.copytree(source, into)
    drawn = torch.Generator().manual_seed(0)
    tensors = load_file(source / _FILE)
    for name in [each for each in tensors if ".experts." in each]:
        count, hidden = tensors[name].shape[0], tensors["model.norm.weight"].shape[0]
        shape = (width, hidden) if name.endswith("down_proj") else (hidden, 2 * width)
        tensors[name] = torch.randn(count, *shape, generator=drawn)
    save_file(tensors, into / _FILE, _METADATA)
    config = json.loads((into / "config.json").read_text())
    config["moe_intermediate_size"] = width
    (into / "config.json").write_text(json.dumps(config))
    return into


def test_experts_saved_by_transformers_5_become_the_same_gguf_file_and_the_hubs_form(
    published: Path, tmp_path: Path
) -> None:
    saved = transpose(published, tmp_path / "saved")
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for source, file in zip((published, saved), files, strict=True):
        convert(source, file)
    first, second = map(open_weights, files)
    for name, node in first.items():
        assert np.array_equal(np.asarray(node), np.asarray(second[name])), name
    convert(files[1], tmp_path / "back")
    expected, found = (load_file(each / _FILE) for each in (published, tmp_path / "back"))
    assert found.keys() == expected.keys()
    assert all(found[name].equal(tensor) for name, tensor in expected.items())


def test_verify_accepts_experts_saved_by_transformers_5(
    published: Path, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    saved = transpose(published, tmp_path / "saved")
    found = weightctl("verify", str(saved), "--against", str(published))
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("options", [{"tp": 2}, {"ep": 2}])
def test_experts_saved_by_transformers_5_are_divided_among_ranks(
    options: dict[str, int], published: Path, tmp_path: Path
) -> None:
    saved = transpose(published, tmp_path / "saved")
    shard(saved, tmp_path / "ranks", **options)
    shard(published, tmp_path / "expected", **options)
    for rank in ("rank-0", "rank-1"):
        own, expected = (open_weights(tmp_path / each / rank) for each in ("ranks", "expected"))
        for part in ("gate_up_proj", "down_proj"):
            found, wanted = (np.asarray(each[_EXPERTS + part]) for each in (own, expected))
            assert np.array_equal(found, wanted.swapaxes(1, 2)), part


@pytest.mark.parametrize("square", ["gate_up_proj", "down_proj"])
def test_the_other_matrix_of_a_layer_decides_the_form_of_a_square_one(
    square: str, published: Path, tmp_path: Path
) -> None:
    hidden = json.loads((published / "config.json").read_text())["hidden_size"]
    width = hidden if square == "down_proj" else hidden // 2
    source = with_width(published, tmp_path / "source", width)
    shape = load_file(source / _FILE)[_EXPERTS + square].shape
    assert shape[1] == shape[2]
    saved = transpose(source, tmp_path / "saved")
    convert(source, tmp_path / "a.gguf")
    convert(saved, tmp_path / "b.gguf")
    first, second = (open_weights(tmp_path / each) for each in ("a.gguf", "b.gguf"))
    for name, node in first.items():
        assert np.array_equal(np.asarray(node), np.asarray(second[name])), name

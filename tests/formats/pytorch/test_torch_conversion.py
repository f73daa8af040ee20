"""torch and transformers load what weightctl writes, and nothing is lost."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import pytest

from copying import contents, copied
from lazy import torch
from weightctl import open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True, mmap=True)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def same(one: Any, other: Any) -> bool:
    """Whether two trees loaded by torch are the same, with tensors equal byte for byte."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and raw(one) == raw(other)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


@pytest.fixture
def training(tmp_path: Path) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    root = {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "epoch": 5,
        "best": (0.5, [1, 2], {}, [], (), None, "größe", True, 1 << 70),
        "size": torch.Size([1, 2]),
    }
    torch.save(root, tmp_path / "training.pt")
    return tmp_path / "training.pt"


@pytest.mark.parametrize("by_way_of", ["", "between.safetensors", "between.pt"])
def test_a_training_checkpoint_comes_back_as_it_was(
    weightctl: Run, training: Path, tmp_path: Path, by_way_of: str
) -> None:
    source = training
    if by_way_of:
        assert weightctl("convert", source, tmp_path / by_way_of).returncode == 0
        source = tmp_path / by_way_of
    done = weightctl("convert", source, tmp_path / "out.pt")
    assert done.returncode == 0, done.stderr
    assert same(loaded(training), loaded(tmp_path / "out.pt"))


def test_a_dtype_is_for_the_model_and_its_optimizer_goes_on(
    weightctl: Run, training: Path, tmp_path: Path
) -> None:
    assert weightctl("convert", training, tmp_path / "out.pt", "--dtype", "bf16").returncode == 0
    before, after = loaded(training), loaded(tmp_path / "out.pt")
    for name, tensor in before["model"].items():
        assert torch.equal(after["model"][name], tensor.to(torch.bfloat16))
    assert same(before["optimizer"], after["optimizer"])


def test_a_part_of_the_tree_is_the_part_of_the_output(
    weightctl: Run, training: Path, tmp_path: Path
) -> None:
    done = weightctl("convert", training, tmp_path / "out.pt", "--include", "model.*")
    assert done.returncode == 0, done.stderr
    assert same({"model": loaded(training)["model"]}, loaded(tmp_path / "out.pt"))


def test_tied_tensors_stay_tied(weightctl: Run, tmp_path: Path) -> None:
    shared = torch.randn(4, 3)
    torch.save({"embed": shared, "b": torch.ones(2), "head": shared}, tmp_path / "in.bin")
    for name in ("out.bin", "out.safetensors", "back.bin"):
        source = tmp_path / ("out.safetensors" if name == "back.bin" else "in.bin")
        assert weightctl("convert", source, tmp_path / name).returncode == 0
    for name in ("out.bin", "back.bin"):
        found = loaded(tmp_path / name)
        assert same(found, {"embed": shared, "b": torch.ones(2), "head": shared})
        assert found["embed"].data_ptr() == found["head"].data_ptr()
    assert open_weights(tmp_path / "back.bin").header.aliases == {"head": "embed"}


def test_blocks_become_bfloat16_unless_another_type_is_chosen(
    weightctl: Run, tiny_llama: Path, tmp_path: Path
) -> None:
    blocks, out = tmp_path / "blocks.gguf", tmp_path / "out.bin"
    assert weightctl("convert", tiny_llama, blocks, "--quant", "q8_0").returncode == 0
    done = weightctl("convert", blocks, out)
    assert done.returncode == 0
    note = "note: 23 tensors in types that only GGUF has (Q8_0): floating-point tensors become BF16"
    assert note in done.stderr
    assert all(tensor.dtype == torch.bfloat16 for tensor in loaded(out).values())
    exact = weightctl("convert", blocks, out, "--exact", "--force")
    assert exact.returncode == 2
    assert "the values of 30 tensors would be rounded" in exact.stderr
    assert weightctl("convert", blocks, out, "--dtype", "f16", "--force").returncode == 0
    assert all(tensor.dtype == torch.float16 for tensor in loaded(out).values())


def test_transformers_loads_a_split_checkpoint(
    weightctl: Run, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise, transformers would search the Hub for a safetensors version of the directory.
    monkeypatch.setenv("DISABLE_SAFETENSORS_CONVERSION", "1")
    from transformers import AutoModelForCausalLM

    out = tmp_path / "parts"
    done = weightctl("convert", tiny_llama, f"{out}/", "--to", "pytorch", "--max-shard-size", "2MB")
    assert done.returncode == 0, done.stderr
    names = sorted(path.name for path in out.glob("pytorch_model*"))
    assert names == [
        "pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin",
        "pytorch_model.bin.index.json",
    ]  # fmt: skip
    listed = json.loads((out / names[2]).read_text())["weight_map"]
    assert listed.keys() == open_weights(tiny_llama).header.tensors.keys()
    ours = AutoModelForCausalLM.from_pretrained(out, use_safetensors=False)
    theirs = AutoModelForCausalLM.from_pretrained(tiny_llama)
    assert same(dict(theirs.state_dict()), dict(ours.state_dict()))
    merged = copied(open_weights(out), tmp_path / "merged.safetensors")
    assert contents(merged) == contents(open_weights(tiny_llama))


def test_what_only_python_knows_is_left_out_and_told_of(weightctl: Run, tmp_path: Path) -> None:
    root = {"w": torch.ones(2), "args": Namespace(lr=0.1), "model": torch.nn.Linear(2, 1)}
    torch.save(root, tmp_path / "in.pt")
    done = weightctl("convert", tmp_path / "in.pt", tmp_path / "out.pt")
    assert done.returncode == 0
    assert "torch.nn.modules.linear.Linear" in done.stderr
    found = loaded(tmp_path / "out.pt")
    assert found["args"] == {"lr": 0.1}
    assert same(
        found["model"], {key: value.data for key, value in root["model"].state_dict().items()}
    )

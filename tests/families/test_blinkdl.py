"""RWKV's original files are listed with their family, and become the same GGUF as others."""

from __future__ import annotations

import json
import re
from shutil import copytree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from family_cases import make_checkpoint
from weightctl import convert, open_weights
from weightctl.errors import ArchitectureError
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

RWKV7 = {
    "model.embeddings": "emb", "model.norm": "ln_out", "lm_head": "head", "pre_norm": "ln0",
    "attn_norm": "ln1", "ffn_norm": "ln2", "g_norm": "ln_x", "r_proj": "receptance",
    "k_proj": "key", "v_proj": "value", "o_proj": "output", "model.layers": "blocks",
    "attn": "att",
}  # fmt: skip
RWKV6 = {"rwkv.": "", "attention": "att", "feed_forward": "ffn", "embeddings": "emb",
         "pre_ln": "ln0"}  # fmt: skip
LOW_RANK = re.compile(r"(\w)_lora\.lora\.(0\.weight|2\.weight|2\.bias)")
STEPS = {"0.weight": "1", "2.weight": "2", "2.bias": "0"}


def original(name: str, tensor: torch.Tensor, family: str) -> tuple[str, torch.Tensor]:
    """Return the name and the values of a tensor in BlinkDL's layout."""
    for old, new in (RWKV7 if family == "rwkv7" else RWKV6).items():
        name = name.replace(old, new)
    if family == "rwkv7":
        name, count = LOW_RANK.subn(lambda found: found[1] + STEPS[found[2]], name)
        if count and tensor.dim() == 2:
            tensor = tensor.T.contiguous()
        if re.search(r"\.(att\.([wav]0|k_k|k_a)|ffn\.x_k)$", name):
            tensor = tensor.reshape(1, 1, -1)
    return name, tensor


def write(family: str, crossed: Path, into: Path) -> tuple[Path, Path]:
    """Write a model in both layouts, and return the paths."""
    source = into / "hf"
    copytree(make_checkpoint(family, crossed).path, source)
    for each in source.glob("tokenizer*"):
        each.unlink()
    if family == "rwkv6":  # the original files state no other number
        config = json.loads((source / "config.json").read_text()) | {"rescale_every": 6}
        (source / "config.json").write_text(json.dumps(config))
    stored = load_file(source / "model.safetensors")
    tensors = dict(original(name, each, family) for name, each in stored.items())
    if family == "rwkv7":  # some files have these, which nothing reads
        tensors |= {f"blocks.0.att.v{step}": tensors[f"blocks.1.att.v{step}"] for step in range(3)}
    (into / "own").mkdir()
    torch.save(tensors, into / "own" / "model.pth")
    return source, into / "own" / "model.pth"


def arrays(path: Path) -> dict[str, Any]:
    tree = open_weights(path)
    return {name: np.from_dlpack(tree[name].data()) for name in header_of(tree).tensors}


@pytest.mark.parametrize("family", ["rwkv6", "rwkv7"])
def test_a_file_becomes_the_same_gguf(
    family: str, crossed: Path, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    source, own = write(family, crossed, tmp_path)
    convert(source, tmp_path / "a.gguf")
    convert(own, tmp_path / "b.gguf")
    expected, found = arrays(tmp_path / "a.gguf"), arrays(tmp_path / "b.gguf")
    assert found.keys() == expected.keys()
    assert [each for each in expected if not np.array_equal(found[each], expected[each])] == []
    one, other = (
        {
            key: value.content
            for key, value in header_of(open_weights(tmp_path / each)).metadata.items()
            if key.startswith(f"{family}.")
        }
        for each in ("a.gguf", "b.gguf")
    )
    assert one == other
    assert json.loads(weightctl("ls", own, "--json").stdout)["architecture"] == family


def test_a_file_without_a_tensor_that_states_a_size_is_refused(
    crossed: Path, tmp_path: Path
) -> None:
    _, own = write("rwkv6", crossed, tmp_path)
    tensors = torch.load(own, weights_only=True)
    del tensors["blocks.0.ffn.key.weight"]
    torch.save(tensors, own)
    with pytest.raises(ArchitectureError, match=r"`blocks\.0\.ffn\.key\.weight` is missing"):
        convert(own, tmp_path / "a.gguf")

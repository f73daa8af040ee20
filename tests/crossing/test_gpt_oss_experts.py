"""The experts of gpt-oss as its original checkpoints have them: MXFP4, with the outputs as rows."""

from __future__ import annotations

import json
import shutil
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from family_cases import make_checkpoint
from weightctl import convert, open_weights, shard

if TYPE_CHECKING:
    from pathlib import Path


def save_original(source: Path, into: Path) -> None:
    """Save a checkpoint whose experts are drawn, in MXFP4 as in the original's."""
    into.mkdir()
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, into)
    drawn = torch.Generator().manual_seed(0)
    made: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not name.endswith("_proj"):
            made[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        made[f"{name}_blocks"] = torch.randint(
            0, 256, (*shape, 16), dtype=torch.uint8, generator=drawn
        )
        made[f"{name}_scales"] = torch.randint(120, 124, shape, dtype=torch.uint8, generator=drawn)
    save_file(made, into / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((into / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (into / "config.json").write_text(json.dumps(config))


def test_the_mxfp4_experts_of_gpt_oss_become_gguf_blocks_with_the_same_values(
    crossed: Path, tmp_path: Path
) -> None:
    source, in_blocks, in_float = (tmp_path / name for name in ("original", "a.gguf", "b.gguf"))
    save_original(make_checkpoint("gpt_oss", crossed).path, source)
    convert(source, in_blocks, to="gguf")
    convert(source, in_float, to="gguf", dtype="f32")
    packed, plain = open_weights(in_blocks), open_weights(in_float)
    for part in ("gate", "up", "down"):
        name = f"blk.0.ffn_{part}_exps.weight"
        assert packed[name].info.encoding.name == "MXFP4"
        found, expected = (np.asarray(each[name]) for each in (packed, plain))
        assert np.array_equal(found, expected)


def test_the_mxfp4_experts_of_gpt_oss_are_divided_among_ranks(
    crossed: Path, tmp_path: Path
) -> None:
    source = tmp_path / "original"
    save_original(make_checkpoint("gpt_oss", crossed).path, source)
    whole = open_weights(source)
    name = "model.layers.1.mlp.experts.{}_proj_{}"
    for number, options in enumerate(({"tp": 2}, {"ep": 2})):
        ranks = tmp_path / f"ranks{number}"
        shard(source, ranks, **options)
        gathered = open_weights(ranks)
        for tensor, node in whole.items():
            assert np.array_equal(np.asarray(node), np.asarray(gathered[tensor])), tensor
        own = open_weights(ranks / "rank-1")
        for part, kind in product(("gate_up", "down"), ("blocks", "scales")):
            # Gate and up of a unit stand together; those of the second half of units are rank 1's.
            axis = 0 if "ep" in options else {"gate_up": 1, "down": 2}[part]
            stored = np.asarray(whole[name.format(part, kind)])
            expected = np.split(stored, 2, axis)[1]
            assert np.array_equal(np.asarray(own[name.format(part, kind)]), expected)

"""Originals that are published in FP8 and INT4: DeepSeek-V3 and Kimi K2, converted to GGUF."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from family_cases import make_checkpoint
from packers import stream
from weightctl import convert, open_weights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Tensors = dict[str, torch.Tensor]

BLOCK, GROUP, LARGEST = 128, 32, 448.0
FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
    "weight_block_size": [BLOCK, BLOCK],
}  # fmt: skip
INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 4, "group_size": GROUP, "strategy": "group", "type": "int",
                        "symmetric": True},
        }
    },
}  # fmt: skip


def in_fp8(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Return a matrix in FP8 with a scale for each block of 128 x 128, and its values."""
    if not re.search(r"layers\..*_proj(_with_mqa)?\.weight", name):
        return {name: weight}, weight
    rows, columns = (-(-length // BLOCK) for length in weight.shape)
    scales = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            part = weight[BLOCK * row :, BLOCK * column :][:BLOCK, :BLOCK]
            scales[row, column] = part.abs().max() / LARGEST
    spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    spread = spread[: weight.shape[0], : weight.shape[1]]
    numbers = (weight / spread).to(torch.float8_e4m3fn)
    return {name: numbers, f"{name}_scale_inv": scales}, numbers.float() * spread


def in_int4(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Return an expert's matrix in INT4 with a scale for each group of 32, and its values."""
    if ".experts." not in name:
        return {name: weight}, weight
    rows, columns = weight.shape
    groups = weight.reshape(rows, -1, GROUP)
    scales = (groups.abs().amax(-1) / 7).to(torch.bfloat16)
    levels = (groups / scales.float()[..., None]).round().clamp(-8, 7)
    stem = name.removesuffix("weight")
    return {
        f"{stem}weight_packed": stream((levels.reshape(rows, columns) + 8).int(), 4),
        f"{stem}weight_scale": scales,
        f"{stem}weight_shape": torch.tensor([rows, columns]),
    }, (levels * scales.float()[..., None]).reshape(rows, columns)


def save(source: Path, into: Path, tensors: Tensors, **config: Any) -> None:
    into.mkdir()
    for path in source.iterdir():
        if not path.name.startswith("model"):
            shutil.copy(path, into)
    save_file({name: each.contiguous() for name, each in tensors.items()},
              into / "model.safetensors")  # fmt: skip
    document = json.loads((into / "config.json").read_text()) | config
    (into / "config.json").write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("pack", "model_type", "settings"),
    [(in_fp8, "deepseek_v3", FP8), (in_fp8, "kimi_k2", FP8), (in_int4, "kimi_k2", INT4)],
)
def test_a_quantized_original_becomes_the_gguf_of_its_values(
    pack: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]],
    model_type: str,
    settings: dict[str, Any],
    crossed: Path,
    tmp_path: Path,
) -> None:
    source = make_checkpoint("deepseek_v3", crossed).path
    stored: Tensors = {}
    values: Tensors = {}
    for name, weight in load_file(source / "model.safetensors").items():
        packed, values[name] = pack(name, weight)
        stored |= packed
    assert len(stored) > len(values)
    packed_at, plain_at = tmp_path / "packed", tmp_path / "plain"
    save(source, packed_at, stored, model_type=model_type, quantization_config=settings)
    save(source, plain_at, values)
    for path in (packed_at, plain_at):
        convert(path, path.with_suffix(".gguf"), to="gguf", dtype="f32")
    found, expected = (open_weights(path.with_suffix(".gguf")) for path in (packed_at, plain_at))
    assert found.keys() == expected.keys()
    for name, node in expected.items():
        assert np.array_equal(np.asarray(found[name]), np.asarray(node)), name

"""Other forms of checkpoints than transformers saves: transposed, fused and quantized."""

from __future__ import annotations

import json
import re
import shutil
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import usual
from family_cases import make_checkpoint
from lazy import load_file, save_file, torch
from llama_cpp import ask
from packers import stream
from weightctl import WeightData, convert, open_weights, save, shard
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Tensors = dict[str, torch.Tensor]


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


# The experts of gpt-oss as its original checkpoints have them: MXFP4, with the outputs as rows.


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
    save_file(made, into / "model.safetensors", {"format": "pt"})
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


# Originals that are published in FP8 and INT4: DeepSeek-V3 and Kimi K2, converted to GGUF.


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


def save_with_config(source: Path, into: Path, tensors: Tensors, **config: Any) -> None:
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
    save_with_config(source, packed_at, stored, model_type=model_type, quantization_config=settings)
    save_with_config(source, plain_at, values)
    for path in (packed_at, plain_at):
        convert(path, path.with_suffix(".gguf"), to="gguf", dtype="f32")
    found, expected = (open_weights(path.with_suffix(".gguf")) for path in (packed_at, plain_at))
    assert found.keys() == expected.keys()
    for name, node in expected.items():
        assert np.array_equal(np.asarray(found[name]), np.asarray(node)), name


# GGUF files with queries, keys and values in one tensor, as llama.cpp's converter can write.


def fuse(source: Path, into: Path) -> int:
    """Join the queries, keys and values of layers that have all three; return their number."""
    tree = open_weights(source)
    arrays = {name: node.data().to_numpy() for name, node in tree.items()}
    count = 0
    for name in [each for each in arrays if re.fullmatch(r"blk\.\d+\.attn_v\.(weight|bias)", each)]:
        parts = [name.replace("attn_v", f"attn_{part}") for part in "qkv"]
        if all(part in arrays for part in parts):
            joined = np.concatenate([arrays.pop(part) for part in parts])
            arrays[name.replace("attn_v", "attn_qkv")] = joined
            count += 1
    given = {name: WeightData.from_numpy(array, name) for name, array in arrays.items()}
    save(as_checkpoint(given, header_of(tree).metadata), into)
    return count


@pytest.mark.parametrize(
    ("name", "count"),
    usual(
        [("gemma4", 4), ("gpt_oss", 6)],
        [("gemma4", 4), ("gemma4-experts", 2), ("gpt_oss", 6), ("gemma3n-shared", 22)],
    ),
)
def test_a_file_with_fused_queries_is_the_same_model(
    name: str, count: int, crossed: Path, tmp_path: Path
) -> None:
    path = make_checkpoint(name, crossed).path
    apart, fused = tmp_path / "apart.gguf", tmp_path / "fused.gguf"
    convert(path, apart, dtype="f32")
    assert fuse(apart, fused) == count
    for file in (apart, fused):
        convert(file, file.with_suffix(""))
    found, expected = (load_file(each.with_suffix("") / "model.safetensors")
                       for each in (fused, apart))  # fmt: skip
    assert found.keys() == expected.keys()
    assert all(found[key].equal(array) for key, array in expected.items())


@pytest.mark.long
def test_llama_cpp_reads_the_fused_file_of_gemma_4_in_the_same_way(
    crossed: Path, tmp_path: Path
) -> None:
    made = make_checkpoint("gemma4", crossed)
    apart, fused = tmp_path / "apart.gguf", tmp_path / "fused.gguf"
    convert(made.path, apart, dtype="f32")
    fuse(apart, fused)
    found, expected = (
        ask(path, ("logits", made.tokens), context=512)[0] for path in (fused, apart)
    )
    assert np.abs(found - expected).max() < 1e-4

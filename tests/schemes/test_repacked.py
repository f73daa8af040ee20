"""Weights in ggml's blocks: gguf-py reads exactly the values that float32 would have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest

from lazy import torch
from packers import awq, gptq, levels_of, numbers, opened, read, same, scales_of, settings, stream
from weightctl.schemes.dequantize import dequantize_weights

if TYPE_CHECKING:
    from pathlib import Path

ROWS, COLUMNS = 12, 192


def both(directory: Path, tensors: dict[str, torch.Tensor], config: object = None) -> str:
    """Return the encoding of a weight, after checking that gguf-py reads the same values."""
    weights = opened(directory, tensors, config)
    plain = dequantize_weights(weights, in_blocks=False)
    tree = dequantize_weights(weights, in_blocks=True)
    (name,) = tree.header.tensors
    info = tree.header.tensors[name]
    if info.encoding.name == "F32":
        return "F32"
    kind = gguf.GGMLQuantizationType[info.encoding.name]
    whole = read(tree, name)
    for run in (5, 7777):
        assert bool((read(tree, name, run) == whole).all())
    rows = whole.reshape(-1, info.row // 32 * info.encoding.size)
    with np.errstate(over="ignore"):
        made = gguf.quants.dequantize(rows, kind)
    wanted = numbers(plain, name)
    if info.shape != plain.header.tensors[name].shape:
        wanted = wanted.mT.contiguous()
    np.testing.assert_array_equal(made.reshape(info.shape), wanted.numpy())
    return info.encoding.name


def of_gptq(
    group: int, bits: int = 4, dtype: torch.dtype = torch.float16, zero: int = 0, **others: int
) -> dict[str, torch.Tensor]:
    levels = levels_of(1, (COLUMNS, 64), bits)
    zeros = torch.full((COLUMNS // group, 64), zero or 1 << (bits - 1))
    scales = scales_of(3, (COLUMNS // group, 64), dtype)
    return gptq(levels, zeros, scales, bits, **others)


@pytest.mark.parametrize("group", [32, 64, 96, 192])
@pytest.mark.parametrize(("bits", "wanted"), [(4, "Q4_0"), (8, "Q8_0"), (2, "F32"), (3, "F32")])
def test_symmetric_gptq_is_repacked(tmp_path: Path, group: int, bits: int, wanted: str) -> None:
    assert both(tmp_path, of_gptq(group, bits), settings("gptq", group_size=group)) == wanted


def test_groups_that_end_within_a_block_are_not_repacked(tmp_path: Path) -> None:
    assert both(tmp_path, of_gptq(48), settings("gptq", group_size=48)) == "F32"


def test_rows_that_are_not_whole_blocks_are_not_repacked(tmp_path: Path) -> None:
    levels, scales = levels_of(1, (ROWS, 48), 4), scales_of(3, (ROWS, 1))
    tensors = {
        "l.weight_packed": stream(levels, 4), "l.weight_scale": scales,
        "l.weight_shape": torch.tensor([ROWS, 48]),
    }  # fmt: skip
    assert both(tmp_path, tensors) == "F32"


def test_an_order_that_is_the_usual_one_does_not_stand_in_the_way(tmp_path: Path) -> None:
    usual = torch.arange(COLUMNS) // 64
    assert both(tmp_path, of_gptq(64) | {"l.g_idx": usual.to(torch.int32)}) == "Q4_0"
    other = usual.flip(0).to(torch.int32)
    assert both(tmp_path / "a", of_gptq(64) | {"l.g_idx": other}) == "F32"


def test_zeros_whose_products_are_exact_are_mins(tmp_path: Path) -> None:
    assert both(tmp_path, of_gptq(32, zero=4), settings("gptq", group_size=32)) == "Q4_1"
    assert both(tmp_path / "a", of_gptq(32, zero=7), settings("gptq", group_size=32)) == "F32"


def test_one_zero_that_is_another_is_found(tmp_path: Path) -> None:
    levels, zeros = levels_of(1, (COLUMNS, 64), 4), torch.full((6, 64), 8)
    zeros[5, 63] = 9
    tensors = gptq(levels, zeros, scales_of(3, (6, 64)), 4)
    assert both(tmp_path, tensors, settings("gptq", group_size=32)) == "F32"


@pytest.mark.parametrize(("zero", "wanted"), [(8, "Q4_0"), (2, "Q4_1"), (5, "F32")])
def test_awq_is_repacked_where_that_is_exact(tmp_path: Path, zero: int, wanted: str) -> None:
    tensors = {
        "l.qweight": awq(levels_of(1, (COLUMNS, 64), 4)),
        "l.qzeros": awq(torch.full((6, 64), zero)),
        "l.scales": scales_of(3, (6, 64)),
    }
    assert both(tmp_path, tensors, settings("awq", group_size=32)) == wanted


@pytest.mark.parametrize(("scale", "wanted"), [(0.01, "Q4_0"), (2.0**-30, "F32"), (1e6, "F32")])
def test_scales_in_bfloat16_are_looked_at(tmp_path: Path, scale: float, wanted: str) -> None:
    levels = levels_of(1, (ROWS, COLUMNS), 4)
    scales = scales_of(3, (ROWS, 6), torch.bfloat16)
    scales[11, 5] = scale
    tensors = {
        "l.weight_packed": stream(levels, 4), "l.weight_scale": scales,
        "l.weight_shape": torch.tensor([ROWS, COLUMNS]),
    }  # fmt: skip
    assert both(tmp_path, tensors) == wanted


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_bytes_with_a_scale_for_each_row_are_repacked(tmp_path: Path, dtype: torch.dtype) -> None:
    weight = levels_of(1, (ROWS, 64), 8).to(torch.uint8).view(torch.int8)
    tensors = {"l.weight": weight, "l.weight_scale": scales_of(2, (ROWS, 1), dtype)}
    assert both(tmp_path, tensors) == "Q8_0"
    tensors["l.weight_zero_point"] = torch.zeros(ROWS, 1, dtype=torch.int8)
    assert both(tmp_path / "a", tensors) == "Q8_0"


def test_two_rows_in_one_are_repacked(tmp_path: Path) -> None:
    packed = levels_of(1, (ROWS // 2, 64), 8).to(torch.uint8)
    tensors = {"l.weight": packed, "l.weight_scale": scales_of(3, (ROWS, 2))}
    assert both(tmp_path, tensors) == "Q4_0"


@pytest.mark.parametrize(
    ("bits", "dtype", "wanted"),
    [(4, torch.float16, "Q4_1"), (4, torch.float32, "F32"), (8, torch.float16, "F32")],
)
def test_biases_of_mlx_are_mins(tmp_path: Path, bits: int, dtype: torch.dtype, wanted: str) -> None:
    levels = levels_of(1, (ROWS, COLUMNS), bits)
    tensors = {
        "l.weight": stream(levels, bits).view(torch.uint32),
        "l.scales": scales_of(3, (ROWS, 3), dtype), "l.biases": -scales_of(4, (ROWS, 3), dtype),
    }  # fmt: skip
    assert both(tmp_path, tensors, {"group_size": 64, "bits": bits}) == wanted


def test_blocks_of_gpt_oss_keep_outputs_as_rows(tmp_path: Path) -> None:
    tensors = {
        "l.down_proj_blocks": levels_of(1, (3, 20, 4, 16), 8).to(torch.uint8),
        "l.down_proj_scales": levels_of(2, (3, 20, 4), 8).to(torch.uint8),
    }
    assert both(tmp_path, tensors) == "MXFP4"
    tree = dequantize_weights(opened(tmp_path, tensors), in_blocks=True)
    assert tree.l.down_proj.info.shape == (3, 20, 128)


def test_microscaled_rows_are_repacked(tmp_path: Path) -> None:
    tensors = {
        "l.weight_packed": levels_of(1, (ROWS, 96), 8).to(torch.uint8),
        "l.weight_scale": levels_of(2, (ROWS, 6), 7).to(torch.uint8),
    }
    assert both(tmp_path, tensors) == "MXFP4"


def test_a_weight_that_no_block_holds_is_the_same_as_without(tmp_path: Path) -> None:
    weights = opened(tmp_path, of_gptq(32, 2), settings("gptq", group_size=32))
    made = [
        numbers(dequantize_weights(weights, in_blocks=is_wanted), "l.weight")
        for is_wanted in (True, False)
    ]
    assert same(*made)

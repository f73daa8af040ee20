"""FP8, INT8, 4-bit floats and bitsandbytes against their own arithmetic, and that of libraries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from each import each
from lazy import torch, transformers
from packers import levels_of, numbers, plain, same, scales_of, settings
from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from pathlib import Path

FP8 = torch.float8_e4m3fn
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def floats(seed: int, shape: tuple[int, ...], dtype: torch.dtype = FP8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 40).to(dtype)


def halves(codes: torch.Tensor) -> torch.Tensor:
    """Return codes packed two per byte, the first in the low bits."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).to(torch.uint8)


def deepseek(rows: int, columns: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return tensors with a scale for each block of 128 x 128, and the values they represent."""
    weight = floats(1, (rows, columns))
    scales = scales_of(2, (-(-rows // 128), -(-columns // 128)), torch.float32)
    spread = scales[torch.arange(rows) // 128][:, torch.arange(columns) // 128]
    return {"l.weight": weight, "l.weight_scale_inv": scales}, weight.float() * spread


@pytest.mark.parametrize("shape", [(256, 384), (1, 128), (300, 200), (576, 130), (129, 257)])
@pytest.mark.parametrize("says", [True, False])
def test_fp8_has_scales_of_blocks(tmp_path: Path, shape: tuple[int, int], *, says: bool) -> None:
    tensors, wanted = deepseek(*shape)
    tree = plain(tmp_path, tensors, settings("fp8", weight_block_size=[128, 128]) if says else None)
    for run in (999, 1 << 30):
        assert same(numbers(tree, "l.weight", run), wanted)


def test_fp8_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    tensors, _ = deepseek(256, 384)
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    dequantize = Fp8Dequantize(None)._dequantize_one
    wanted = dequantize(tensors["l.weight"], tensors["l.weight_scale_inv"], torch.float32)
    assert same(numbers(plain(tmp_path, tensors), "l.weight"), wanted)


def test_sizes_of_blocks_are_those_of_the_config(tmp_path: Path) -> None:
    weight, scales = floats(1, (100, 96)), scales_of(2, (3, 2), torch.float32)
    spread = scales[torch.arange(100) // 48][:, torch.arange(96) // 80]
    tree = plain(
        tmp_path,
        {"l.weight": weight, "l.weight_scale_inv": scales},
        settings("fp8", weight_block_size=[48, 80]),
    )
    assert same(numbers(tree, "l.weight"), weight.float() * spread)


@each(
    ("weight", "scales"),
    [
        ((10, 64), ()), ((10, 64), (1,)), ((10, 64), (10, 1)), ((10, 64), (10,)),
        ((10, 64), (1, 64)), ((4, 10, 64), (4,)), ((4, 10, 64), (4, 1, 64)),
        ((4, 10, 64), (4, 10, 1)), ((64,), (1,)),
    ],
)  # fmt: skip
@each("dtype", [FP8, torch.float8_e5m2, torch.int8])
def test_bytes_have_a_scale_for_each_row_or_expert_or_for_all(
    tmp_path: Path, weight: tuple[int, ...], scales: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensors = {
        "l.weight": floats(1, weight, dtype), "l.weight_scale": scales_of(2, scales, torch.bfloat16)
    }  # fmt: skip
    each = tensors["l.weight_scale"].float()
    each = each.reshape(*scales, *(1,) * (len(weight) - len(scales))) if each.numel() > 1 else each
    wanted = tensors["l.weight"].float() * each
    assert same(numbers(plain(tmp_path, tensors), "l.weight"), wanted)


def test_int8_may_have_zero_points(tmp_path: Path) -> None:
    weight, zeros = floats(1, (10, 64), torch.int8), floats(3, (10, 1), torch.int8)
    scales = scales_of(2, (10, 1), torch.float32)
    tensors = {"l.weight": weight, "l.weight_scale": scales, "l.weight_zero_point": zeros}
    wanted = (weight.float() - zeros.float()) * scales
    assert same(numbers(plain(tmp_path, tensors, in_blocks=True), "l.weight"), wanted)


def test_scales_may_be_powers_of_two(tmp_path: Path) -> None:
    exponents = levels_of(2, (4, 2), 4).to(torch.uint8) + 115
    tensors = {"l.weight": floats(1, (4, 64)), "l.weight_scale": exponents}
    spread = torch.ldexp(torch.ones(4, 2), exponents.int() - 127)[:, torch.arange(64) // 32]
    wanted = tensors["l.weight"].float() * spread
    assert same(numbers(plain(tmp_path, tensors), "l.weight"), wanted)


def test_gpt_oss_is_what_transformers_makes_of_it(tmp_path: Path) -> None:
    blocks = levels_of(1, (3, 20, 4, 16), 8).to(torch.uint8)
    scales = levels_of(2, (3, 20, 4), 8).to(torch.uint8)
    tensors = {"l.gate_up_proj_blocks": blocks, "l.gate_up_proj_scales": scales}
    wanted = transformers.integrations.mxfp4.convert_moe_packed_tensors(
        blocks, scales, dtype=torch.float32
    )
    tree = plain(tmp_path, tensors)
    assert wanted.shape == (3, 128, 20)
    for run in (33, 1 << 30):
        assert same(numbers(tree, "l.gate_up_proj", run), wanted)


def test_experts_as_openai_stores_them_are_not_turned(tmp_path: Path) -> None:
    blocks = levels_of(1, (3, 20, 4, 16), 8).to(torch.uint8)
    scales = levels_of(2, (3, 20, 4), 8).to(torch.uint8)
    tensors = {"l.mlp1_weight.blocks": blocks, "l.mlp1_weight.scales": scales}
    wanted = transformers.integrations.mxfp4.convert_moe_packed_tensors(
        blocks, scales, dtype=torch.float32
    ).transpose(1, 2)
    assert same(numbers(plain(tmp_path, tensors), "l.mlp1_weight"), wanted)


@pytest.mark.parametrize("kind", ["modelopt", "compressed"])
def test_nvfp4_has_two_scales(tmp_path: Path, kind: str) -> None:
    codes = levels_of(1, (6, 64), 4)
    scales, above = floats(2, (6, 4), torch.float32).abs().to(FP8), torch.tensor([0.3])
    tensors = {"l.weight_packed": halves(codes), "l.weight_scale": scales}
    tensors |= {"l.weight_global_scale": above}
    both = scales.float() / above
    if kind == "modelopt":
        tensors = {"l.weight": halves(codes), "l.weight_scale": scales, "l.weight_scale_2": above}
        both = scales.float() * above
    wanted = E2M1[codes] * both[:, torch.arange(64) // 16]
    assert same(numbers(plain(tmp_path, tensors), "l.weight", 50), wanted)


def test_nvfp4_experts_may_be_packed_along_the_rows(tmp_path: Path) -> None:
    codes = levels_of(1, (2, 64, 24), 4)
    scales, above = floats(2, (2, 4, 24), torch.float32).abs().to(FP8), torch.tensor([0.3, 0.7])
    tensors = {
        "l.gate_up_proj": halves(codes.mT).mT,
        "l.gate_up_proj_weight_scale": scales,
        "l.gate_up_proj_weight_scale_2": above,
    }
    both = scales.float() * above[:, None, None]
    wanted = E2M1[codes] * both[:, torch.arange(64) // 16]
    for run in (55, 1 << 30):
        assert same(numbers(plain(tmp_path, tensors), "l.gate_up_proj", run), wanted)


@pytest.mark.parametrize("rows", [4, 44])
def test_bitnet_is_divided_by_its_scale(tmp_path: Path, rows: int) -> None:
    packed = levels_of(1, (rows // 4, 32), 8).to(torch.uint8)
    tensors = {"l.weight": packed, "l.weight_scale": torch.tensor([1.7], dtype=torch.bfloat16)}
    scale = tensors["l.weight_scale"].float()
    levels = torch.cat([(packed >> shift & 3).float() - 1 for shift in (0, 2, 4, 6)])
    tree = plain(tmp_path, tensors, settings("bitnet"))
    assert same(numbers(tree, "l.weight", 50), levels / scale)
    tree = plain(tmp_path / "a", tensors, settings("bitnet", linear_class="autobitlinear"))
    assert same(numbers(tree, "l.weight"), levels * scale)


def test_llm_int8_counts_in_127ths(tmp_path: Path) -> None:
    weight, scales = floats(1, (10, 64), torch.int8), scales_of(2, (10,), torch.float32)
    tensors = {"l.weight": weight, "l.SCB": scales, "l.weight_format": torch.zeros(1).byte()}
    wanted = weight.float() * scales[:, None] * 7.874015718698502e-3
    assert same(numbers(plain(tmp_path, tensors), "l.weight"), wanted)
    tensors["l.weight_format"] = torch.ones(1).byte()
    with pytest.raises(
        ConversionError, match=r"LLM\.int8\(\).*layout that only some GPUs can read"
    ):
        plain(tmp_path / "a", tensors)


def four_bit(
    shape: tuple[int, int], *, is_nested: bool
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return NF4 tensors in blocks of 64, and the values that they represent."""
    size = shape[0] * shape[1]
    codes = levels_of(1, (size + size % 2,), 4)
    values, count = floats(4, (16,), torch.float32), -(-size // 64)
    state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": list(shape)}
    tensors = {"l.weight": (codes[0::2] << 4 | codes[1::2]).to(torch.uint8)[:, None]}
    scales = scales_of(2, (count,), torch.float32)
    if is_nested:
        state |= {"nested_blocksize": 4, "nested_offset": 0.37}
        inner, outer = levels_of(5, (count,), 8), scales_of(6, (-(-count // 4),), torch.float32)
        table = floats(7, (256,), torch.float32)
        scales = table[inner] * outer[torch.arange(count) // 4] + 0.37
        tensors |= {
            "l.weight.absmax": inner.to(torch.uint8),
            "l.weight.nested_absmax": outer,
            "l.weight.nested_quant_map": table,
        }
    else:
        tensors["l.weight.absmax"] = scales
    raw = bytearray(json.dumps(state).encode())
    tensors |= {
        "l.weight.quant_map": values,
        "l.weight.quant_state.bitsandbytes__nf4": torch.frombuffer(raw, dtype=torch.uint8),
    }
    wanted = values[codes[:size]] * scales[torch.arange(size) // 64]
    return tensors, wanted.reshape(shape)


@pytest.mark.parametrize("shape", [(16, 64), (7, 33), (1, 1)])
@pytest.mark.parametrize("is_nested", [True, False])
def test_nf4_is_a_row_of_codes(tmp_path: Path, shape: tuple[int, int], *, is_nested: bool) -> None:
    tensors, wanted = four_bit(shape, is_nested=is_nested)
    tree = plain(tmp_path, tensors)
    for run in (13, 1 << 30):
        assert same(numbers(tree, "l.weight", run), wanted)


def test_nf4_may_be_stored_as_other_numbers(tmp_path: Path) -> None:
    tensors, wanted = four_bit((6, 30), is_nested=False)
    tensors["l.weight"] = tensors["l.weight"].reshape(-1).view(torch.bfloat16)
    assert same(numbers(plain(tmp_path, tensors), "l.weight", 7), wanted)


def test_what_comfyui_rotates_is_refused(tmp_path: Path) -> None:
    tensors = {"l.weight": floats(1, (4, 64)), "l.weight_scale": torch.ones(())}
    for kind, is_known in (("float8_e4m3fn", True), ("convrot_w4a4", False)):
        raw = bytearray(json.dumps({"format": kind}).encode())
        tensors["l.comfy_quant"] = torch.frombuffer(raw, dtype=torch.uint8)
        if is_known:
            wanted = tensors["l.weight"].float()
            assert same(numbers(plain(tmp_path, tensors), "l.weight"), wanted)
        else:
            with pytest.raises(ConversionError, match="convrot"):
                plain(tmp_path / "a", tensors)

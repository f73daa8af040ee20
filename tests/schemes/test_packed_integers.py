"""GPTQ, AWQ, compressed-tensors, ModelOpt and MLX against their own arithmetic, in torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lazy import torch
from packers import awq, gptq, levels_of, numbers, opened, plain, same, scales_of, settings, stream
from weightctl.errors import ConversionError
from weightctl.schemes.dequantize import dequantize_weights

if TYPE_CHECKING:
    from pathlib import Path

INPUTS, OUTPUTS, GROUP = 192, 64, 32


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq_is_number_less_zero_times_scale(tmp_path: Path, bits: int, version: str) -> None:
    levels = levels_of(1, (INPUTS, OUTPUTS), bits)
    zeros = levels_of(2, (INPUTS // GROUP, OUTPUTS), bits)
    scales = scales_of(3, (INPUTS // GROUP, OUTPUTS))
    tensors = gptq(levels, zeros, scales, bits, less=int(version == "gptq"))
    tree = plain(tmp_path, tensors, settings("gptq", group_size=GROUP, checkpoint_format=version))
    index = torch.arange(INPUTS) // GROUP
    wanted = ((levels - zeros[index]).float() * scales[index].float()).T
    assert list(tree.header.tensors) == ["l.weight"]
    assert tree.l.weight.info.shape == (OUTPUTS, INPUTS)
    for run in (577, 1 << 30):
        assert same(numbers(tree, "l.weight", run), wanted)


def test_gptq_takes_inputs_in_any_order(tmp_path: Path) -> None:
    order = torch.randperm(INPUTS, generator=torch.Generator().manual_seed(5)) // GROUP
    levels = levels_of(1, (INPUTS, OUTPUTS), 4)
    zeros = levels_of(2, (INPUTS // GROUP, OUTPUTS), 4)
    scales = scales_of(3, (INPUTS // GROUP, OUTPUTS))
    wanted = ((levels - zeros[order]).float() * scales[order].float()).T
    tree = plain(tmp_path, gptq(levels, zeros, scales, 4, order), in_blocks=True)
    assert same(numbers(tree, "l.weight", 1000), wanted)


def test_gptq_without_zeros_is_symmetric(tmp_path: Path) -> None:
    levels, scales = levels_of(1, (INPUTS, OUTPUTS), 4), scales_of(3, (1, OUTPUTS))
    tensors = gptq(levels, torch.full((1, OUTPUTS), 8), scales, 4)
    del tensors["l.qzeros"]
    tree = plain(tmp_path, tensors, settings("gptq", bits=4))
    assert same(numbers(tree, "l.weight"), ((levels - 8).float() * scales.float()).T)


def test_groups_of_gptq_may_be_cut_off_at_the_end(tmp_path: Path) -> None:
    levels = levels_of(1, (160, OUTPUTS), 4)
    zeros, scales = levels_of(2, (2, OUTPUTS), 4), scales_of(3, (2, OUTPUTS))
    tree = plain(tmp_path, gptq(levels, zeros, scales, 4), settings("gptq", group_size=128))
    index = torch.arange(160) // 128
    wanted = ((levels - zeros[index]).float() * scales[index].float()).T
    assert same(numbers(tree, "l.weight"), wanted)


@pytest.mark.parametrize(
    "order", [torch.full((INPUTS,), 6), torch.full((INPUTS,), -2), torch.arange(INPUTS)]
)
def test_groups_that_do_not_exist_are_refused(tmp_path: Path, order: torch.Tensor) -> None:
    levels = levels_of(1, (INPUTS, OUTPUTS), 4)
    zeros = levels_of(2, (6, OUTPUTS), 4)
    tensors = gptq(levels, zeros, scales_of(3, (6, OUTPUTS)), 4, order)
    with pytest.raises(ConversionError, match=r"l\.weight.*GPTQ 4-bit.*l\.g_idx"):
        plain(tmp_path, tensors)


def test_gptq_in_an_unknown_layout_is_refused(tmp_path: Path) -> None:
    levels, zeros = levels_of(1, (INPUTS, OUTPUTS), 4), levels_of(2, (6, OUTPUTS), 4)
    tensors = gptq(levels, zeros, scales_of(3, (6, OUTPUTS)), 4)
    with pytest.raises(ConversionError, match="marlin"):
        plain(tmp_path, tensors, settings("gptq", checkpoint_format="marlin"))


def test_awq_has_an_order_of_its_own(tmp_path: Path) -> None:
    levels = levels_of(1, (INPUTS, OUTPUTS), 4)
    zeros, scales = levels_of(2, (6, OUTPUTS), 4), scales_of(3, (6, OUTPUTS))
    tensors = {"l.qweight": awq(levels), "l.qzeros": awq(zeros), "l.scales": scales}
    tree = plain(tmp_path, tensors, settings("awq", group_size=GROUP))
    index = torch.arange(INPUTS) // GROUP
    wanted = ((levels - zeros[index]).float() * scales[index].float()).T
    for run in (130, 1 << 30):
        assert same(numbers(tree, "l.weight", run), wanted)


def test_awq_for_vectors_has_padded_scales(tmp_path: Path) -> None:
    levels, zeros = levels_of(1, (OUTPUTS, 256), 4), levels_of(2, (OUTPUTS, 8), 4)
    scales = scales_of(3, (OUTPUTS, 8))
    tensors = {"l.qweight": stream(levels, 4), "l.qzeros": stream(zeros, 4), "l.scales": scales}
    tree = plain(tmp_path, tensors, settings("awq", group_size=64, version="gemv"))
    index = torch.arange(256) // 64
    wanted = (levels - zeros[:, index]).float() * scales[:, index].float()
    assert same(numbers(tree, "l.weight"), wanted)


def pack(
    levels: torch.Tensor, scales: torch.Tensor, bits: int, zeros: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Pack as compressed-tensors does; levels are offset by half their range, and so are zeros."""
    made = {
        "l.weight_packed": stream(levels, bits),
        "l.weight_scale": scales,
        "l.weight_shape": torch.tensor(levels.shape),
    }
    if zeros is not None:
        made["l.weight_zero_point"] = stream(zeros.T, bits).T
    return made


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_compressed_integers_are_rows(tmp_path: Path, bits: int, *, is_symmetric: bool) -> None:
    rows, columns = 21, 96
    levels = levels_of(1, (rows, columns), bits)
    scales = scales_of(3, (rows, 3), torch.bfloat16)
    zeros = None if is_symmetric else levels_of(2, (rows, 3), bits)
    middle = torch.full((rows, 3), 1 << (bits - 1)) if zeros is None else zeros
    tree = plain(tmp_path, pack(levels, scales, bits, zeros))
    index = torch.arange(columns) // 32
    wanted = (levels - middle[:, index]).float() * scales[:, index].float()
    for run in (31, 1 << 30):
        assert same(numbers(tree, "l.weight", run), wanted)


def test_compressed_integers_may_split_no_number_between_words(tmp_path: Path) -> None:
    levels, scales = levels_of(1, (5, 64), 3), scales_of(3, (5, 1))
    words = torch.zeros(5, 7, dtype=torch.int64)
    for column in range(64):
        words[:, column // 10] |= levels[:, column] << 3 * (column % 10)
    tensors = pack(levels, scales, 3) | {"l.weight_packed": words.to(torch.int32)}
    tree = plain(tmp_path, tensors)
    assert same(numbers(tree, "l.weight"), (levels - 4).float() * scales.float())


def test_compressed_integers_may_have_an_order(tmp_path: Path) -> None:
    order = torch.randperm(96, generator=torch.Generator().manual_seed(5)) // 32
    levels, scales = levels_of(1, (21, 96), 4), scales_of(3, (21, 3))
    tensors = pack(levels, scales, 4) | {"l.weight_g_idx": order.to(torch.int32)}
    tree = plain(tmp_path, tensors, in_blocks=True)
    wanted = (levels - 8).float() * scales[:, order].float()
    assert same(numbers(tree, "l.weight", 50), wanted)


def test_an_order_that_was_never_set_is_none(tmp_path: Path) -> None:
    levels, scales = levels_of(1, (21, 96), 4), scales_of(3, (21, 3))
    order = torch.full((96,), -1, dtype=torch.int32)
    tree = plain(tmp_path, pack(levels, scales, 4) | {"l.weight_g_idx": order})
    wanted = (levels - 8).float() * scales[:, torch.arange(96) // 32].float()
    assert same(numbers(tree, "l.weight"), wanted)


def test_layers_of_which_one_says_another_shape_are_refused(tmp_path: Path) -> None:
    levels, scales = levels_of(1, (4, 96), 4), scales_of(3, (4, 1))
    first = {"l.1" + name[1:]: t for name, t in pack(levels, scales, 4).items()}
    second = {"l.2" + name[1:]: t.clone() for name, t in pack(levels, scales, 4).items()}
    second["l.2.weight_shape"] = torch.tensor([4, 95])
    with pytest.raises(ConversionError, match=r"l\.2\.weight_shape.*95"):
        plain(tmp_path, first | second)


def test_two_rows_of_modelopt_are_in_one(tmp_path: Path) -> None:
    levels = levels_of(1, (10, 64), 4) - 8
    scales, factors = scales_of(3, (10, 2), torch.float32), scales_of(4, (64,))
    low, high = levels[0::2] & 15, levels[1::2] & 15
    tensors = {
        "l.weight": (low | high << 4).to(torch.uint8),
        "l.weight_scale": scales,
        "l.pre_quant_scale": factors,
    }
    tree = plain(tmp_path, tensors)
    wanted = levels.float() * scales[:, torch.arange(64) // 32] * factors.float()
    for run in (100, 1 << 30):
        assert same(numbers(tree, "l.weight", run), wanted)


@pytest.mark.parametrize("bits", [3, 4, 6, 8])
def test_mlx_adds_a_bias(tmp_path: Path, bits: int) -> None:
    levels = levels_of(1, (2, 6, 128), bits)
    scales, biases = scales_of(3, (2, 6, 2)), -scales_of(4, (2, 6, 2))
    tensors = {
        "l.weight": stream(levels.reshape(12, 128), bits).reshape(2, 6, -1).view(torch.uint32),
        "l.scales": scales,
        "l.biases": biases,
    }
    tree = plain(tmp_path, tensors, {"group_size": 64, "bits": bits})
    index = torch.arange(128) // 64
    wanted = levels.float() * scales[..., index].float() + biases[..., index].float()
    assert same(numbers(tree, "l.weight", 333), wanted)


def test_a_scale_that_is_a_nan_makes_nans_of_its_group_alone(tmp_path: Path) -> None:
    levels, scales = levels_of(1, (4, 96), 4), scales_of(3, (4, 3))
    scales[1, 2] = float("nan")
    made = numbers(plain(tmp_path, pack(levels, scales, 4)), "l.weight")
    wanted = torch.zeros(4, 96, dtype=torch.bool)
    wanted[1, 64:] = True
    assert bool((torch.isnan(made) == wanted).all())


def test_a_tree_without_parts_is_the_same_tree(tmp_path: Path) -> None:
    weights = opened(tmp_path, {"l.weight": torch.zeros(2, 2), "l.k_scale": torch.ones(1)})
    assert dequantize_weights(weights, in_blocks=True) is weights

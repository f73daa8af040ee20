"""NVFP4 with a scale of the whole weight: the same blocks in directories and in GGUF files."""

from __future__ import annotations

from functools import cache
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest

import weightctl
from each import each
from lazy import load_file, save_file, torch
from llama_cpp import ask
from small_models import qwen2, qwen3moe
from weightctl.errors import ConversionError
from weightctl.translate.tensor_scales import _can_hold
from written_models import SIZES, convert, small_llama, values_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Q = "model.layers.0.self_attn.q_proj"
TOKENS = [1, 5, 9, 200, 17, 33]
EXPERTS: dict[str, Any] = {
    **SIZES, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "head_dim": 64, "num_hidden_layers": 1,
}  # fmt: skip


@cache
def model_in_bf16(make: Callable[..., Any]) -> str:
    sizes = EXPERTS if make is qwen3moe else SIZES
    directory = mkdtemp(prefix="weightctl-nvfp4-")
    make(**sizes).to(torch.bfloat16).save_pretrained(directory)
    return directory


def with_scales(directory: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Change the scales of whole weights."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    save_file(
        {
            name: change(each) if name.endswith("global_scale") else each
            for name, each in tensors.items()
        },
        path,
        metadata={"format": "pt"},
    )


def power_of_two(scale: torch.Tensor) -> torch.Tensor:
    return torch.exp2(torch.log2(scale).floor())


def tensors_of(path: Path) -> dict[str, Any]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def test_gguf_gets_the_same_blocks_and_a_tensor_for_the_scale(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "in", "NVFP4A16")
    done = weightctl.convert(tmp_path / "in", tmp_path / "m.gguf")
    rounded = {item.info.name for item in done.plan.items if not item.is_exact}
    assert len(rounded) == 14
    assert "blk.0.attn_q.weight" in rounded
    stored, made = load_file(tmp_path / "in" / "model.safetensors"), tensors_of(tmp_path / "m.gguf")
    assert made["blk.0.ffn_down.weight"].tensor_type.name == "NVFP4"
    blocks = made["blk.0.ffn_down.weight"].data.reshape(256, -1, 36)
    scales = stored["model.layers.0.mlp.down_proj.weight_scale"].view(torch.uint8).numpy()
    assert np.array_equal(blocks[..., :4].reshape(256, -1), scales)
    whole = stored["model.layers.0.mlp.down_proj.weight_global_scale"].numpy()
    assert np.array_equal(made["blk.0.ffn_down.scale"].data, 1 / whole)

    weightctl.convert(tmp_path / "m.gguf", tmp_path / "plain", dtype="f32")
    wanted, found = values_in(tmp_path / "in"), values_in(tmp_path / "plain")
    assert all(torch.allclose(found[name], wanted[name], rtol=2e-7, atol=0) for name in wanted)
    with pytest.raises(ConversionError, match="the values of 14 tensors would be rounded"):
        weightctl.convert(tmp_path / "in", tmp_path / "exact.gguf", exact=True)


def test_scales_that_are_powers_of_two_are_exact_both_ways(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "in", "NVFP4A16")
    with_scales(tmp_path / "in", power_of_two)
    weightctl.convert(tmp_path / "in", tmp_path / "m.gguf", exact=True)
    weightctl.convert(tmp_path / "in", tmp_path / "same.gguf", quant="NVFP4")
    before, after = tensors_of(tmp_path / "m.gguf"), tensors_of(tmp_path / "same.gguf")
    names = [name for name in before if name.startswith("blk.")]
    assert all(np.array_equal(before[name].data, after[name].data) for name in names)
    done = convert(tmp_path / "m.gguf", tmp_path / "back", "NVFP4A16", exact=True)
    assert all(loss.squared_error == 0 for loss in done.losses.values())
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "back"))
    quantized = [name for name in first if "weight_" in name]
    assert len(quantized) == 3 * 14
    assert all(torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8))
               for name in quantized)  # fmt: skip
    wanted, found = values_in(tmp_path / "in"), values_in(tmp_path / "back")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_other_scales_go_back_to_a_directory_with_the_same_codes(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "in", "NVFP4A16")
    weightctl.convert(tmp_path / "in", tmp_path / "m.gguf")
    done = convert(tmp_path / "m.gguf", tmp_path / "back", "NVFP4A16")
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "back"))
    for name, before in first.items():
        if name.endswith(("weight_packed", "weight_scale")):
            assert torch.equal(before.view(torch.uint8), second[name].view(torch.uint8))
        if name.endswith("global_scale"):
            assert torch.allclose(before, second[name], rtol=1e-7, atol=0)
    assert 0 < done.losses[f"{Q}.weight_packed"].relative_rmse < 1e-7


def test_the_blocks_of_a_directory_are_copied_to_another(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "in", "NVFP4A16")
    convert(tmp_path / "in", tmp_path / "out", "NVFP4", exact=True)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8))
               for name in first)  # fmt: skip


@pytest.mark.parametrize("make", [None, qwen3moe])
def test_llama_cpp_applies_the_scales(tmp_path: Path, make: Callable[..., Any] | None) -> None:
    source = small_llama() if make is None else model_in_bf16(make)
    convert(source, tmp_path / "in", "NVFP4A16")
    weightctl.convert(tmp_path / "in", tmp_path / "m.gguf", dtype=None)
    weightctl.convert(tmp_path / "in", tmp_path / "plain.gguf", dtype="f32")
    names = tensors_of(tmp_path / "m.gguf")
    assert ("blk.0.ffn_up_exps.scale" if make else "blk.0.ffn_up.scale") in names
    found, wanted = (
        ask(tmp_path / name, ("logits", TOKENS))[0] for name in ("m.gguf", "plain.gguf")
    )
    # llama.cpp rounds activations to 8 bits for products with blocks.
    assert np.linalg.norm(found - wanted) < 0.05 * np.linalg.norm(wanted)


def test_each_expert_has_its_own_scale(tmp_path: Path) -> None:
    convert(model_in_bf16(qwen3moe), tmp_path / "in", "NVFP4A16")
    with_scales(tmp_path / "in", power_of_two)
    weightctl.convert(tmp_path / "in", tmp_path / "m.gguf", exact=True)
    scale = tensors_of(tmp_path / "m.gguf")["blk.0.ffn_down_exps.scale"].data
    stored = load_file(tmp_path / "in" / "model.safetensors")
    whole = [
        float(stored[f"model.layers.0.mlp.experts.{number}.down_proj.weight_global_scale"])
        for number in range(4)
    ]
    assert scale.tolist() == [1 / each for each in whole]
    convert(tmp_path / "m.gguf", tmp_path / "back", "NVFP4A16", exact=True)
    wanted, found = values_in(tmp_path / "in"), values_in(tmp_path / "back")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_modelopt_multiplies_by_its_scale(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "in", "NVFP4A16")
    with_scales(tmp_path / "in", power_of_two)
    path = tmp_path / "in" / "model.safetensors"
    renamed: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(path).items():
        if name.endswith("global_scale"):
            renamed[name.replace("weight_global_scale", "weight_scale_2")] = 0.3 / tensor[0]
        else:
            renamed[name.replace("weight_packed", "weight")] = tensor
    save_file(renamed, path, metadata={"format": "pt"})
    weightctl.convert(tmp_path / "in", tmp_path / "m.gguf")
    made = tensors_of(tmp_path / "m.gguf")
    assert made["blk.0.attn_q.scale"].data.tolist() == [float(renamed[f"{Q}.weight_scale_2"])]
    weightctl.convert(tmp_path / "m.gguf", tmp_path / "plain", dtype="f32")
    wanted, found = values_in(tmp_path / "in"), values_in(tmp_path / "plain")
    assert all(torch.allclose(found[name], wanted[name], rtol=2e-7, atol=0) for name in wanted)


def test_weights_whose_scale_llama_cpp_ignores_are_decoded(tmp_path: Path) -> None:
    convert(model_in_bf16(qwen2), tmp_path / "in", "NVFP4A16")
    done = weightctl.convert(tmp_path / "in", tmp_path / "m.gguf", dry_run=True)
    assert not [item for item in done.plan.items if item.info.encoding.name == "NVFP4"]
    assert any("llama.cpp does not apply such a scale there" in note for note in done.notes)


def test_queries_and_keys_with_other_scales_are_rounded_again(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path / "in", "NVFP4A16")
    path = tmp_path / "in" / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{Q}.weight_global_scale"] *= 2
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ConversionError, match="3 weights are already quantized"):
        convert(tmp_path / "in", tmp_path / "out", "NVFP4A16")
    plan = convert(
        tmp_path / "in", tmp_path / "out", "NVFP4A16", allow_requantize=True, dry_run=True
    ).plan
    rounded = {item.weight for item in plan.items if not item.is_exact}
    assert rounded == {f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"}


@each(
    "shape, scales, is_held",
    [
        ((8, 64), 1, True), ((8, 64), 2, False), ((8, 64), 8, False), ((4, 8, 64), 1, True),
        ((4, 8, 64), 4, True), ((4, 8, 64), 2, False), ((4, 8, 64), 8, False),
    ],
)  # fmt: skip
def test_a_scale_is_that_of_a_whole_weight_or_of_each_expert(
    shape: tuple[int, ...], scales: int, is_held: bool
) -> None:
    weight: Any = SimpleNamespace(
        blocks=SimpleNamespace(info=SimpleNamespace(shape=shape)),
        whole=SimpleNamespace(values=np.ones(scales, np.float32)),
    )
    plan: Any = SimpleNamespace(metadata={})
    assert _can_hold(plan, set(), "blk.0.ffn_up.weight", weight) == is_held

"""The libraries of serving engines read what weightctl writes, as weightctl reads it.

compressed-tensors (through transformers), bitsandbytes and MLX are the judges of their own schemes.
AWQ and GPTQ are judged by the arithmetic of AutoAWQ 0.2.7 (`dequantize_gemm`) and of AutoGPTQ 0.7.1
(`qlinear_cuda_old`), transcribed to torch: both were also run on the same files once, with equal
results.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from each import usual
from lazy import load_file, torch, transformers
from written_models import convert, relative_error, small_llama, values_in

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore")

BY_TRANSFORMERS = (
    "FP8", "FP8_DYNAMIC", "FP8_BLOCK", "MXFP8", "W8A16", "W4A16", "W4A16:group=32,symmetric=no",
    "W8A16:group=64,symmetric=no", "NVFP4A16", "MXFP4", "BNB-NF4", "BNB-INT8",
)  # fmt: skip
# Weights of three types, and some that are not quantized.
MIXED = """\
default = "W4A16"
[types]
"down_proj" = "FP8_DYNAMIC"
"layers.0.self_attn.[qkv]_proj" = "W8A16:group=64"
"layers.1.self_attn" = "keep"
"""
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
TOKENS = torch.arange(48)[None] * 5 % 320


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(TOKENS).logits.float()
    return found


@pytest.mark.parametrize("case", usual(["W4A16", "BNB-NF4"], BY_TRANSFORMERS))
def test_transformers_computes_with_the_values_that_weightctl_reads(
    tmp_path: Path, case: str
) -> None:
    convert(small_llama(), tmp_path, case, force=True)
    is_compressed = not case.startswith(("BNB", "FP8_BLOCK"))
    options = {"quantization_config": transformers.CompressedTensorsConfig(dequantize=True)}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.bfloat16, **(options if is_compressed else {})
    )
    wanted = values_in(tmp_path)
    loaded = model.state_dict()
    compared = 0
    for name, tensor in wanted.items():
        if loaded[name].is_floating_point():
            assert torch.equal(loaded[name], tensor.bfloat16()), name
            compared += 1
    assert compared == (len(wanted) if not case.startswith("BNB") else len(wanted) - 14)
    plain = transformers.AutoModelForCausalLM.from_pretrained(small_llama(), dtype=torch.bfloat16)
    plain.load_state_dict(wanted)
    # bitsandbytes has its own products, and rounds activations to INT8 too.
    limit = {"BNB-NF4": 0.03, "BNB-INT8": 0.1}.get(case, 0)
    assert relative_error(logits(model), logits(plain)) <= limit


def test_compressed_tensors_reads_each_group_of_a_model_with_several_types(tmp_path: Path) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig

    recipe, out = tmp_path / "mixed.toml", tmp_path / "out"
    recipe.write_text(MIXED)
    convert(small_llama(), out, str(recipe))
    document = json.loads((out / "config.json").read_text())["quantization_config"]
    config = QuantizationConfig.model_validate(document)
    assert config.format == "mixed-precision"
    stored, wanted = load_file(out / "model.safetensors"), values_in(out)
    modules = [name for group in config.config_groups.values() for name in group.targets]
    assert len(set(modules)) == len(modules) == 10
    assert len([name for name in document["ignore"] if "layers.1.self_attn" in name]) == 4
    for scheme in config.config_groups.values():
        compressor: Any = BaseCompressor.get_value_from_registry(scheme.format)
        for name in scheme.targets:
            parts = {
                key.removeprefix(f"{name}."): value
                for key, value in stored.items()
                if key.startswith(f"{name}.")
            }
            values = compressor.decompress(parts, scheme)["weight"]
            assert torch.equal(values, wanted[f"{name}.weight"].bfloat16()), name


def weights_with(tensors: dict[str, torch.Tensor], ending: str) -> list[str]:
    layers = [name.removesuffix(ending) for name in tensors if name.endswith(ending)]
    assert len(layers) == 14
    return layers


def test_bitsandbytes_has_the_same_codes_and_values_of_nf4(tmp_path: Path) -> None:
    functional = import_module("bitsandbytes.functional")
    convert(small_llama(), tmp_path, "BNB-NF4", force=True)
    before, after = values_in(small_llama()), values_in(tmp_path)
    made = load_file(tmp_path / "model.safetensors")
    for name in weights_with(made, ".absmax"):
        of_weight = {
            key.removeprefix(f"{name}."): tensor
            for key, tensor in made.items()
            if key.startswith(f"{name}.")
        }
        state = functional.QuantState.from_dict(of_weight, device="cpu")
        values = functional.dequantize_4bit(made[name], state)
        assert torch.equal(values, after[name].to(values.dtype))
        codes, own = functional.quantize_4bit(before[name], blocksize=64, quant_type="nf4")
        assert torch.equal(codes, made[name])
        assert torch.equal(own.absmax, made[f"{name}.absmax"])


def test_bitsandbytes_has_the_same_values_of_int8(tmp_path: Path) -> None:
    functional = import_module("bitsandbytes.functional")
    convert(small_llama(), tmp_path, "BNB-INT8", force=True)
    after, made = values_in(tmp_path), load_file(tmp_path / "model.safetensors")
    for layer in weights_with(made, ".SCB"):
        values = functional.int8_vectorwise_dequant(made[f"{layer}.weight"], made[f"{layer}.SCB"])
        assert torch.equal(values, after[f"{layer}.weight"])


@pytest.mark.skipif(sys.platform != "linux", reason="the test extra has MLX for Linux")
@pytest.mark.parametrize(
    ("case", "bits", "group", "mode"),
    [
        ("MLX-4bit", 4, 64, "affine"),
        ("MLX-4bit:group=32", 4, 32, "affine"),
        ("MLX-8bit:group=128", 8, 128, "affine"),
        ("MLX-mxfp4", 4, 32, "mxfp4"),
    ],
)
def test_mlx_dequantizes_the_same_values_and_rounds_no_better(
    tmp_path: Path, case: str, bits: int, group: int, mode: str
) -> None:
    mx = import_module("mlx.core")
    convert(small_llama(), tmp_path, case, force=True)
    before, after = values_in(small_llama()), values_in(tmp_path)
    made = load_file(tmp_path / "model.safetensors")
    settings = {"group_size": group, "bits": bits, "mode": mode}

    def array(tensor: torch.Tensor) -> Any:
        return mx.array((tensor.float() if tensor.is_floating_point() else tensor).numpy())

    for layer in weights_with(made, ".scales"):
        name = f"{layer}.weight"
        packed = mx.array(made[name].view(torch.int32).numpy()).view(mx.uint32)
        beside = [
            array(made[f"{layer}.{part}"]) for part in ("scales", "biases")
            if f"{layer}.{part}" in made
        ]  # fmt: skip
        values = mx.dequantize(packed, *beside, **settings)
        assert np.array_equal(np.array(values.astype(mx.float32)), after[name].numpy())
        theirs = mx.quantize(array(before[name]).astype(mx.bfloat16), **settings)
        held = torch.from_numpy(np.array(mx.dequantize(*theirs, **settings).astype(mx.float32)))
        ours = relative_error(after[name], before[name])
        assert ours <= relative_error(held, before[name]) * 1.001


def unpack_along_rows(words: torch.Tensor, bits: int) -> torch.Tensor:
    shifts = torch.arange(0, 32, bits)
    return (words[:, :, None] >> shifts & (1 << bits) - 1).reshape(words.shape[0], -1)


@pytest.mark.parametrize(
    ("case", "bits", "group", "plus"),
    [
        ("GPTQ", 4, 128, 1),
        ("GPTQ-8bit:group=32", 8, 32, 1),
        ("GPTQ:group=64,symmetric=no", 4, 64, 0),
    ],
)
def test_gptq_has_the_values_of_autogptq(
    tmp_path: Path, case: str, bits: int, group: int, plus: int
) -> None:
    convert(small_llama(), tmp_path, case, force=True)
    after, made = values_in(tmp_path), load_file(tmp_path / "model.safetensors")
    for layer in weights_with(made, ".qweight"):
        codes = unpack_along_rows(made[f"{layer}.qweight"].T, bits).T
        zeros = unpack_along_rows(made[f"{layer}.qzeros"], bits) + plus & (1 << bits) - 1
        order = made[f"{layer}.g_idx"].long()
        assert torch.equal(order, torch.arange(codes.shape[0]) // group)
        values = made[f"{layer}.scales"].float()[order] * (codes - zeros[order])
        assert torch.equal(values.T, after[f"{layer}.weight"])


def test_awq_has_the_values_of_autoawq(tmp_path: Path) -> None:
    convert(small_llama(), tmp_path, "AWQ:group=64", force=True)
    after, made = values_in(tmp_path), load_file(tmp_path / "model.safetensors")
    order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    for layer in weights_with(made, ".qweight"):
        codes, zeros = (
            unpack_along_rows(made[f"{layer}.{part}"], 4)
            .unflatten(1, (-1, 8))[..., order]
            .flatten(1)
            for part in ("qweight", "qzeros")
        )
        index = torch.arange(codes.shape[0]) // 64
        values = (codes - zeros[index]) * made[f"{layer}.scales"].float()[index]
        assert torch.equal(values.T, after[f"{layer}.weight"])


@pytest.mark.parametrize(
    "case",
    ["FP8", "FP8_DYNAMIC", "MXFP8", "W8A16", "W4A16", "W4A16:symmetric=no", "NVFP4A16", "MXFP4"],
)
def test_rounding_is_no_worse_than_that_of_compressed_tensors(tmp_path: Path, case: str) -> None:
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.lifecycle.forward import fake_quantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    convert(small_llama(), tmp_path, case, force=True)
    before, after = values_in(small_llama()), values_in(tmp_path)
    preset = "W4A16_ASYM" if "symmetric=no" in case else case
    args = preset_name_to_scheme(preset, ["Linear"]).weights
    for name in before:
        if "proj" not in name:
            continue
        weight = before[name].bfloat16()
        # Engines join these weights, so they have the same scale of the tensor.
        module = name.split(".")[-2]
        joined = next((each for each in JOINED if module in each), (module,))
        whole = torch.cat([before[name.replace(module, each)].bfloat16() for each in joined])
        groups = weight.unflatten(-1, (-1, args.group_size)) if args.group_size else weight
        axes = (-1,) if args.strategy in {"group", "tensor_group", "channel"} else (0, 1)
        measured = whole if args.strategy == "tensor" else groups
        low, high = measured.amin(axes), measured.amax(axes)
        is_nvidia = args.strategy == "tensor_group"
        above = generate_gparam(whole.min(), whole.max()) if is_nvidia else None
        scale, zero = calculate_qparams(low, high, args, global_scale=above)
        if args.strategy == "channel":
            scale, zero = scale[:, None], zero[:, None]
        held = fake_quantize(weight.float(), scale, zero, args, global_scale=above)
        ours = relative_error(after[name], before[name])
        assert ours <= relative_error(held, before[name]) * 1.003, name

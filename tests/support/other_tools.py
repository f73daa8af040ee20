"""Quantizations of `tiny-llama` that other tools make, or that are made by their algorithms."""

from __future__ import annotations

import json
import shutil
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf

import packers
from lazy import load_file, save_file, torch, transformers
from small_models import write_gguf

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Tensors = dict[str, Any]

MODEL = Path(__file__).parents[2] / "fixtures" / "tiny-llama"
GROUP = 128


@cache
def weights() -> Mapping[str, Any]:
    """Return the model's tensors in float32, by name."""
    return {name: each.float() for name, each in load_file(MODEL / "model.safetensors").items()}


def is_linear(name: str) -> bool:
    return name.endswith("_proj.weight")


def write_directory(out: Path, tensors: Tensors, **settings: Any) -> None:
    """Write tensors beside the model's tokenizer, and its config with the settings."""
    shutil.copytree(MODEL, out)
    kept = {name: each.contiguous() for name, each in tensors.items()}
    save_file(kept, out / "model.safetensors", {"format": "pt"})
    config = json.loads((MODEL / "config.json").read_text()) | settings
    (out / "config.json").write_text(json.dumps(config))


def by_gguf_py(kind: str, out: Path) -> None:
    config = transformers.AutoConfig.from_pretrained(MODEL)
    arrays = {name: each.numpy() for name, each in weights().items()}
    write_gguf(out, "llama", config, arrays, of_matrices=gguf.GGMLQuantizationType[kind])


def by_mlx(settings: dict[str, Any], out: Path) -> None:
    """Quantize what mlx-lm does: embeddings, linear layers and the head."""
    import mlx.core as mx

    core: Any = mx
    made: Tensors = {}
    for name, tensor in weights().items():
        array = core.array(tensor.numpy()).astype(core.bfloat16)
        if "norm" in name:
            made[name] = array
            continue
        parts = core.quantize(array, **settings)
        stem = name.removesuffix("weight")
        for part, each in zip(("weight", "scales", "biases"), parts, strict=False):
            made[stem + part] = each
    shutil.copytree(MODEL, out)
    core.save_safetensors(str(out / "model.safetensors"), made, metadata={"format": "mlx"})
    config = json.loads((MODEL / "config.json").read_text())
    config |= {"quantization": settings, "quantization_config": settings}
    (out / "config.json").write_text(json.dumps(config))


def by_bitsandbytes(settings: dict[str, Any], out: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL,
        dtype=torch.bfloat16,
        device_map="cpu",
        quantization_config=transformers.BitsAndBytesConfig(**settings),
    )
    save_model(model, out)


def save_model(model: Any, out: Path) -> None:
    model.save_pretrained(out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, out / name)


def by_compressed_tensors(scheme: str, out: Path) -> None:
    """Quantize as llm-compressor does without calibration, with min-max observers."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import (
        QuantizationConfig,
        apply_quantization_config,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16)
    groups = {"group_0": preset_name_to_scheme(scheme, ["Linear"])}
    config = QuantizationConfig(config_groups=groups, ignore=["lm_head"])
    apply_quantization_config(model, config)
    for module in model.modules():
        settings = getattr(module, "quantization_scheme", None)
        if settings is None:
            continue
        arguments, weight = settings.weights, module.weight.detach()
        rows, columns = weight.shape
        size = arguments.group_size or columns
        above = None
        if arguments.strategy == "tensor":
            low, high = (edge.reshape(1) for edge in (weight.min(), weight.max()))
        else:
            parts = weight.reshape(rows, columns // size, size)
            low, high = parts.amin(-1), parts.amax(-1)
        if hasattr(module, "weight_global_scale"):
            above = generate_gparam(weight.min(), weight.max())
            module.weight_global_scale.data.copy_(above)
        scale, zero = calculate_qparams(low, high, arguments, global_scale=above)
        module.weight_scale.data.copy_(scale.reshape(module.weight_scale.shape))
        if hasattr(module, "weight_zero_point"):
            module.weight_zero_point.data.copy_(zero.reshape(module.weight_zero_point.shape))
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    save_model(model, out)
    compressor.update_config(out)


def by_gptq(settings: dict[str, Any], out: Path) -> None:
    """Quantize as GPTQ does: rounding errors move to the columns that are not yet rounded."""
    bits, in_order = settings["bits"], settings["desc_act"]
    made: Tensors = {}
    hessians = find_hessians()
    for name, weight in weights().items():
        if not is_linear(name):
            made[name] = weight.bfloat16()
            continue
        hessian = hessians[name.removesuffix(".weight")]
        parts = round_with_feedback(weight, hessian, bits, in_order=in_order)
        for key, each in packers.gptq(*parts[:3], bits, parts[3]).items():
            made[name.replace("weight", key[2:])] = each
    quantization = {"quant_method": "gptq", "group_size": GROUP, "sym": False, **settings}
    write_directory(out, made, quantization_config=quantization, torch_dtype="float16")


@cache
def find_hessians() -> Mapping[str, Any]:
    """Return the sums of the products of each linear layer's inputs, over a text."""
    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL)
    tokens = tokenizer((MODEL / "held-out.txt").read_text(), return_tensors="pt").input_ids
    found: dict[str, Any] = {}

    def add(name: str, _: Any, inputs: tuple[Any, ...]) -> None:
        rows = inputs[0].flatten(0, 1)
        found[name] = found.get(name, 0) + rows.T @ rows

    for name, module in model.named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(partial(add, name))
    with torch.no_grad():
        for part in tokens[0].split(256)[:16]:
            model(part[None])
    return found


def round_with_feedback(
    weight: torch.Tensor, hessian: torch.Tensor, bits: int, *, in_order: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the levels (in, out), the zeros and scales (groups, out) and the groups of columns."""
    columns = weight.shape[1]
    order = torch.argsort(torch.diag(hessian), descending=True) if in_order else None
    order = torch.arange(columns) if order is None else order
    held, hessian = weight[:, order].double(), hessian[order][:, order].double()
    hessian = hessian + 0.01 * torch.diag(hessian).mean() * torch.eye(columns)
    factor = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    levels, scales, zeros = torch.zeros(columns, len(weight)), [], []
    for column in range(columns):
        if column % GROUP == 0:
            scale, zero = find_range(held[:, column : column + GROUP], bits)
            scales.append(scale)
            zeros.append(zero)
        scale, zero = scales[-1].double(), zeros[-1].double()
        value = held[:, column]
        code = torch.clamp(torch.round(value / scale) + zero, 0, 2**bits - 1)
        error = (value - (code - zero) * scale) / factor[column, column]
        held[:, column:] -= error[:, None] * factor[column, column:]
        levels[column] = code
    groups = torch.empty(columns, dtype=torch.int64)
    groups[order] = torch.arange(columns) // GROUP
    unordered = torch.empty_like(levels)
    unordered[order] = levels
    return unordered.long(), torch.stack(zeros).long(), torch.stack(scales), groups


def find_range(values: torch.Tensor, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale, in float16, and the zero of each row."""
    low, high = values.amin(1).clamp(max=0), values.amax(1).clamp(min=0)
    scale = ((high - low) / (2**bits - 1)).half()
    return scale, torch.round(-low / scale.double()).clamp(0, 2**bits - 1)


def by_awq(clip: float, out: Path) -> None:
    """Quantize as AWQ does: columns are multiplied by factors, and what is before them divided."""
    scaled = {name: each.clone() for name, each in weights().items()}
    generator = torch.Generator().manual_seed(6)

    def draw(count: int) -> torch.Tensor:
        activation = torch.exp(1.5 * torch.randn(count, generator=generator))
        factors = activation**0.5
        return factors / (factors.max() * factors.min()).sqrt()

    for layer in range(3):
        of = f"model.layers.{layer}."
        for norm, modules in (
            ("input_layernorm", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            ("post_attention_layernorm", ["mlp.gate_proj", "mlp.up_proj"]),
        ):
            factors = draw(len(scaled[f"{of}{norm}.weight"]))
            scaled[f"{of}{norm}.weight"] /= factors
            for module in modules:
                scaled[f"{of}{module}.weight"] *= factors
        factors = draw(scaled[f"{of}mlp.down_proj.weight"].shape[1])
        scaled[f"{of}mlp.up_proj.weight"] /= factors[:, None]
        scaled[f"{of}mlp.down_proj.weight"] *= factors
    made: Tensors = {}
    for name, weight in scaled.items():
        if not is_linear(name):
            made[name] = weight.half()
            continue
        parts = weight.half().float().unflatten(1, (-1, GROUP))
        limit = parts.abs().amax(2, keepdim=True) * clip
        parts = parts.clamp(-limit, limit)
        scale, zero = (
            torch.stack(each)
            for each in zip(*(find_range(part, 4) for part in parts.unbind(1)), strict=True)
        )
        codes = torch.round(parts / scale.T[..., None].float()) + zero.T[..., None]
        levels = codes.clamp(0, 15).flatten(1).T.long()
        stem = name.removesuffix("weight")
        made |= {
            f"{stem}qweight": packers.awq(levels),
            f"{stem}qzeros": packers.awq(zero.long()),
            f"{stem}scales": scale,
        }
    quantization = {
        "quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True,
        "version": "gemm",
    }  # fmt: skip
    write_directory(out, made, quantization_config=quantization, torch_dtype="float16")


_OF_GGUF_PY = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "BF16", "F16")
_NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_GPTQ = {"bits": 4, "desc_act": False}
# What writes a file or a directory at a path, by name.
TOOLS: dict[str, Callable[[Path], None]] = {
    **{f"gguf-py {kind}": partial(by_gguf_py, kind) for kind in _OF_GGUF_PY},
    "MLX 4 bits": partial(by_mlx, {"group_size": 64, "bits": 4}),
    "MLX 8 bits": partial(by_mlx, {"group_size": 64, "bits": 8}),
    "MLX mxfp4": partial(by_mlx, {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
    "bitsandbytes NF4": partial(by_bitsandbytes, _NF4),
    "bitsandbytes NF4, scales in 8 bits": partial(
        by_bitsandbytes, _NF4 | {"bnb_4bit_use_double_quant": True}
    ),
    "bitsandbytes INT8": partial(by_bitsandbytes, {"load_in_8bit": True}),
    **{
        f"compressed-tensors {scheme}": partial(by_compressed_tensors, scheme)
        for scheme in ("W4A16", "W4A16_ASYM", "W8A16", "FP8", "FP8_DYNAMIC", "NVFP4A16", "MXFP4")
    },
    "GPTQ": partial(by_gptq, _GPTQ),
    "GPTQ in the order of activations": partial(by_gptq, _GPTQ | {"desc_act": True}),
    "GPTQ 8 bits": partial(by_gptq, _GPTQ | {"bits": 8}),
    "AWQ": partial(by_awq, 1.0),
    "AWQ with clipped weights": partial(by_awq, 0.85),
}

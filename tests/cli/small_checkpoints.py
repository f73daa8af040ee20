"""Small checkpoints that have what listings are about."""

from __future__ import annotations

import json
from shutil import copyfile, copytree
from typing import TYPE_CHECKING

from build import F16, F32, Q8_0, Gguf, Tensor, index_of, safetensors_of
from conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FIXTURES = ROOT / "fixtures"
WIDTHS = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2}
Stored = tuple[str, tuple[int, ...], bytes]


def numbers(dtype: str, *shape: int, seed: int = 0) -> Stored:
    """Return a tensor whose bytes depend on the seed."""
    count = WIDTHS[dtype]
    for size in shape:
        count *= size
    return dtype, shape, bytes((seed + place) % 251 for place in range(count))


def write(folder: Path, name: str, tensors: dict[str, Stored], **config: object) -> Path:
    """Write a model's directory: safetensors and a config."""
    path = folder / name
    path.mkdir()
    metadata = {"format": "pt"}
    (path / "model.safetensors").write_bytes(safetensors_of(tensors, metadata))
    (path / "config.json").write_text(json.dumps(config))
    return path


def small(folder: Path, name: str = "small", dtype: str = "BF16") -> Path:
    """Write two layers whose norms are equal, and a rope cache."""
    tensors = {"model.embed_tokens.weight": numbers(dtype, 32, 16)}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.input_layernorm.weight"] = numbers(dtype, 16, seed=7)
        tensors[f"{prefix}.self_attn.q_proj.weight"] = numbers(dtype, 16, 16, seed=layer + 1)
        tensors[f"{prefix}.self_attn.rotary_emb.inv_freq"] = numbers("F32", 8, seed=9)
    tensors["model.norm.weight"] = numbers(dtype, 16, seed=11)
    return write(folder, name, tensors, model_type="llama")


def mixture(folder: Path, name: str = "mixture") -> Path:
    """Write a mixture of eight experts, one of them larger than the rest."""
    tensors = {"model.embed_tokens.weight": numbers("BF16", 32, 16)}
    for layer in range(2):
        prefix = f"model.layers.{layer}.block_sparse_moe"
        tensors[f"{prefix}.gate.weight"] = numbers("BF16", 8, 16)
        for expert in range(8):
            width = 64 if (layer, expert) == (1, 5) else 32
            for part, shape in (("w1", (width, 16)), ("w2", (16, width)), ("w3", (width, 16))):
                tensors[f"{prefix}.experts.{expert}.{part}.weight"] = numbers("BF16", *shape)
    return write(folder, name, tensors, model_type="mixtral")


def awq(folder: Path, name: str = "awq") -> Path:
    """Write two layers of 4-bit weights in AWQ's three tensors each, and a plain embedding."""
    tensors = {"model.embed_tokens.weight": numbers("F16", 64, 256)}
    for layer in range(2):
        for matrix, outputs in (("mlp.up_proj", 512), ("self_attn.q_proj", 256)):
            prefix = f"model.layers.{layer}.{matrix}"
            tensors[f"{prefix}.qweight"] = numbers("I32", 256, outputs // 8, seed=layer)
            tensors[f"{prefix}.qzeros"] = numbers("I32", 2, outputs // 8)
            tensors[f"{prefix}.scales"] = numbers("F16", 2, outputs)
        tensors[f"model.layers.{layer}.input_layernorm.weight"] = numbers("F16", 256)
    quantization = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}
    return write(folder, name, tensors, model_type="llama", quantization_config=quantization)


def gguf(folder: Path, name: str = "small.gguf", order: str = "<") -> Path:
    """Write a GGUF with metadata of every kind, in either byte order."""
    values = {
        "general.architecture": ("string", "llama"),
        "general.name": ("string", "Small Model 1M"),
        "general.file_type": ("u32", 7),
        "llama.rope.freq_base": ("f32", 10000.0),
        "llama.attention.causal": ("bool", True),
        "llama.context_length": ("u64", 1 << 40),
        "tokenizer.ggml.tokens": ("array[string]", [f"tok{n}\n" for n in range(500)]),
        "tokenizer.ggml.scores": ("array[f32]", [0.5, float("-inf"), -3.25]),
        "tokenizer.ggml.empty": ("array[i32]", []),
        "tokenizer.chat_template": ("string", "{% for m in messages %}\n" * 40),
    }
    halves = b"".join((0x3C00 + n).to_bytes(2, "little" if order == "<" else "big")
                      for n in range(64))  # fmt: skip
    scale = (0x3C00).to_bytes(2, "little" if order == "<" else "big")
    tensors = [
        Tensor("token_embd.weight", (4, 16), F16, halves),
        Tensor("blk.0.ffn_up.weight", (2, 32), Q8_0, (scale + bytes(range(32))) * 2),
        Tensor("output_norm.weight", (4,), F32, bytes(16)),
    ]
    path = folder / name
    path.write_bytes(Gguf(order=order).file(tensors, values))
    return path


def adapter(folder: Path, name: str = "adapter") -> Path:
    """Write a LoRA adapter as PEFT does."""
    path = folder / name
    path.mkdir()
    tensors: dict[str, Stored] = {}
    for layer in range(4):
        prefix = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{prefix}.lora_A.weight"] = numbers("F32", 8, 64, seed=layer)
        tensors[f"{prefix}.lora_B.weight"] = numbers("F32", 64, 8, seed=layer)
    (path / "adapter_model.safetensors").write_bytes(safetensors_of(tensors, {"format": "pt"}))
    says = {"base_model_name_or_path": "example/base", "lora_alpha": 16, "r": 8}
    (path / "adapter_config.json").write_text(json.dumps(says))
    return path


def split(folder: Path, name: str = "split") -> Path:
    """Write a checkpoint of two parts and their index."""
    path = folder / name
    path.mkdir()
    parts = [
        {"model.embed_tokens.weight": numbers("BF16", 4096, 16)},
        {"lm_head.weight": numbers("BF16", 4096, 16, seed=3)},
    ]
    weight_map = {}
    for number, tensors in enumerate(parts, 1):
        file = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        (path / file).write_bytes(safetensors_of(tensors))
        weight_map |= dict.fromkeys(tensors, file)
    (path / "model.safetensors.index.json").write_bytes(index_of(weight_map))
    return path


def tied(folder: Path, name: str = "tied") -> Path:
    """Write a checkpoint whose head is its embedding, as huggingface_hub records it."""
    path = folder / name
    path.mkdir()
    tensors = {"model.embed_tokens.weight": numbers("F32", 8, 4)}
    metadata = {"format": "pt", "lm_head.weight": "model.embed_tokens.weight"}
    (path / "model.safetensors").write_bytes(safetensors_of(tensors, metadata))
    return path


def write_all(folder: Path) -> None:
    """Write all of these, the fixtures, and a model whose config does not fit its tensors."""
    for make in (small, mixture, awq, gguf, adapter, split, tied):
        make(folder)
    copyfile(FIXTURES / "training.pt", folder / "training.pt")
    for name in ("tiny-llama", "tiny-adapter"):
        copytree(FIXTURES / name, folder / name)
    config = json.loads((folder / "tiny-llama" / "config.json").read_text())
    copytree(folder / "tiny-llama", folder / "faulty")
    faulty = config | {"torch_dtype": "float16", "eos_token_id": 9999}
    (folder / "faulty" / "config.json").write_text(json.dumps(faulty))

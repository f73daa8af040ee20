"""Small models on which every line of a recipe shows, and importance matrices for them.

The numbers come from the raw stream of a bit generator, which NumPy keeps the same, and are made of
it by integers alone. Nothing here comes from weightctl.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from build import F32, Gguf, Tensor

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

VOCABULARY, KEYS = 6, 3


class Model(NamedTuple):
    """A llama of so many layers, whose rows are `width` long; only its matrices are described."""

    layers: int
    width: int
    experts: int = 0
    is_tied: bool = False

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The matrices by name, in the order of llama.cpp: those of no layer, then by layer."""
        width, rows = self.width, 2 if self.experts else 4
        found: dict[str, tuple[int, ...]] = (
            {} if self.is_tied else {"output.weight": (VOCABULARY, width)}
        )
        found["token_embd.weight"] = (VOCABULARY, width)
        stack, suffix = ((self.experts,), "_exps") if self.experts else ((), "")
        for layer in range(self.layers):
            found |= {
                f"blk.{layer}.attn_k.weight": (KEYS, width),
                f"blk.{layer}.attn_output.weight": (rows, width),
                f"blk.{layer}.attn_q.weight": (rows, width),
                f"blk.{layer}.attn_v.weight": (KEYS, width),
                f"blk.{layer}.ffn_down{suffix}.weight": (*stack, rows, width),
                f"blk.{layer}.ffn_gate{suffix}.weight": (*stack, rows, width),
                f"blk.{layer}.ffn_up{suffix}.weight": (*stack, rows, width),
            }
        return found

    def file(self) -> bytes:
        """Return the model as a GGUF file of F32, with a norm and, with experts, a router."""
        shapes = self.shapes | {"output_norm.weight": (self.width,)}
        if self.experts:
            shapes |= {"blk.0.ffn_gate_inp.weight": (self.experts, self.width)}
        tensors = [Tensor(name, shape, F32, numbers(name, shape).tobytes())
                   for name, shape in shapes.items()]  # fmt: skip
        counts = {
            "block_count": self.layers, "context_length": 64, "embedding_length": self.width,
            "feed_forward_length": self.width, "attention.head_count": 8, "vocab_size": VOCABULARY,
            "attention.head_count_kv": 2, "rope.dimension_count": self.width // 8,
        }  # fmt: skip
        if self.experts:
            counts |= {"expert_count": self.experts, "expert_used_count": 2}
        return Gguf().file(
            tensors,
            {
                "general.architecture": ("string", "llama"),
                "general.file_type": ("u32", 0),
                **{f"llama.{key}": ("u32", count) for key, count in counts.items()},
                "llama.attention.layer_norm_rms_epsilon": ("f32", 1e-5),
            },
        )

    def importance(self) -> dict[str, NDArray[np.float32]]:
        """Return how much each column matters, shape (matrices, columns); not for embeddings."""
        return {
            name: importance(name, (shape[0] if len(shape) == 3 else 1, shape[-1]))
            for name, shape in self.shapes.items()
            if name != "token_embd.weight"
        }


MODELS = {
    "untied": Model(layers=8, width=256),
    "tied, rows of 288": Model(layers=4, width=288, is_tied=True),
    "8 experts": Model(layers=4, width=256, experts=8),
}
# The recipes of llama-quantize that are tested, with their numbers in llama.h, `llama_ftype`.
RECIPES = {
    "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q8_0": 7, "Q2_K": 10, "Q2_K_S": 21, "Q3_K_S": 11,
    "Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18,
    "IQ1_S": 24, "IQ1_M": 31, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ2_S": 28, "IQ2_M": 29, "IQ3_XXS": 23,
    "IQ3_XS": 22, "IQ3_S": 26, "IQ3_M": 27, "IQ4_NL": 25, "IQ4_XS": 30, "TQ1_0": 36, "TQ2_0": 37,
    "MXFP4_MOE": 38, "Q1_0": 40,
}  # fmt: skip


def _stream(name: str, count: int) -> NDArray[np.uint64]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")
    return np.random.PCG64(seed).random_raw(count).astype(np.uint64)


def numbers(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers that lie about as weights do, in a bell around zero, with a few far out."""
    raw = _stream(name, int(np.prod(shape)))
    bell = sum((raw >> np.uint64(16 * part)) & np.uint64(0xFFFF) for part in range(4))
    whole = np.asarray(bell).astype(np.int64) - 2 * 0xFFFF
    whole *= np.where(raw % np.uint64(251) == 0, 6, 1)
    return (whole.astype(np.float32) * np.float32(2.0**-20)).reshape(shape)


def importance(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return positive numbers over four orders of magnitude."""
    raw = _stream(f"importance of {name}", int(np.prod(shape)))
    spread = np.uint64(1) << (raw >> np.uint64(32)) % np.uint64(14)
    whole = (raw & np.uint64(0x3FF)) + np.uint64(1)
    return (whole * spread).astype(np.float32).reshape(shape) * np.float32(2.0**-12)


def write_llama_8b(directory: Path) -> Path:
    """Write a model with the shapes of Llama 3.1 8B, whose tensors have no bytes on the disk."""
    hidden, inner, keys, vocabulary, layers = 4096, 14336, 1024, 128256, 32
    shapes = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    of_layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    for layer in range(layers):
        for name, shape in of_layer.items():
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with open(directory / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": hidden,
        "intermediate_size": inner, "num_attention_heads": 32, "num_key_value_heads": 8,
        "num_hidden_layers": layers, "vocab_size": vocabulary, "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0, "max_position_embeddings": 131_072,
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))
    return directory

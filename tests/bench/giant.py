"""A mixture-of-experts checkpoint of any size, with headers but without data: files are sparse.

The model is a Qwen3 with experts, in Hugging Face's naming convention, in bf16.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.formats import format_module
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FULL", "SMALL", "GiantSizes", "write_giant"]


class GiantSizes(NamedTuple):
    """The sizes of the model, and the number of its files."""

    layers: int
    experts: int
    hidden: int
    expert_width: int
    vocabulary: int
    parts: int


# 100,428 tensors, 1.58 TB.
FULL = GiantSizes(65, 512, 5120, 1536, 151_936, 300)
SMALL = GiantSizes(2, 4, 512, 256, 512, 3)
_HEADS, _KV_HEADS, _HEAD = 64, 8, 128


def write_giant(folder: Path, sizes: GiantSizes) -> int:
    """Write the config, the index and the parts; return the number of bytes of the parts."""
    folder.mkdir()
    config = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "dtype": "bfloat16",
        "hidden_size": sizes.hidden,
        "intermediate_size": 4 * sizes.expert_width,
        "moe_intermediate_size": sizes.expert_width,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "head_dim": _HEAD,
        "num_experts": sizes.experts,
        "num_experts_per_tok": min(8, sizes.experts),
        "norm_topk_prob": True,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    written = format_module("safetensors")
    tensors = [*list_tensors(sizes)]
    nbytes, listed = 0, dict[str, str]()
    for number in range(sizes.parts):
        start, stop = (len(tensors) * each // sizes.parts for each in (number, number + 1))
        layout = written.layout(tensors[start:stop], {})
        name = f"model-{number + 1:05}-of-{sizes.parts:05}.safetensors"
        with (folder / name).open("wb") as file:
            file.write(layout.header)
            file.truncate(layout.nbytes)
        nbytes += layout.nbytes
        listed |= dict.fromkeys((info.name for info in layout.tensors), name)
    total = sum(info.nbytes for info in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": listed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return nbytes


def list_tensors(sizes: GiantSizes) -> Iterator[TensorInfo]:
    """Yield the tensors of the model in the order of its layers."""
    bf16 = ENCODINGS["BF16"]
    hidden, width = sizes.hidden, sizes.expert_width
    yield TensorInfo("model.embed_tokens.weight", (sizes.vocabulary, hidden), bf16)
    attention = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (_HEADS * _HEAD, hidden),
        "self_attn.k_proj": (_KV_HEADS * _HEAD, hidden),
        "self_attn.v_proj": (_KV_HEADS * _HEAD, hidden),
        "self_attn.o_proj": (hidden, _HEADS * _HEAD),
        "self_attn.q_norm": (_HEAD,),
        "self_attn.k_norm": (_HEAD,),
        "post_attention_layernorm": (hidden,),
        "mlp.gate": (sizes.experts, hidden),
    }
    expert = {
        "gate_proj": (width, hidden), "up_proj": (width, hidden), "down_proj": (hidden, width),
    }  # fmt: skip
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}"
        for name, shape in attention.items():
            yield TensorInfo(f"{prefix}.{name}.weight", shape, bf16)
        for number in range(sizes.experts):
            for name, shape in expert.items():
                yield TensorInfo(f"{prefix}.mlp.experts.{number}.{name}.weight", shape, bf16)
    yield TensorInfo("model.norm.weight", (hidden,), bf16)
    yield TensorInfo("lm_head.weight", (sizes.vocabulary, hidden), bf16)

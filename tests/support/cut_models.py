"""Checkpoints to be sharded, most of them without data, and the shards that each rank gets."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

import small_models
from weightctl import WeightData, Weights, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.translate import translate
from weightctl.weights import Extent, Header, TensorInfo
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from small_models import Arrays
    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Part


# Checkpoints to be sharded, most of them without data, and the entries that each rank has.

FAMILIES = (
    "llama", "gpt2", "bert", "gemma2", "gemma3", "qwen2", "qwen3", "phi3", "mixtral", "qwen3moe",
)  # fmt: skip
_TOKENS = {"gpt2": {"bos_token_id": 1, "eos_token_id": 2}}


class HeaderAlone:
    """A checkpoint of which only the header may be read."""

    files = ()

    def __init__(self, header: Header) -> None:
        self.header = header

    def data(self, name: str) -> WeightData:
        raise AssertionError(f"`{name}` was read")

    def read_into(self, name: str, start: int, buffer: memoryview) -> None:
        raise AssertionError(f"{len(buffer)} bytes of `{name}` were read, from {start} on")

    def file_range(self, _: str, /) -> None:
        return None

    def refuse_change(self) -> None:
        pass


def stated(
    tensors: Mapping[str, tuple[tuple[int, ...], str]],
    *,
    directory: Path | None = None,
    config: Mapping[str, Any] | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
) -> Weights:
    """Return a tree of these tensors, with a config.json beside them or metadata."""
    infos = {name: TensorInfo(name, shape, ENCODINGS[kind])
             for name, (shape, kind) in tensors.items()}  # fmt: skip
    files: tuple[str, ...] = ()
    if directory is not None:
        (directory / "config.json").write_text(json.dumps(config))
        files = (str(directory / "model.safetensors"),)
    extents = {name: Extent(0, 0, info.nbytes) for name, info in infos.items()}
    kind = "safetensors" if metadata is None else "gguf"
    return Checkpoint(HeaderAlone(Header(kind, files, infos, extents, metadata or {})))


def with_names(weights: Weights, aliases: Mapping[str, str]) -> Weights:
    """Return the same tree without data, with further names for some tensors."""
    return Checkpoint(HeaderAlone(weights.header._replace(aliases=aliases)))


def with_bytes(weights: Weights) -> Weights:
    """Return a tree of the same tensors in memory, with random bytes."""
    random = np.random.default_rng(9)
    data = {name: WeightData.stored(info, memoryview(random.bytes(info.nbytes)))
            for name, info in weights.header.tensors.items()}  # fmt: skip
    return as_checkpoint(data, weights.metadata)


def gguf_llama(
    *,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 64,
    inner: int = 512,
    hidden: int = 256,
    vocabulary: int = 96,
    layers: int = 1,
    encoding: str = "F16",
) -> Weights:
    """Return a llama in GGUF with a header only; its matrices have the encoding."""
    values: dict[str, Any] = {
        "block_count": layers, "context_length": 128, "embedding_length": hidden,
        "feed_forward_length": inner, "attention.head_count": heads, "vocab_size": vocabulary,
        "attention.head_count_kv": kv_heads, "attention.key_length": head_dim,
        "attention.value_length": head_dim, "rope.dimension_count": head_dim,
    }  # fmt: skip
    metadata = {f"llama.{key}": MetadataValue("u32", value) for key, value in values.items()}
    metadata["llama.attention.layer_norm_rms_epsilon"] = MetadataValue("f32", 1e-5)
    metadata["general.architecture"] = MetadataValue("string", "llama")
    shapes = {"attn_q": (heads * head_dim, hidden), "attn_k": (kv_heads * head_dim, hidden),
              "attn_v": (kv_heads * head_dim, hidden), "attn_output": (hidden, heads * head_dim),
              "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden),
              "ffn_down": (hidden, inner)}  # fmt: skip
    tensors: dict[str, tuple[tuple[int, ...], str]] = {
        "token_embd.weight": ((vocabulary, hidden), encoding)
    }
    for layer in range(layers):
        tensors |= {f"blk.{layer}.{name}.weight": (shape, encoding)
                    for name, shape in shapes.items()}  # fmt: skip
        tensors |= {f"blk.{layer}.{name}.weight": ((hidden,), "F32")
                    for name in ("attn_norm", "ffn_norm")}  # fmt: skip
    tensors["output_norm.weight"] = ((hidden,), "F32")
    tensors["output.weight"] = ((vocabulary, hidden), encoding)
    return stated(tensors, metadata=metadata)


def saved(directory: Path, arrays: Arrays, config: Mapping[str, Any]) -> Weights:
    """Return a checkpoint in Hugging Face's form."""
    directory.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return open_weights(directory)


def of_family(directory: Path, family: str, convention: str, **changes: Any) -> Weights:
    """Return a small random model of a family in a naming convention, `gguf` or `hugging_face`."""
    model = getattr(small_models, family)(**(_TOKENS.get(family, {}) | changes))
    if convention == "gguf":
        return translate(small_models.checkpoint(model), "gguf").weights
    return saved(directory, small_models.arrays(model), model.config.to_dict())


def apart(arrays: Arrays) -> Arrays:
    """Return tensors in which each expert is stored separately."""
    found: Arrays = {}
    for name, array in arrays.items():
        stem = name.removesuffix("gate_up_proj").removesuffix("down_proj")
        if not stem.endswith(".experts."):
            found[name] = array
            continue
        for expert, matrix in enumerate(array):
            gate, up = np.split(matrix, 2)
            parts = {"down": matrix} if name.endswith("down_proj") else {"gate": gate, "up": up}
            found |= {f"{stem}{expert}.{part}_proj.weight": each for part, each in parts.items()}
    return found


def entries(shape: tuple[int, ...], part: Part, axis: int) -> list[int]:
    """Return the entries of an axis that are in a part of a tensor, in order."""
    for cut in part:
        if cut.axis == axis:
            return [entry for start, stop in cut.ranges for entry in range(start, stop)]
    return list(range(shape[axis]))


def held(plan: ShardPlan, name: str, rank: int, axis: int = 0) -> list[int] | None:
    """Return the entries of a tensor's axis that a rank has; None if it has none."""
    part = plan.shardings[name].parts[rank]
    return None if part is None else entries(plan.source.header.tensors[name].shape, part, axis)


def times_held(plan: ShardPlan, name: str, ranks: list[int]) -> np.ndarray[Any, Any]:
    """Return how many of some ranks have each element of a tensor."""
    shape = plan.source.header.tensors[name].shape
    made = np.zeros(shape, np.int64)
    for rank in ranks:
        part = plan.shardings[name].parts[rank]
        if part is not None:
            made[np.ix_(*(entries(shape, part, axis) for axis in range(len(shape))))] += 1
    return made


# The tensors of vLLM's models on each of two ranks, of the small models of one layer.
# Printed by vLLM 0.33.0 itself (commit 4ba787ec9): its model classes were built on a CPU in two
# processes of gloo, from `small_models` with `num_hidden_layers=1`, and `state_dict()` was passed
# through `ShardedStateLoader._filter_subtensors`. Both ranks have the same.

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "bert": "BertModel",
}

_SCALES: dict[str, tuple[int, ...]] = {
    "_k_scale": (),
    "_prob_scale": (),
    "_q_scale": (),
    "_v_scale": (),
}


def _scales(attention: str) -> dict[str, tuple[int, ...]]:
    return {f"{attention}.attn.{name}": shape for name, shape in _SCALES.items()}


STATES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "llama": {"lm_head.weight": (64, 64), "model.embed_tokens.weight": (64, 64),
              "model.layers.0.input_layernorm.weight": (64,),
              "model.layers.0.mlp.down_proj.weight": (64, 48),
              "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
              "model.layers.0.post_attention_layernorm.weight": (64,),
              "model.layers.0.self_attn.o_proj.weight": (64, 32),
              "model.layers.0.self_attn.qkv_proj.weight": (64, 64), "model.norm.weight": (64,),
              **_scales("model.layers.0.self_attn")},
    "mixtral": {"lm_head.weight": (64, 64), "model.embed_tokens.weight": (64, 64),
                "model.layers.0.block_sparse_moe.experts.routed_experts.w13_weight": (4, 96, 64),
                "model.layers.0.block_sparse_moe.experts.routed_experts.w2_weight": (4, 64, 48),
                "model.layers.0.block_sparse_moe.gate.weight": (4, 64),
                "model.layers.0.input_layernorm.weight": (64,),
                "model.layers.0.post_attention_layernorm.weight": (64,),
                "model.layers.0.self_attn.o_proj.weight": (64, 32),
                "model.layers.0.self_attn.qkv_proj.weight": (64, 64), "model.norm.weight": (64,),
                **_scales("model.layers.0.self_attn")},
    "qwen2": {"lm_head.weight": (64, 64), "model.embed_tokens.weight": (64, 64),
              "model.layers.0.input_layernorm.weight": (64,),
              "model.layers.0.mlp.down_proj.weight": (64, 48),
              "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
              "model.layers.0.post_attention_layernorm.weight": (64,),
              "model.layers.0.self_attn.o_proj.weight": (64, 32),
              "model.layers.0.self_attn.qkv_proj.bias": (64,),
              "model.layers.0.self_attn.qkv_proj.weight": (64, 64), "model.norm.weight": (64,),
              **_scales("model.layers.0.self_attn")},
    "qwen3": {"lm_head.weight": (64, 64), "model.embed_tokens.weight": (64, 64),
              "model.layers.0.input_layernorm.weight": (64,),
              "model.layers.0.mlp.down_proj.weight": (64, 48),
              "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
              "model.layers.0.post_attention_layernorm.weight": (64,),
              "model.layers.0.self_attn.k_norm.weight": (32,),
              "model.layers.0.self_attn.o_proj.weight": (64, 64),
              "model.layers.0.self_attn.q_norm.weight": (32,),
              "model.layers.0.self_attn.qkv_proj.weight": (128, 64), "model.norm.weight": (64,),
              **_scales("model.layers.0.self_attn")},
    "qwen3moe": {"lm_head.weight": (64, 64), "model.embed_tokens.weight": (64, 64),
                 "model.layers.0.input_layernorm.weight": (64,),
                 "model.layers.0.mlp.experts.gate.weight": (4, 64),
                 "model.layers.0.mlp.experts.routed_experts.w13_weight": (4, 32, 64),
                 "model.layers.0.mlp.experts.routed_experts.w2_weight": (4, 64, 16),
                 "model.layers.0.post_attention_layernorm.weight": (64,),
                 "model.layers.0.self_attn.k_norm.weight": (32,),
                 "model.layers.0.self_attn.o_proj.weight": (64, 64),
                 "model.layers.0.self_attn.q_norm.weight": (32,),
                 "model.layers.0.self_attn.qkv_proj.weight": (128, 64), "model.norm.weight": (64,),
                 **_scales("model.layers.0.self_attn")},
    "gemma2": {"model.embed_tokens.weight": (64, 64),
               "model.layers.0.input_layernorm.weight": (64,),
               "model.layers.0.mlp.down_proj.weight": (64, 48),
               "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
               "model.layers.0.post_attention_layernorm.weight": (64,),
               "model.layers.0.post_feedforward_layernorm.weight": (64,),
               "model.layers.0.pre_feedforward_layernorm.weight": (64,),
               "model.layers.0.self_attn.o_proj.weight": (64, 64),
               "model.layers.0.self_attn.qkv_proj.weight": (128, 64), "model.norm.weight": (64,),
               **_scales("model.layers.0.self_attn")},
    "gemma3": {"lm_head.weight": (64, 64), "model.layers.0.input_layernorm.weight": (64,),
               "model.layers.0.mlp.down_proj.weight": (64, 48),
               "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
               "model.layers.0.post_attention_layernorm.weight": (64,),
               "model.layers.0.post_feedforward_layernorm.weight": (64,),
               "model.layers.0.pre_feedforward_layernorm.weight": (64,),
               "model.layers.0.self_attn.k_norm.weight": (32,),
               "model.layers.0.self_attn.o_proj.weight": (64, 64),
               "model.layers.0.self_attn.q_norm.weight": (32,),
               "model.layers.0.self_attn.qkv_proj.weight": (128, 64), "model.norm.weight": (64,),
               **_scales("model.layers.0.self_attn")},
    "phi3": {"lm_head.weight": (64, 64), "model.embed_tokens.weight": (64, 64),
             "model.layers.0.input_layernorm.weight": (64,),
             "model.layers.0.mlp.down_proj.weight": (64, 48),
             "model.layers.0.mlp.gate_up_proj.weight": (96, 64),
             "model.layers.0.post_attention_layernorm.weight": (64,),
             "model.layers.0.self_attn.o_proj.weight": (64, 32),
             "model.layers.0.self_attn.qkv_proj.weight": (64, 64), "model.norm.weight": (64,),
             **_scales("model.layers.0.self_attn")},
    "bert": {"model.embeddings.LayerNorm.bias": (64,), "model.embeddings.LayerNorm.weight": (64,),
             "model.embeddings.position_embeddings.weight": (32, 64),
             "model.embeddings.position_ids": (1, 64),
             "model.embeddings.token_type_embeddings.weight": (32, 64),
             "model.embeddings.word_embeddings.weight": (64, 64),
             "model.encoder.layer.0.attention.output.LayerNorm.bias": (64,),
             "model.encoder.layer.0.attention.output.LayerNorm.weight": (64,),
             "model.encoder.layer.0.attention.output.dense.bias": (64,),
             "model.encoder.layer.0.attention.output.dense.weight": (64, 32),
             "model.encoder.layer.0.attention.self.qkv_proj.bias": (96,),
             "model.encoder.layer.0.attention.self.qkv_proj.weight": (96, 64),
             "model.encoder.layer.0.intermediate.dense.bias": (48,),
             "model.encoder.layer.0.intermediate.dense.weight": (48, 64),
             "model.encoder.layer.0.output.LayerNorm.bias": (64,),
             "model.encoder.layer.0.output.LayerNorm.weight": (64,),
             "model.encoder.layer.0.output.dense.bias": (64,),
             "model.encoder.layer.0.output.dense.weight": (64, 48),
             **_scales("model.encoder.layer.0.attention.self")},
}  # fmt: skip


# Small models in vLLM's layout.

ATTENTION = "model.layers.0.self_attn"
_MIXTRAL = {".mlp.": ".block_sparse_moe.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.",
            ".down_proj.": ".w2."}  # fmt: skip


def model(family: str, **changes: Any) -> tuple[Arrays, dict[str, Any]]:
    """Return the tensors and the config.json of a small model of one layer."""
    made = getattr(small_models, family)(**({"num_hidden_layers": 1} | changes))
    return small_models.arrays(made), made.config.to_dict() | {"architectures": [CLASSES[family]]}


def on_disk(arrays: Arrays, family: str) -> Arrays:
    """Return tensors as in checkpoints on the Hub: each expert is stored separately."""
    found = apart(arrays)
    if family != "mixtral":
        return found
    table = re.compile("|".join(map(re.escape, _MIXTRAL)))
    return {table.sub(lambda match: _MIXTRAL[match[0]], name): each for name, each in found.items()}


def planned(folder: Path, family: str, ranks: int = 2, **changes: Any) -> ShardPlan:
    arrays, config = model(family, **changes)
    weights = saved(folder / "in", on_disk(arrays, family), config)
    return shard_plan(weights, Grid(ranks), layout="vllm")

"""Checkpoints to be sharded, most of them without data, and the shards that each rank gets."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from tiny import arrays_of, make_small
from weightctl import WeightData, Weights, open_weights
from weightctl.dtype import ENCODINGS
from weightctl.sharding.planning import shard_plan
from weightctl.split import Grid
from weightctl.weights import Extent, Header, TensorInfo
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Part
    from weightctl.weights.metadata import MetadataValue

    Arrays = dict[str, NDArray[Any]]


# Checkpoints to be sharded, most of them without data, and the entries that each rank has.


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
    model = make_small(
        "llama", "gguf", num_attention_heads=heads, num_key_value_heads=kv_heads,
        head_dim=head_dim, intermediate_size=inner, hidden_size=hidden, vocab_size=vocabulary,
        num_hidden_layers=layers,
    )  # fmt: skip
    tensors = {
        name: (info.shape, encoding if len(info.shape) > 1 else "F32")
        for name, info in model.tree.header.tensors.items()
    }
    return stated(tensors, metadata=model.tree.metadata)


def saved(directory: Path, arrays: Arrays, config: Mapping[str, Any]) -> Weights:
    """Return a checkpoint in Hugging Face's form."""
    directory.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config))
    return open_weights(directory)


def of_family(directory: Path, family: str, convention: str, **changes: Any) -> Weights:
    """Return a small random model of a family in a naming convention, `gguf` or `hugging_face`."""
    model = make_small(family, convention, **changes)
    if convention == "gguf":
        return model.tree
    return saved(directory, arrays_of(model), model.document)


def stack_experts(arrays: Arrays) -> Arrays:
    """Return tensors in which the experts of a layer are stacked, as transformers has them."""
    found: Arrays = {}
    layers: dict[str, dict[str, list[NDArray[Any]]]] = {}
    for name, array in arrays.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            found[name.replace("block_sparse_moe", "mlp")] = array
        else:
            layers.setdefault(match[1], {}).setdefault(match[2], []).append(array)
    for layer, parts in layers.items():
        gate, up, down = (
            np.stack(parts[mixtral if mixtral in parts else qwen])
            for mixtral, qwen in (("w1", "gate_proj"), ("w3", "up_proj"), ("w2", "down_proj"))
        )
        found[f"{layer}.mlp.experts.gate_up_proj"] = np.concatenate([gate, up], 1)
        found[f"{layer}.mlp.experts.down_proj"] = down
    return found


_EXPERT = re.compile(r"(.*)\.(?:mlp|block_sparse_moe)\.experts\.\d+\.(\w+)\.weight")


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

_LAYER = "model.layers.0."
_ATTENTION = {
    f"self_attn.attn.{name}": () for name in ("_k_scale", "_prob_scale", "_q_scale", "_v_scale")
}


def _state(*parts: Mapping[str, tuple[int, ...]], without: str = "") -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of a decoder with these parts of its layer."""
    made = {
        "lm_head.weight": (64, 64), "model.embed_tokens.weight": (64, 64),
        "model.norm.weight": (64,), f"{_LAYER}input_layernorm.weight": (64,),
        f"{_LAYER}post_attention_layernorm.weight": (64,),
        f"{_LAYER}self_attn.o_proj.weight": (64, 32),
        f"{_LAYER}self_attn.qkv_proj.weight": (64, 64),
    }  # fmt: skip
    for part in (_ATTENTION, *parts):
        made |= {_LAYER + name: shape for name, shape in part.items()}
    return {name: shape for name, shape in made.items() if name != without}


_MLP = {"mlp.down_proj.weight": (64, 48), "mlp.gate_up_proj.weight": (96, 64)}
_WIDE = {"self_attn.o_proj.weight": (64, 64), "self_attn.qkv_proj.weight": (128, 64)}
_HEAD_NORMS = {"self_attn.k_norm.weight": (32,), "self_attn.q_norm.weight": (32,)}
_NORMS = {"post_feedforward_layernorm.weight": (64,), "pre_feedforward_layernorm.weight": (64,)}
_BERT = "model.encoder.layer.0."
STATES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "llama": _state(_MLP),
    "mixtral": _state({
        "block_sparse_moe.experts.routed_experts.w13_weight": (4, 96, 64),
        "block_sparse_moe.experts.routed_experts.w2_weight": (4, 64, 48),
        "block_sparse_moe.gate.weight": (4, 64),
    }),
    "qwen2": _state(_MLP, {"self_attn.qkv_proj.bias": (64,)}),
    "qwen3": _state(_MLP, _WIDE, _HEAD_NORMS),
    "qwen3moe": _state(_WIDE, _HEAD_NORMS, {
        "mlp.experts.gate.weight": (4, 64),
        "mlp.experts.routed_experts.w13_weight": (4, 32, 64),
        "mlp.experts.routed_experts.w2_weight": (4, 64, 16),
    }),
    "gemma2": _state(_MLP, _WIDE, _NORMS, without="lm_head.weight"),
    "gemma3": _state(_MLP, _WIDE, _NORMS, _HEAD_NORMS, without="model.embed_tokens.weight"),
    "phi3": _state(_MLP),
    "bert": {
        "model.embeddings.position_embeddings.weight": (32, 64),
        "model.embeddings.position_ids": (1, 64),
        "model.embeddings.token_type_embeddings.weight": (32, 64),
        "model.embeddings.word_embeddings.weight": (64, 64),
        **{
            f"{place}LayerNorm.{kind}": (64,)
            for place in ("model.embeddings.", f"{_BERT}attention.output.", f"{_BERT}output.")
            for kind in ("weight", "bias")
        },
        f"{_BERT}attention.output.dense.bias": (64,),
        f"{_BERT}attention.output.dense.weight": (64, 32),
        f"{_BERT}attention.self.qkv_proj.bias": (96,),
        f"{_BERT}attention.self.qkv_proj.weight": (96, 64),
        f"{_BERT}intermediate.dense.bias": (48,),
        f"{_BERT}intermediate.dense.weight": (48, 64),
        f"{_BERT}output.dense.bias": (64,),
        f"{_BERT}output.dense.weight": (64, 48),
        **{name.replace("self_attn", f"{_BERT}attention.self"): () for name in _ATTENTION},
    },
}  # fmt: skip

# Small models in vLLM's layout.

ATTENTION = "model.layers.0.self_attn"


def model(family: str, **changes: Any) -> tuple[Arrays, dict[str, Any]]:
    """Return the tensors and the config.json of a small model of one layer."""
    made = make_small(family, **({"num_hidden_layers": 1} | changes))
    return arrays_of(made), {**made.document, "architectures": [CLASSES[family]]}


def planned(folder: Path, family: str, ranks: int = 2, **changes: Any) -> ShardPlan:
    arrays, config = model(family, **changes)
    weights = saved(folder / "in", arrays, config)
    return shard_plan(weights, Grid(ranks), layout="vllm")

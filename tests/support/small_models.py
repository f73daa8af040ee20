"""Small models of transformers, in float32, and written as other tools write them."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from arrays import rope_rows, weights_of
from lazy import torch, transformers
from tiny import SMALL
from weightctl import WeightData
from weightctl.families import recognize
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from weightctl.families import RecognizedModel


# Small models created with transformers, and written as other tools write them.

Arrays = dict[str, "NDArray[Any]"]


def make(family: str, **changes: Any) -> Any:
    """Return the random model of transformers with a config of `tiny.SMALL`, in float32."""
    config = transformers.AutoConfig.for_model(**(SMALL[family] | changes))
    if family.startswith("gemma"):
        config._attn_implementation = "eager"
    kind = transformers.AutoModel if family == "bert" else transformers.AutoModelForCausalLM
    torch.manual_seed(6)
    model = kind.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms of ones and biases of zeros would hide swapped tensors.
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


llama, gpt2, bert, gemma2, gemma3 = (
    partial(make, family) for family in ("llama", "gpt2", "bert", "gemma2", "gemma3")
)
qwen2, qwen3, phi3, mixtral, qwen3moe = (
    partial(make, family) for family in ("qwen2", "qwen3", "phi3", "mixtral", "qwen3moe")
)


def arrays(model: Any) -> Arrays:
    """Return a model's tensors, each once, as transformers saves them."""
    tied = getattr(model, "_tied_weights_keys", None) or {}
    skipped = set(tied) if model.config.tie_word_embeddings else set()
    return {
        name: tensor.detach().float().numpy()
        for name, tensor in model.state_dict().items()
        if name not in skipped and not re.search(r"position_ids|\.attn\.(masked_)?bias$", name)
    }


def checkpoint(model: Any) -> RecognizedModel:
    """Return a model as transformers saves it, in memory and in float32."""
    return recognize(weights_of(arrays(model)), model.config.to_dict())


def tokens_below(vocabulary: int, *shape: int) -> NDArray[np.int64]:
    """Return random tokens, by default one sequence of 64."""
    return np.random.default_rng(6).integers(0, vocabulary, shape or (1, 64))


def logits(model: Any, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    with torch.inference_mode():
        return model(torch.from_numpy(tokens), use_cache=False).logits.float().numpy()


def write_gguf(path: Path, kind: str, config: Any, tensors: Arrays) -> None:
    """Write tensors with Hugging Face's names as a GGUF, with the name table of gguf."""
    writer = gguf.GGUFWriter(path, kind)
    table = gguf.get_tensor_name_map(
        next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind),
        config.num_hidden_layers,
    )
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    inner = config.n_inner or 4 * config.n_embd if kind == "gpt2" else config.intermediate_size
    writer.add_feed_forward_length(inner)
    if kind == "llama":
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)
        _add_scaling(writer, config)
    else:
        writer.add_layer_norm_eps(
            config.layer_norm_eps if kind == "bert" else config.layer_norm_epsilon
        )
    if kind == "bert":
        writer.add_causal_attention(value=False)
    for name, array in tensors.items():
        if name.startswith("pooler"):
            continue
        renamed = table.get_name(name, try_suffixes=(".weight", ".bias"))
        assert renamed is not None
        writer.add_tensor(renamed, np.ascontiguousarray(_for_gguf(name, array, config)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_scaling(writer: gguf.GGUFWriter, config: Any) -> None:
    """Write the RoPE scaling; that of llama3 is a tensor, as in llama.cpp's script."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = config.rope_parameters
    if rope["rope_type"] == "llama3":
        exponents = torch.arange(0, config.head_dim, 2) / config.head_dim
        stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
        factors = rope["rope_theta"] ** -exponents / stretched
        writer.add_tensor("rope_freqs.weight", factors.numpy())
    elif rope["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _for_gguf(name: str, array: NDArray[Any], config: Any) -> NDArray[Any]:
    if ".q_proj." in name:
        return rope_rows(array, config.num_attention_heads)
    if ".k_proj." in name:
        return rope_rows(array, config.num_key_value_heads)
    if re.search(r"\.c_(attn|proj|fc)\.weight$", name):
        return array.T
    return array


# Small models as GGUF has them whose rotations are not interleaved, in memory.

_TYPES = {int: "u32", float: "f32", str: "string", list: "array[bool]"}


def in_gguf(model: Any, *, tensors: dict[str, Any] | None = None, **more: Any) -> RecognizedModel:
    """Return a model of transformers' by the names and keys of llama.cpp's script.

    `tensors` are others, by GGUF's names, and `more` other keys, without the architecture and with
    `__` for a dot.
    """
    config = model.config
    kind, count = config.model_type, config.num_hidden_layers
    values = {
        "block_count": count,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(np.float32(config.rms_norm_eps)),
        "rope.freq_base": config.rope_parameters["rope_theta"],
    } | {name.replace("__", "."): value for name, value in more.items()}
    metadata = {f"{kind}.{name}": MetadataValue(_TYPES[type(v)], v) for name, v in values.items()}
    metadata["general.architecture"] = MetadataValue("string", kind)
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    table = gguf.get_tensor_name_map(arch, count)
    renamed = {
        table.get_name(name, (".weight", ".bias")) or "": array
        for name, array in arrays(model).items()
    } | (tensors or {})
    data = {name: WeightData.from_numpy(array, name) for name, array in renamed.items()}
    return recognize(as_checkpoint(data, metadata))


# Small mixtures of experts as GGUF files, by the names and keys of gguf's own writer.


def write(path: Path, model: Any, *, is_stacked: bool = True) -> Path:
    """Write a Mixtral or a Qwen3 as llama.cpp's script does, or with each expert by itself."""
    config = model.config
    is_llama = config.model_type == "mixtral"
    kind = gguf.MODEL_ARCH.LLAMA if is_llama else gguf.MODEL_ARCH.QWEN3MOE
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    if is_llama:
        writer.add_vocab_size(config.vocab_size)
    else:
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    table = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    for name, array in _stacked(arrays(model)).items():
        renamed = table.get_name(name, (".weight",))
        assert renamed is not None
        heads = _rotated_heads(name, config) if is_llama else 0
        values = rope_rows(array, heads) if heads else array
        parts = {renamed: values} if is_stacked else _apart(renamed, values)
        for part, numbers in parts.items():
            writer.add_tensor(part, np.ascontiguousarray(numbers))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _rotated_heads(name: str, config: Any) -> int:
    if ".q_proj." in name:
        return config.num_attention_heads
    return config.num_key_value_heads if ".k_proj." in name else 0


def _stacked(tensors: Arrays) -> Arrays:
    found: Arrays = {}
    for name, array in tensors.items():
        stem = name.removesuffix("gate_up_proj")
        if stem != name:
            gate, up = np.split(array, 2, 1)
            found |= {f"{stem}gate_proj.weight": gate, f"{stem}up_proj.weight": up}
        else:
            found[name.replace("experts.down_proj", "experts.down_proj.weight")] = array
    return found


def _apart(name: str, array: Any) -> Arrays:
    stem = name.removesuffix("_exps.weight")
    if stem == name:
        return {name: array}
    return {f"{stem}.{number}.weight": expert for number, expert in enumerate(array)}

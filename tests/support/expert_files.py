"""Small mixtures of experts as GGUF files, by the names and keys of gguf's own writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

import small_models

if TYPE_CHECKING:
    from pathlib import Path

    from small_models import Arrays


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
    for name, array in _stacked(small_models.arrays(model)).items():
        renamed = table.get_name(name, (".weight",))
        assert renamed is not None
        heads = _rotated_heads(name, config) if is_llama else 0
        values = small_models.rope_rows(array, heads) if heads else array
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
    """Return tensors in which each of an expert's matrices is one with those of the others."""
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

"""Configs of all families as config.json has them, and what becomes of them in GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import ENCODINGS
from weightctl.families import FAMILIES
from weightctl.families.config_writing import model_type_of, to_gguf, to_hugging_face
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.weights.info import TensorInfo
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from weightctl.families.family import Family
    from weightctl.families.modules import Name

Document = dict[str, Any]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 4096,
    "short_factor": [round(1 + n / 48, 4) for n in range(48)],
    "long_factor": [1.08 + n for n in range(48)],
}  # fmt: skip
DOCUMENTS: dict[str, Document] = {
    "llama": {"model_type": "llama"},
    "smollm": {"model_type": "llama", "hidden_size": 576, "num_attention_heads": 9,
               "rms_norm_eps": 1e-5, "num_key_value_heads": 3, "rope_theta": 100000,
               "tie_word_embeddings": True, "vocab_size": 49152, "num_hidden_layers": 30,
               "intermediate_size": 1536},
    "llama with biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "llama with short heads": {"model_type": "llama", "head_dim": 64},
    "llama linear": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    },
    "llama3": {"model_type": "llama", "max_position_embeddings": 131072, "num_key_value_heads": 8,
               "rope_parameters": LLAMA3},
    "llama yarn": {
        "model_type": "llama", "max_position_embeddings": 65536,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 16.0, "beta_fast": 24.0, "beta_slow": 2.0,
            "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
        },
    },
    "llama yarn of another amplitude": {
        "model_type": "llama",
        "rope_parameters": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512,
            "attention_factor": 0.75, "beta_fast": 32.0, "beta_slow": 1.0, "rope_theta": 10000.0,
        },
    },
    "mistral": {"model_type": "mistral", "sliding_window": 4096},
    "mistral nemo": {"model_type": "mistral", "sliding_window": 1024, "head_dim": 128,
                     "hidden_size": 5120, "rope_theta": 1e6},
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 3},
    "gptneox that rotates whole heads": {"model_type": "gpt_neox", "rotary_pct": 1.0,
                                         "num_attention_heads": 16, "hidden_size": 1024},
    "stablelm that rotates whole heads": {"model_type": "stablelm", "partial_rotary_factor": 1.0},
    "bert": {"model_type": "bert"},
    "minilm": {"model_type": "bert", "hidden_size": 384, "num_hidden_layers": 6,
               "intermediate_size": 1536, "type_vocab_size": 3},
    "gpt2": {"model_type": "gpt2"},
    "gpt2 with an output": {"model_type": "gpt2", "n_inner": 99, "tie_word_embeddings": False},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True, "rope_theta": 1e6},
    "qwen3": {"model_type": "qwen3", "head_dim": 64, "num_key_value_heads": 8},
    "qwen3moe": {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
                 "head_dim": 64, "moe_intermediate_size": 256, "norm_topk_prob": True},
    "gemma2": {"model_type": "gemma2", "query_pre_attn_scalar": 256, "sliding_window": 64},
    "gemma3": {
        "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 16,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
        },
    },
    "phi3": {"model_type": "phi3", "sliding_window": 2047},
    "phi4": {"model_type": "phi3", "sliding_window": None, "num_key_value_heads": 8},
    "phi3 long": {"model_type": "phi3", "max_position_embeddings": 131072,
                  "rope_parameters": LONGROPE, "original_max_position_embeddings": 4096},
    "phi4 mini": {"model_type": "phi3", "max_position_embeddings": 131072,
                  "num_attention_heads": 24,
                  "rope_parameters": LONGROPE | {"partial_rotary_factor": 0.75},
                  "original_max_position_embeddings": 4096},
}  # fmt: skip


def find_family(document: Document) -> Family:
    kind = document["model_type"]
    return next(line.load() for line in FAMILIES.values() if kind in line.model_types)


def fields_of(document: Document) -> Any:
    return from_hugging_face(find_family(document), document, "config.json").fields


def made_in_gguf(family: Family, config: Any) -> list[tuple[Name, Any]]:
    made = [(line, line.made(config)) for line in family.names if line.made is not None]
    return [(line, numbers) for line, numbers in made if numbers is not None]


def described(family: Family, fields: Any) -> dict[str, MetadataValue]:
    name = {"general.architecture": MetadataValue("string", family.gguf_name)}
    return name | to_gguf(family, fields)


def crossed(document: Document) -> Document:
    """Return a config.json from the metadata that were made of one."""
    family = find_family(document)
    config = from_hugging_face(family, document, "config.json").config
    metadata = described(family, fields_of(document))
    factors = made_in_gguf(family, config)
    names = [tensor.gguf for tensor in family.tensors(config) if tensor.gguf]
    names += [f"{line.gguf}.weight" for line, _ in factors]
    rows = {
        "token_embd.weight": getattr(config, "vocabulary", 1),
        "token_types.weight": getattr(config, "token_types", 1),
    }
    tensors = {name: TensorInfo(name, (rows.get(name, 1), 1), ENCODINGS["F32"]) for name in names}
    fields = from_gguf(family, metadata, tensors, "model.gguf").fields
    for line, numbers in factors:
        assert line.add_fields is not None
        fields = line.add_fields(fields, numbers)
    return to_hugging_face(family, fields, model_type_of(family, fields))

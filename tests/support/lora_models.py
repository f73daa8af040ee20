"""Tiny models with adapters that PEFT made, and the models that PEFT merged them into."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

if TYPE_CHECKING:
    from pathlib import Path

VOCABULARY = 96


class AdaptedModel(NamedTuple):
    """The paths of a model, an adapter for it, and what PEFT merges them into."""

    base: Path
    adapter: Path
    merged: Path


def make_llama() -> Any:
    """Return a Llama with grouped-query attention and random weights."""
    torch.manual_seed(31)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=False, **sizes, **heads)
    model: Any = LlamaForCausalLM(config)
    return model.float()


def make_mixture() -> Any:
    """Return a mixture of experts, whose files have the weights of each expert apart."""
    torch.manual_seed(31)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
    }
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    config = Qwen3MoeConfig(vocab_size=VOCABULARY, **sizes, **experts, **heads)
    model: Any = Qwen3MoeForCausalLM(config)
    return model.float()


def make_gpt2() -> Any:
    """Return a GPT-2, whose matrices are stored as (inputs, outputs)."""
    torch.manual_seed(31)
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=1, n_head=2))


def adapt(folder: Path, model: Any, **settings: Any) -> AdaptedModel:
    """Save a model, an adapter with random matrices for it, and the merged model."""
    with warnings.catch_warnings():
        # PEFT uses a name that transformers will remove, and informs about what it saves.
        warnings.simplefilter("ignore")
        return _adapt(folder, model, settings)


def load_with_peft(base: Path, adapter: Path) -> Any:
    from peft import PeftModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded: Any = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(base), adapter)
        return loaded.merge_and_unload()


def _adapt(folder: Path, model: Any, settings: dict[str, Any]) -> AdaptedModel:
    from peft import LoraConfig, get_peft_model

    made = AdaptedModel(*(folder / name for name in ("base", "adapter", "merged")))
    model.save_pretrained(made.base)
    adapted: Any = get_peft_model(model, LoraConfig(**settings))
    random = torch.Generator().manual_seed(31)
    for name, tensor in adapted.named_parameters():
        change = torch.randn(tensor.shape, generator=random)
        if "magnitude" in name:
            tensor.data *= 1 + 0.1 * change
        elif "lora_" in name:
            tensor.data = 0.1 * change
        elif "modules_to_save" in name:
            tensor.data += 0.1 * change
    adapted.save_pretrained(made.adapter)
    adapted.merge_and_unload().save_pretrained(made.merged)
    return made

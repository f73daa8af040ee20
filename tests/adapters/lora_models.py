"""Tiny models with adapters that PEFT made, and the models that PEFT merged them into."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import small_models
from lazy import peft, torch, transformers

if TYPE_CHECKING:
    from pathlib import Path


class AdaptedModel(NamedTuple):
    """The paths of a model, an adapter for it, and what PEFT merges them into."""

    base: Path
    adapter: Path
    merged: Path


# A Llama with grouped-query attention, a mixture whose files have the weights of each expert
# separately, and a GPT-2, whose matrices are stored as (inputs, outputs).
make_llama = small_models.llama
make_mixture = partial(
    small_models.qwen3moe, hidden_size=32, intermediate_size=48, moe_intermediate_size=24,
    num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_hidden_layers=1,
)  # fmt: skip
make_gpt2 = partial(small_models.gpt2, n_embd=32, n_layer=1, n_head=2)


def adapt(folder: Path, model: Any, **settings: Any) -> AdaptedModel:
    """Save a model, an adapter with random matrices for it, and the merged model."""
    with warnings.catch_warnings():
        # PEFT uses a name that transformers will remove, and informs about what it saves.
        warnings.simplefilter("ignore")
        return _adapt(folder, model, settings)


def load_with_peft(base: Path, adapter: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = transformers.LlamaForCausalLM.from_pretrained(base)
        return peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()


def _adapt(folder: Path, model: Any, settings: dict[str, Any]) -> AdaptedModel:
    made = AdaptedModel(*(folder / name for name in ("base", "adapter", "merged")))
    model.save_pretrained(made.base)
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(**settings))
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

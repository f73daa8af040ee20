"""Small models of every family in either convention, and with other values in their configs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import small_models
from weightctl.families import recognize
from weightctl.translate import translate

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel

FAMILIES = (
    "llama", "gpt2", "bert", "gemma2", "gemma3", "qwen2", "qwen3", "phi3", "mixtral", "qwen3moe",
)  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


def of_family(family: str) -> RecognizedModel:
    """Return a small model of a family, as transformers saves it."""
    model = getattr(small_models, family)
    made = model(bos_token_id=1, eos_token_id=2) if family == "gpt2" else model()
    return small_models.checkpoint(made)


def as_gguf(checkpoint: RecognizedModel) -> RecognizedModel:
    """Return a checkpoint translated."""
    return recognize(translate(checkpoint, "gguf").weights)


def changed(checkpoint: RecognizedModel, **keys: Any) -> RecognizedModel:
    """Return a checkpoint with other values in its config.json."""
    return recognize(checkpoint.tree, {**checkpoint.document, **keys})


def half_turned(checkpoint: RecognizedModel) -> RecognizedModel:
    """Return a checkpoint whose config.json says that half of each head is rotated."""
    rotations = {**checkpoint.document["rope_parameters"], "partial_rotary_factor": 0.5}
    return changed(checkpoint, rope_parameters=rotations)

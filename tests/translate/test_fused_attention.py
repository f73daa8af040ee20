"""GGUF files with queries, keys and values in one tensor, which llama.cpp also loads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import small_models
from arrays import weights_of
from weightctl.families import recognize
from weightctl.translate import translate
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.tree import Checkpoint

MODELS = {
    "llama": {"attention_bias": True}, "qwen2": {}, "qwen3": {}, "bert": {}, "gemma2": {},
    "gemma3": {}, "mixtral": {},
}  # fmt: skip


def arrays_of(weights: Checkpoint) -> dict[str, Any]:
    return {name: node.data().to_numpy() for name, node in weights.items()}


@pytest.mark.parametrize("name", MODELS)
def test_parts_of_one_tensor_are_those_that_stand_alone(name: str) -> None:
    model = getattr(small_models, name)(**MODELS[name])
    apart = translate(small_models.checkpoint(model), "gguf").weights
    tensors = arrays_of(apart)
    for first in [key for key in tensors if ".attn_q." in key]:
        parts = [tensors.pop(first.replace("attn_q.", f"attn_{part}.")) for part in "qkv"]
        tensors[first.replace("attn_q.", "attn_qkv.")] = np.concatenate(parts)
    held = weights_of(tensors).source
    stored = {key: tensor_of(held, key) for key in tensors}
    fused = Checkpoint(Derived(held, stored, apart.metadata))
    back = arrays_of(translate(recognize(fused), "hugging_face").weights)
    wanted = arrays_of(translate(recognize(apart), "hugging_face").weights)
    assert back.keys() == wanted.keys()
    assert all(np.array_equal(back[key], wanted[key]) for key in wanted)

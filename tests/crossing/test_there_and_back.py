"""A model is the same after conversion from Hugging Face's directory to GGUF and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer

import families
from family_tokenizers import TEXT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# llama.cpp does not use these tensors, and GGUF has no names for them.
LOST = {"bert": {"pooler.dense.weight", "pooler.dense.bias"}}
ONE_MORE = {"gemma2", "gemma3"}  # families whose norms are `1 + w` in GGUF
# Config keys that can differ, and why they do not matter for running the model.
IGNORED = {
    "_name_or_path": "where it was loaded from",
    "transformers_version": "who wrote it",
    "initializer_range": "how numbers are drawn before training",
    "use_cache": "a default of the program that runs it",
    "attention_dropout": "of training",
    "attention_probs_dropout_prob": "of training",
    "hidden_dropout_prob": "of training",
    "attn_pdrop": "of training",
    "embd_pdrop": "of training",
    "resid_pdrop": "of training",
    "classifier_dropout": "of training",
    "router_aux_loss_coef": "of training",
    "router_jitter_noise": "of training",
    "output_router_logits": "of training",
}

# Encoders do not generate; the tokens in GGUF are those that the tokenizer adds around a text.
ENCODERS = {"bos_token_id", "eos_token_id"}


def norms_within_one_rounding(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether the values differ at most by the rounding of `1 + w` in float32."""
    step = np.spacing(1 + np.abs(expected.float().numpy()))
    return bool((np.abs(found.float().numpy() - expected.float().numpy()) <= step).all())


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", families.FAMILIES)
def test_tensors_are_the_same_bytes(
    name: str,
    dtype: str,
    family: Callable[[str], families.Made],
    back: Callable[..., Path],
) -> None:
    expected = load_file(family(name).path.with_name(dtype) / "model.safetensors")
    found = load_file(back(name, dtype) / "model.safetensors")
    assert found.keys() == expected.keys() - LOST.get(name, set())
    for key, tensor in found.items():
        was = expected[key]
        assert tensor.dtype == was.dtype, key
        assert tensor.shape == was.shape, key
        if name in ONE_MORE and "norm" in key:
            assert was.abs().max() > 0.1
            assert norms_within_one_rounding(tensor, was), key
        else:
            assert torch.equal(tensor.view(torch.uint8), was.view(torch.uint8)), key


def document(directory: Path) -> dict[str, Any]:
    found = AutoConfig.from_pretrained(directory).to_dict()
    rope = found.get("rope_parameters") or {}
    if rope.get("type") == rope.get("rope_type"):  # the older name in transformers
        rope.pop("type", None)
    return {key: value for key, value in found.items() if key not in IGNORED}


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_config_says_the_same(
    name: str, family: Callable[[str], families.Made], back: Callable[..., Path]
) -> None:
    found, expected = document(back(name)), document(family(name).path)
    for key in () if name in families.CAUSAL else ENCODERS:
        del found[key], expected[key]
    assert found == expected


@pytest.mark.parametrize("name", families.FAMILIES)
def test_the_tokenizer_does_the_same(
    name: str, family: Callable[[str], families.Made], back: Callable[..., Path]
) -> None:
    before = AutoTokenizer.from_pretrained(family(name).path)
    after = AutoTokenizer.from_pretrained(back(name))
    assert after.get_vocab() == before.get_vocab()
    assert after.special_tokens_map == before.special_tokens_map
    assert after.chat_template == before.chat_template
    specials = "".join(f"{text} a {text}" for text in before.all_special_tokens)
    for text in (TEXT, specials, "", " ", "  a", "a\n"):
        tokens = before(text)["input_ids"]
        assert after(text)["input_ids"] == tokens, text
        for skips in (True, False):
            decoded = before.decode(tokens, skip_special_tokens=skips)
            assert after.decode(tokens, skip_special_tokens=skips) == decoded, text

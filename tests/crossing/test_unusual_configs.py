"""Valid but unusual configs: llama.cpp computes the same as transformers, or they are refused.

A conversion is refused if llama.cpp's model of the family does not support the config.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers

import families
from likelihoods import log_softmax
from llama_cpp import ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

CONTEXT = 64
SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
TYPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "gemma2": {"sliding_window": 16},
    "gemma3_text": {"sliding_window": 16, "num_hidden_layers": 7},
    "phi3": {"sliding_window": None},
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 32, "beta_fast": 8.0, "beta_slow": 2.0,
}  # fmt: skip


def head_dim(name: str, size: int) -> dict[str, Any]:
    is_gemma = name.startswith("gemma")
    return {"head_dim": size} | ({"query_pre_attn_scalar": size} if is_gemma else {})


def made(directory: Path, name: str, changes: dict[str, Any]) -> tuple[list[int], Any]:
    """Save a model without a tokenizer; return tokens and their log-probabilities."""
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.for_model(
        name, **(SIZES | head_dim(name, 16) | TYPES[name] | changes)
    )
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    families.draw(model)
    model.save_pretrained(directory)
    tokens = torch.randint(0, 97, (CONTEXT // 2,)).tolist()
    return tokens, families.log_probabilities(model, tokens)


def agrees(gguf: Path, tokens: list[int], expected: Any, **options: Any) -> bool:
    (found,) = ask(gguf, ("logits", tokens), context=CONTEXT, **options)
    return bool(np.abs(log_softmax(found) - expected)[expected > np.log(1e-3)].max() < 5e-2)


@pytest.mark.parametrize("size", [8, 32])
@pytest.mark.parametrize("name", TYPES)
def test_heads_that_are_not_a_share_of_the_hidden_size(
    name: str, size: int, weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    tokens, expected = made(tmp_path / "source", name, head_dim(name, size))
    done = weightctl("convert", tmp_path / "source", tmp_path / "model.gguf")
    if name in {"qwen2", "phi3"}:
        assert done.returncode == 2
        assert f"llama.cpp does not load this {name}: `head_dim` is {size}" in done.stderr
        assert not (tmp_path / "model.gguf").exists()
    else:
        assert done.returncode == 0, done.stderr
        assert agrees(tmp_path / "model.gguf", tokens, expected)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
        ("phi3", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
        ("gemma3_text", {"num_key_value_heads": 1, "tie_word_embeddings": False}),
        ("qwen3_moe", {"num_key_value_heads": 4, "num_experts_per_tok": 1}),
    ],
)
def test_heads_biases_and_ties(
    name: str, changes: dict[str, Any], weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    tokens, expected = made(tmp_path / "source", name, changes)
    done = weightctl("convert", tmp_path / "source", tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    assert agrees(tmp_path / "model.gguf", tokens, expected)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2"])
def test_the_flags_that_the_note_on_yarn_gives_make_llama_cpp_exact(
    name: str, weightctl: Callable[..., Completed], tmp_path: Path
) -> None:
    tokens, expected = made(tmp_path / "source", name, {"rope_parameters": YARN})
    done = weightctl("convert", tmp_path / "source", tmp_path / "model.gguf")
    assert done.returncode == 0, done.stderr
    assert "`--yarn-beta-fast 8 --yarn-beta-slow 2`" in " ".join(done.stderr.split())
    gguf = tmp_path / "model.gguf"
    assert not agrees(gguf, tokens, expected)
    assert agrees(gguf, tokens, expected, yarn_betas=(8.0, 2.0))

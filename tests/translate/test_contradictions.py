"""Checkpoints that programs would run as different models are refused, or reported."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import small_models
import tiny
from lazy import load_file, save_file, torch
from weightctl import open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import recognize
from weightctl.translate import translate
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from weightctl.translate import Translation

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip


def to_gguf(model: Any) -> Translation:
    return translate(small_models.checkpoint(model), "gguf")


def saved(directory: Path, model: Any, **more: torch.Tensor) -> Path:
    """Save a model, with additional tensors."""
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    save_file(load_file(path) | more, path, metadata={"format": "pt"})
    return path


@pytest.mark.parametrize("change", ["one number", "another shape"])
def test_an_output_that_is_tied_and_differs_is_refused(tmp_path: Path, change: str) -> None:
    model = small_models.llama(tie_word_embeddings=True)
    other = model.model.embed_tokens.weight.detach().clone()
    other[-1, -1] += 1
    other = other if change == "one number" else torch.cat([other, other])
    path = saved(tmp_path / "model", model, **{"lm_head.weight": other})
    with pytest.raises(ArchitectureError, match=r"`lm_head\.weight` .* differs") as caught:
        translate(recognize(open_weights(str(path))), "gguf")
    assert "tie_word_embeddings" in caught.value.hint


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_output_that_is_tied_and_a_copy_is_left_out(tmp_path: Path, dtype: torch.dtype) -> None:
    model = small_models.llama(tie_word_embeddings=True)
    copy = model.model.embed_tokens.weight.detach().to(dtype).clone()
    path = saved(tmp_path / "model", model, **{"lm_head.weight": copy})
    made = translate(recognize(open_weights(str(path))), "gguf")
    assert "output.weight" not in made.weights.header.tensors


@pytest.mark.parametrize("make", [small_models.qwen2, small_models.qwen3, small_models.qwen3moe])
def test_rotations_that_llama_cpp_takes_from_no_tensor_are_refused(
    make: Callable[..., Any],
) -> None:
    with pytest.raises(ArchitectureError, match="llama3"):
        to_gguf(make(rope_parameters=LLAMA3))


@pytest.mark.parametrize("make", [small_models.qwen3, small_models.qwen3moe])
def test_biases_that_llama_cpp_does_not_load_are_refused(make: Callable[..., Any]) -> None:
    with pytest.raises(ArchitectureError, match="attention_output_bias"):
        to_gguf(make(attention_bias=True))


def test_a_gemma2_without_windows_is_refused() -> None:
    with pytest.raises(
        ArchitectureError,
        match="none of its layers has a sliding window",
    ):
        to_gguf(small_models.gemma2(layer_types=["full_attention"] * 4))


def test_a_gemma2_whose_layers_all_have_windows_comes_back(tmp_path: Path) -> None:
    kinds = ["sliding_attention"] * 4
    path = saved(tmp_path / "model", small_models.gemma2(layer_types=kinds))
    there = translate(recognize(open_weights(str(path))), "gguf")
    back = translate(recognize(there.weights), "hugging_face")
    assert json.loads(back.documents["config.json"])["layer_types"] == kinds


@pytest.mark.parametrize(
    ("ends", "flags"),
    [
        ({}, ""),
        ({"beta_fast": 16.0}, "`--yarn-beta-fast 16 --yarn-beta-slow 1`"),
        ({"beta_slow": 2.5}, "`--yarn-beta-fast 32 --yarn-beta-slow 2.5`"),
    ],
)
def test_ends_of_yarn_that_llama_cpp_does_not_read_are_noted_with_its_flags(
    ends: dict[str, float], flags: str
) -> None:
    notes = to_gguf(small_models.llama(rope_parameters=YARN | ends)).notes
    assert any("beta_fast" in note and flags in note for note in notes) == bool(ends)


@pytest.mark.parametrize("head_dim", [8, 32])
@pytest.mark.parametrize("make", [small_models.qwen2, small_models.phi3])
def test_heads_that_llama_cpp_does_not_load_are_refused(
    make: Callable[..., Any], head_dim: int
) -> None:
    with pytest.raises(
        ArchitectureError, match=f": `head_dim` is {head_dim} instead of hidden size / heads"
    ):
        to_gguf(make(head_dim=head_dim))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *((name, "attention.causal", MetadataValue("bool", False))
          for name in ("llama", "qwen3", "gemma2", "gemma3", "phi3", "gpt2")),
        ("qwen3moe", "expert_group_count", MetadataValue("u32", 2)),
    ],
)  # fmt: skip
def test_a_gguf_of_what_is_not_built_is_refused(name: str, key: str, value: MetadataValue) -> None:
    made = to_gguf(getattr(small_models, name)())
    metadata = made.weights.metadata
    assert isinstance(metadata, dict)
    assert f"{name}.{key}" not in metadata
    metadata[f"{name}.{key}"] = value
    with pytest.raises(ArchitectureError, match=key):
        recognize(made.weights)


def test_padding_that_a_gguf_does_not_name_is_none(tmp_path: Path) -> None:
    path = saved(tmp_path / "model", small_models.phi3())
    there = translate(recognize(open_weights(str(path))), "gguf")
    metadata = there.weights.metadata
    assert isinstance(metadata, dict)
    del metadata["tokenizer.weightctl.token_ids"]  # like a file of another tool
    back = translate(recognize(there.weights), "hugging_face")
    assert json.loads(back.documents["config.json"])["pad_token_id"] is None


def test_a_class_that_is_not_of_the_family_is_a_note() -> None:
    made = tiny.make_small("llama", architectures=["LlamaForRanking2"])
    (note,) = [note for note in translate(made, "gguf").notes if "LlamaForRanking2" in note]
    assert note.endswith(" is not a class of llama, and may compute something else")

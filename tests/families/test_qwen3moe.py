"""Qwen3's mixtures of experts in every form that their checkpoints have, against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import Qwen3MoeConfig

import small_models
from arrays import weights_of
from each import each
from runs import executed
from small_models import logits, tokens_below
from weightctl import open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import recognize
from weightctl.families.written import to_gguf
from weightctl.nn.models import build_network

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families import RecognizedModel


@pytest.fixture(scope="module")
def model() -> Any:
    return small_models.qwen3moe()


def assert_same(found: RecognizedModel, model: Any) -> None:
    """Ask that a checkpoint is whole and says what a model of transformers' does."""
    assert (found.missing, found.unexpected) == ([], [])
    tokens = tokens_below(96, 2, 20)
    (ours,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    assert np.abs(ours - logits(model, tokens)).max() < 1e-4


def test_a_qwen3_with_experts_as_transformers_saves_it(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    assert found.family.name == "qwen3moe"
    assert found.weights["layers.1.mlp.experts.2.up.weight"].info.shape == (32, 64)
    assert_same(found, model)


def test_a_qwen3_with_experts_as_transformers_has_it_in_memory(model: Any) -> None:
    assert_same(small_models.checkpoint(model), model)


def test_a_qwen3_with_experts_in_gguf(model: Any, tmp_path: Path) -> None:
    found = recognize(open_weights(small_models.write(tmp_path / "model.gguf", model)))
    assert (found.family.name, found.convention) == ("qwen3moe", "gguf")
    assert_same(found, model)


@each(
    "variation",
    [
        {"norm_topk_prob": False},
        {"use_sliding_window": True, "sliding_window": 8},
        {"attention_bias": True},
        {"tie_word_embeddings": True},
    ],
    ids=["shares among all", "window", "biases", "tied"],
)
def test_the_variations_of_a_qwen3_with_experts(variation: dict[str, Any]) -> None:
    changed = small_models.qwen3moe(**variation)
    assert_same(small_models.checkpoint(changed), changed)


def recognize_changed(**changes: Any) -> RecognizedModel:
    given = {"num_hidden_layers": 1, "model_type": "qwen3_moe"} | changes
    return recognize(weights_of({"one": np.zeros(1, np.float32)}), given)


def test_what_a_config_leaves_out_is_as_transformers_takes_it() -> None:
    found: Any = recognize_changed().config
    expected: Any = Qwen3MoeConfig(num_hidden_layers=1)
    fields = {
        "vocabulary": "vocab_size", "context": "max_position_embeddings", "hidden": "hidden_size",
        "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
        "intermediate": "intermediate_size", "norm_epsilon": "rms_norm_eps",
        "experts": "num_experts", "experts_used": "num_experts_per_tok",
        "expert_intermediate": "moe_intermediate_size", "experts_normalized": "norm_topk_prob",
        "sliding_window": "sliding_window", "tied": "tie_word_embeddings",
    }  # fmt: skip
    assert {ours: getattr(found, ours) for ours in fields} == {
        ours: getattr(expected, theirs) for ours, theirs in fields.items()
    }
    assert found.head_dim == 2048 // 32
    assert found.rope_base == expected.rope_parameters["rope_theta"]


@each("name", ["num_experts", "num_local_experts"])
def test_either_name_of_the_number_of_experts_counts(name: str) -> None:
    config: Any = recognize_changed(**{name: 16}).config
    assert config.experts == 16


@each(
    "changes, message",
    [
        ({"mlp_only_layers": [0]}, "`mlp_only_layers` .*some layers have no experts"),
        ({"decoder_sparse_step": 2}, "`decoder_sparse_step` .*some layers have no experts"),
        ({"num_experts_per_tok": 129}, "129 experts per token are not possible with 128 experts"),
    ],
)
def test_a_config_of_other_mixtures_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        recognize_changed(**changes)


def test_a_config_without_layers_that_lack_experts_is_taken() -> None:
    assert recognize_changed(mlp_only_layers=[], decoder_sparse_step=1).config.layers == 1


def test_shares_among_all_experts_cannot_be_said_in_gguf() -> None:
    kept = recognize_changed(norm_topk_prob=True)
    written = to_gguf(kept.family, kept.fields)
    assert written["qwen3moe.expert_count"].content == 128
    assert written["qwen3moe.expert_feed_forward_length"].content == 768
    other = recognize_changed(norm_topk_prob=False)
    with pytest.raises(ArchitectureError, match="`experts_normalized` is `False`"):
        to_gguf(other.family, other.fields)

"""Mixtral in every form that its checkpoints have, against transformers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from transformers import MixtralConfig

import small_models
from arrays import weights_of
from each import each
from runs import executed
from small_models import logits, tokens_below
from weightctl import open_weights
from weightctl.errors import ArchitectureError
from weightctl.families import recognize
from weightctl.nn.models import build_network
from weightctl.weights import WeightData
from weightctl.weights.from_arrays import as_checkpoint
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.families import RecognizedModel


@pytest.fixture(scope="module")
def model() -> Any:
    return small_models.mixtral()


def assert_same(found: RecognizedModel, model: Any) -> None:
    """Ask that a checkpoint is whole and says what a model of transformers' does."""
    assert (found.missing, found.unexpected) == ([], [])
    tokens = tokens_below(96, 2, 20)
    (ours,) = executed(build_network(found).graph(), tokens, weights=found.weights)
    assert np.abs(ours - logits(model, tokens)).max() < 1e-4


def test_a_mixtral_as_transformers_saves_it(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    found = recognize(open_weights(tmp_path))
    assert found.family.name == "mixtral"
    assert found.weights["layers.1.mlp.experts.2.up.weight"].info.shape == (96, 64)
    assert_same(found, model)


def test_a_mixtral_as_transformers_has_it_in_memory(model: Any) -> None:
    assert_same(small_models.checkpoint(model), model)


@each("is_stacked", [True, False])
def test_a_mixtral_in_gguf_is_a_llama_with_experts(
    is_stacked: bool, model: Any, tmp_path: Path
) -> None:
    path = small_models.write(tmp_path / "model.gguf", model, is_stacked=is_stacked)
    found = recognize(open_weights(path))
    assert (found.family.name, found.convention) == ("mixtral", "gguf")
    assert_same(found, model)


@each(
    "variation",
    [
        {"num_experts_per_tok": 4},
        {"num_local_experts": 1, "num_experts_per_tok": 1},
        {"sliding_window": 8},
        {"tie_word_embeddings": True, "head_dim": 32},
    ],
    ids=["all used", "one", "window", "tied"],
)
def test_the_variations_of_mixtral(variation: dict[str, Any]) -> None:
    changed = small_models.mixtral(**variation)
    assert_same(small_models.checkpoint(changed), changed)


def test_what_a_config_leaves_out_is_as_transformers_takes_it() -> None:
    given: dict[str, Any] = {"num_hidden_layers": 1, "model_type": "mixtral"}
    found: Any = recognize(weights_of({"one": np.zeros(1, np.float32)}), given).config
    expected: Any = MixtralConfig(**given)
    fields = {
        "vocabulary": "vocab_size", "context": "max_position_embeddings", "hidden": "hidden_size",
        "heads": "num_attention_heads", "kv_heads": "num_key_value_heads",
        "intermediate": "intermediate_size", "norm_epsilon": "rms_norm_eps",
        "experts": "num_local_experts", "experts_used": "num_experts_per_tok",
        "sliding_window": "sliding_window", "tied": "tie_word_embeddings",
    }  # fmt: skip
    assert {ours: getattr(found, ours) for ours in fields} == {
        ours: getattr(expected, theirs) for ours, theirs in fields.items()
    }
    assert found.rope_base == expected.rope_parameters["rope_theta"]


def metadata(**changes: int) -> dict[str, MetadataValue]:
    sizes = {
        "vocab_size": 96, "context_length": 128, "embedding_length": 64, "block_count": 2,
        "attention.head_count": 4, "feed_forward_length": 96,
    }  # fmt: skip
    numbers = {
        f"llama.{name}": MetadataValue("u32", size) for name, size in (sizes | changes).items()
    }
    epsilon = {"llama.attention.layer_norm_rms_epsilon": MetadataValue("f32", 1e-5)}
    return {"general.architecture": MetadataValue("string", "llama")} | numbers | epsilon


def family(**changes: int) -> str:
    # As many tensors as layers may be at least.
    one = WeightData.from_numpy(np.zeros(1, np.float32), "one")
    tensors = {f"tensor {number}": one for number in range(200)}
    return recognize(as_checkpoint(tensors, metadata(**changes))).family.name


def test_a_llama_of_no_experts_is_not_a_mixtral() -> None:
    assert family() == "llama"
    assert family(expert_count=0) == "llama"
    assert family(expert_count=4, expert_used_count=2) == "mixtral"


@each(
    "changes, message",
    [
        ({"expert_count": 4}, r"`llama\.expert_used_count` is missing"),
        (
            {"expert_count": 4, "expert_used_count": 5},
            "5 experts per token are not possible with 4 experts",
        ),
        ({"expert_count": 1025, "expert_used_count": 1}, r"`llama\.expert_count` is `1025`"),
        (
            {"expert_count": 1024, "expert_used_count": 1, "block_count": 129},
            "more than the limit of",
        ),
    ],
)
def test_counts_of_experts_that_cannot_be_are_refused(
    changes: dict[str, int], message: str
) -> None:
    with pytest.raises(ArchitectureError, match=message):
        family(**changes)


@each("count", [3, 5])
def test_stacks_of_more_or_fewer_experts_than_there_are_are_refused(
    count: int, model: Any, tmp_path: Path
) -> None:
    stored = open_weights(small_models.write(tmp_path / "model.gguf", model))
    tensors = {name: node.data() for name, node in stored.items()}
    changed = stored.metadata | {"llama.expert_count": MetadataValue("u32", count)}
    with pytest.raises(ArchitectureError, match=r"ffn_gate_(exps|inp)"):
        build_network(recognize(as_checkpoint(tensors, changed)))

"""What two configs say otherwise is told by its key, as either dialect spells it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import small_models
from weightctl.archs import recognize
from weightctl.translation import translate
from weightctl.verify.diverging.configs import corrected, differences

if TYPE_CHECKING:
    from weightctl.archs import Checkpoint

FAMILIES = (
    "llama", "gpt2", "bert", "gemma2", "gemma3", "qwen2", "qwen3", "phi3", "mixtral", "qwen3moe",
)  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


def _gguf(checkpoint: Checkpoint) -> Checkpoint:
    return recognize(translate(checkpoint, "gguf").weights)


def _changed(checkpoint: Checkpoint, **keys: Any) -> Checkpoint:
    return recognize(checkpoint.tree, {**checkpoint.document, **keys})


def _keys(subject: Checkpoint, reference: Checkpoint) -> list[str]:
    return [each.problem.where for each in differences(subject, reference)]


@pytest.fixture(scope="module")
def llama() -> Checkpoint:
    return small_models.checkpoint(small_models.llama())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_in_both_dialects_has_one_config(family: str) -> None:
    model = getattr(small_models, family)
    made = model(bos_token_id=1, eos_token_id=2) if family == "gpt2" else model()
    checkpoint = small_models.checkpoint(made)
    gguf = _gguf(checkpoint)
    assert _keys(checkpoint, gguf) == _keys(gguf, checkpoint) == []


@pytest.mark.parametrize(
    ("key", "value", "in_gguf"),
    [
        ("rms_norm_eps", 1e-2, "llama.attention.layer_norm_rms_epsilon"),
        ("num_attention_heads", 8, "llama.attention.head_count"),
        ("num_hidden_layers", 1, "llama.block_count"),
    ],
)
def test_a_key_that_differs_is_named_as_the_checkpoint_spells_it(
    llama: Checkpoint, key: str, value: float, in_gguf: str
) -> None:
    changed = _changed(llama, **{key: value})
    assert _keys(changed, llama) == [key]
    assert _keys(_gguf(llama), changed) == [in_gguf]


def test_the_cause_has_both_values(llama: Checkpoint) -> None:
    (found,) = differences(_changed(llama, rms_norm_eps=1e-2), llama)
    cause = found.problem.cause
    assert cause is not None
    assert cause.name == "config"
    assert "is 0.01, and 1e-06 in the reference" in cause.text
    assert found.problem.text == "differs from the reference's"


def test_a_value_that_follows_from_one_that_differs_is_not_told(llama: Checkpoint) -> None:
    changed = _changed(llama, num_attention_heads=2, num_key_value_heads=1, head_dim=None)
    assert _keys(changed, llama) == ["num_attention_heads", "num_key_value_heads"]


def test_a_part_of_a_head_that_is_turned_is_told() -> None:
    checkpoint = small_models.checkpoint(small_models.phi3())
    rotations = {**checkpoint.document["rope_parameters"], "partial_rotary_factor": 0.5}
    changed = _changed(checkpoint, rope_parameters=rotations)
    made = corrected(changed, differences(changed, checkpoint))
    assert made is not None
    assert made.config == checkpoint.config != changed.config


def test_a_rotation_in_older_words_is_told_in_these(llama: Checkpoint) -> None:
    older = _changed(llama, rope_parameters=None, rope_theta=500.0)
    assert _keys(older, llama) == ["rope_theta"]


def test_rotations_stretched_alike_are_alike_whichever_way_that_is_said() -> None:
    checkpoint = small_models.checkpoint(small_models.llama(rope_parameters=LLAMA3))
    gguf = _gguf(checkpoint)
    assert _keys(checkpoint, gguf) == _keys(gguf, checkpoint) == []


def test_rotations_stretched_otherwise_are_told() -> None:
    checkpoint = small_models.checkpoint(small_models.llama(rope_parameters=LLAMA3))
    other = _changed(checkpoint, rope_parameters=LLAMA3 | {"factor": 4.0})
    assert _keys(other, checkpoint) == ["rope_parameters.factor"]


def test_the_length_of_texts_changes_nothing_where_positions_have_no_table(
    llama: Checkpoint,
) -> None:
    assert _keys(_changed(llama, max_position_embeddings=99), llama) == []


def test_a_corrected_checkpoint_has_the_references_config(llama: Checkpoint) -> None:
    changed = _changed(llama, num_attention_heads=2, num_key_value_heads=1, head_dim=None)
    made = corrected(changed, differences(changed, llama))
    assert made is not None
    assert made.config == llama.config

"""What two configs say otherwise is told by its key, as either naming convention spells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import small_models
from both_conventions import FAMILIES, LLAMA3, as_gguf, changed, half_turned, of_family
from weightctl.verify.compare.configs import correct, find_differences

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel


def _keys(subject: RecognizedModel, reference: RecognizedModel) -> list[str]:
    return [each.problem.where for each in find_differences(subject, reference)]


@pytest.fixture(scope="module")
def llama() -> RecognizedModel:
    return small_models.checkpoint(small_models.llama())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_in_both_conventions_has_one_config(family: str) -> None:
    checkpoint = of_family(family)
    gguf = as_gguf(checkpoint)
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
    llama: RecognizedModel, key: str, value: float, in_gguf: str
) -> None:
    other = changed(llama, **{key: value})
    assert _keys(other, llama) == [key]
    assert _keys(as_gguf(llama), other) == [in_gguf]


def test_the_cause_has_both_values(llama: RecognizedModel) -> None:
    (found,) = find_differences(changed(llama, rms_norm_eps=1e-2), llama)
    cause = found.problem.cause
    assert cause is not None
    assert cause.name == "config"
    assert "is 0.01 here and 1e-06 in the reference" in cause.text
    assert found.problem.text == "differs from the reference"


def test_a_value_that_follows_from_one_that_differs_is_not_told(llama: RecognizedModel) -> None:
    other = changed(llama, num_attention_heads=2, num_key_value_heads=1, head_dim=None)
    assert _keys(other, llama) == ["num_attention_heads", "num_key_value_heads"]


def test_a_part_of_a_head_that_is_turned_is_reported() -> None:
    checkpoint = of_family("phi3")
    other = half_turned(checkpoint)
    made = correct(other, find_differences(other, checkpoint))
    assert made is not None
    assert made.config == checkpoint.config != other.config


def test_a_rotation_in_older_words_is_told_in_these(llama: RecognizedModel) -> None:
    older = changed(llama, rope_parameters=None, rope_theta=500.0)
    assert _keys(older, llama) == ["rope_theta"]


def test_rotations_stretched_alike_are_alike_whichever_way_that_is_written() -> None:
    checkpoint = small_models.checkpoint(small_models.llama(rope_parameters=LLAMA3))
    gguf = as_gguf(checkpoint)
    assert _keys(checkpoint, gguf) == _keys(gguf, checkpoint) == []


def test_rotations_stretched_otherwise_are_reported() -> None:
    checkpoint = small_models.checkpoint(small_models.llama(rope_parameters=LLAMA3))
    other = changed(checkpoint, rope_parameters=LLAMA3 | {"factor": 4.0})
    assert _keys(other, checkpoint) == ["rope_parameters.factor"]


def test_the_length_of_texts_changes_nothing_where_positions_have_no_table(
    llama: RecognizedModel,
) -> None:
    assert _keys(changed(llama, max_position_embeddings=99), llama) == []


def test_a_corrected_checkpoint_has_the_references_config(llama: RecognizedModel) -> None:
    other = changed(llama, num_attention_heads=2, num_key_value_heads=1, head_dim=None)
    made = correct(other, find_differences(other, llama))
    assert made is not None
    assert made.config == llama.config

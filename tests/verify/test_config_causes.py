"""Config keys that cause differences, and where checkpoints state them."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from tiny import SMALL, as_gguf, changed, make_small
from weightctl.verify.compare.configs import correct, find_differences
from weightctl.verify.config_keys import find_spelling

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "rope_theta": 10000.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip


def _half_turned(checkpoint: RecognizedModel) -> RecognizedModel:
    """Return a checkpoint whose config.json states that half of each head is rotated."""
    rotations = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    return changed(checkpoint, rope_parameters=rotations)


def _keys(subject: RecognizedModel, reference: RecognizedModel) -> list[str]:
    return [each.problem.where for each in find_differences(subject, reference)]


@pytest.fixture(scope="module")
def llama() -> RecognizedModel:
    return make_small("llama", head_dim=16)


@pytest.mark.parametrize("family", SMALL)
def test_a_model_in_both_conventions_has_one_config(family: str) -> None:
    checkpoint = make_small(family)
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
    checkpoint = make_small("phi3")
    other = _half_turned(checkpoint)
    made = correct(other, find_differences(other, checkpoint))
    assert made is not None
    assert made.config == checkpoint.config != other.config


def test_a_rotation_in_older_words_is_told_in_these(llama: RecognizedModel) -> None:
    older = changed(llama, rope_parameters=None, rope_theta=500.0)
    assert _keys(older, llama) == ["rope_theta"]


def test_rotations_stretched_alike_are_alike_whichever_way_that_is_written() -> None:
    checkpoint = make_small("llama", rope_parameters=LLAMA3)
    gguf = as_gguf(checkpoint)
    assert _keys(checkpoint, gguf) == _keys(gguf, checkpoint) == []


def test_rotations_stretched_otherwise_are_reported() -> None:
    checkpoint = make_small("llama", rope_parameters=LLAMA3)
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


SHARE = "rope_parameters.partial_rotary_factor"


def compare(subject: RecognizedModel, reference: RecognizedModel) -> dict[str, str]:
    problems = [each.problem for each in find_differences(subject, reference)]
    return {each.where: "" if each.cause is None else each.cause.text for each in problems}


def _words(checkpoint: RecognizedModel) -> set[str]:
    """Return the keys of a family in a checkpoint's convention, without what they stand in."""
    lines = checkpoint.family.keys
    if checkpoint.convention == "gguf":
        keys = {key.gguf.format(arch=checkpoint.family.gguf_name) for key in lines}
        seen = {key.seen.tensor for key in lines if key.seen is not None}
        return keys | seen | {"general.architecture"}
    return {key.hugging_face.split(".")[-1] for key in lines} | {"model_type"}


@pytest.mark.parametrize("convention", ["hugging_face", "gguf"])
@pytest.mark.parametrize("family", SMALL)
def test_each_field_is_told_by_a_key_of_the_convention(family: str, convention: str) -> None:
    checkpoint = make_small(family, convention)
    config: Any = checkpoint.config
    names = [each.name for each in fields(config)]
    names += [key.field for key in checkpoint.family.keys if key.field.startswith("scaling.")]
    keys = {name: find_spelling(checkpoint, name).key for name in names}
    words = _words(checkpoint) - {""}
    is_plain = convention == "gguf"
    wrong = {
        name: key
        for name, key in keys.items()
        if (key if is_plain else key.split(".")[-1]) not in words
    }
    assert not wrong


def test_a_share_of_a_head_is_told_by_its_key() -> None:
    checkpoint = make_small("phi3")
    half = _half_turned(checkpoint)
    assert compare(half, checkpoint) == {SHARE: f"`{SHARE}` is 0.5 here and 1 in the reference"}
    older = changed(checkpoint, rope_parameters=None, partial_rotary_factor=0.5)
    assert list(compare(older, checkpoint)) == ["partial_rotary_factor"]


def test_a_share_and_the_number_that_it_makes_are_told_as_each_says_it() -> None:
    checkpoint = make_small("phi3")
    half = _half_turned(checkpoint)
    share = f"`{SHARE}` sets the rope dimensions to 8"
    count = "`phi3.rope.dimension_count` is 16"
    gguf = as_gguf(checkpoint)
    assert compare(half, gguf) == {SHARE: f"{share}, and {count} in the reference"}
    assert compare(gguf, half) == {
        "phi3.rope.dimension_count": f"{count}, and {share} in the reference"
    }


def test_a_share_of_a_head_is_reported_beside_other_keys() -> None:
    checkpoint = make_small("phi3")
    both = changed(_half_turned(checkpoint), rms_norm_eps=1e-2)
    assert sorted(compare(both, checkpoint)) == ["rms_norm_eps", SHARE]


def test_what_no_key_of_gguf_says_is_told_by_the_architecture() -> None:
    checkpoint = make_small("llama")
    differences = compare(as_gguf(checkpoint), changed(checkpoint, hidden_act="relu"))
    assert differences == {
        "general.architecture": "`general.architecture` sets the activation to 'silu', "
        "and `hidden_act` is 'relu' in the reference"
    }


def test_two_fields_that_one_key_says_are_reported_once() -> None:
    checkpoint = make_small("gemma3")
    wider = changed(checkpoint, sliding_window=checkpoint.document["sliding_window"] * 2)
    one, other = as_gguf(checkpoint), as_gguf(wider)
    assert list(compare(one, other)) == ["gemma3.attention.sliding_window"]
    made = correct(one, find_differences(one, other))
    assert made is not None
    assert made.config == other.config


def test_factors_that_gguf_has_in_a_tensor_are_told_by_that() -> None:
    checkpoint = make_small("llama", rope_parameters=LLAMA3)
    other = changed(checkpoint, rope_parameters=LLAMA3 | {"low_freq_factor": 2.0})
    assert list(compare(as_gguf(checkpoint), other)) == ["rope_freqs.weight"]

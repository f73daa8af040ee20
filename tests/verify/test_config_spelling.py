"""A field of a config is called as a checkpoint spells what says it, never by our own word."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

import small_models
from both_conventions import FAMILIES, LLAMA3, as_gguf, changed, half_turned, of_family
from weightctl.verify.compare.configs import correct, find_differences
from weightctl.verify.config_keys import find_spelling

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel

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
@pytest.mark.parametrize("family", FAMILIES)
def test_each_field_is_told_by_a_key_of_the_convention(family: str, convention: str) -> None:
    checkpoint = of_family(family) if convention == "hugging_face" else as_gguf(of_family(family))
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
    checkpoint = of_family("phi3")
    half = half_turned(checkpoint)
    assert compare(half, checkpoint) == {SHARE: f"`{SHARE}` is 0.5 here and 1 in the reference"}
    older = changed(checkpoint, rope_parameters=None, partial_rotary_factor=0.5)
    assert list(compare(older, checkpoint)) == ["partial_rotary_factor"]


def test_a_share_and_the_number_that_it_makes_are_told_as_each_says_it() -> None:
    checkpoint = of_family("phi3")
    half = half_turned(checkpoint)
    share = f"`{SHARE}` makes the rope dimensions 8"
    count = "`phi3.rope.dimension_count` is 16"
    gguf = as_gguf(checkpoint)
    assert compare(half, gguf) == {SHARE: f"{share}, and {count} in the reference"}
    assert compare(gguf, half) == {
        "phi3.rope.dimension_count": f"{count}, and {share} in the reference"
    }


def test_a_share_of_a_head_is_reported_beside_other_keys() -> None:
    checkpoint = of_family("phi3")
    both = changed(half_turned(checkpoint), rms_norm_eps=1e-2)
    assert sorted(compare(both, checkpoint)) == ["rms_norm_eps", SHARE]


def test_what_no_key_of_gguf_says_is_told_by_the_architecture() -> None:
    checkpoint = of_family("llama")
    differences = compare(as_gguf(checkpoint), changed(checkpoint, hidden_act="relu"))
    assert differences == {
        "general.architecture": "`general.architecture` makes the activation 'silu', "
        "and `hidden_act` is 'relu' in the reference"
    }


def test_two_fields_that_one_key_says_are_reported_once() -> None:
    checkpoint = of_family("gemma3")
    wider = changed(checkpoint, sliding_window=checkpoint.document["sliding_window"] * 2)
    one, other = as_gguf(checkpoint), as_gguf(wider)
    assert list(compare(one, other)) == ["gemma3.attention.sliding_window"]
    made = correct(one, find_differences(one, other))
    assert made is not None
    assert made.config == other.config


def test_factors_that_gguf_has_in_a_tensor_are_told_by_that() -> None:
    checkpoint = small_models.checkpoint(small_models.llama(rope_parameters=LLAMA3))
    other = changed(checkpoint, rope_parameters=LLAMA3 | {"low_freq_factor": 2.0})
    assert list(compare(as_gguf(checkpoint), other)) == ["rope_freqs.weight"]

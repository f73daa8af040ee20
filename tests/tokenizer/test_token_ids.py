"""What a GGUF file's ids become in config.json and generation_config.json."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from weightctl.translate.tokenizer import TokenIds, Tokenizer, ids_of, to_metadata
from weightctl.weights.metadata import MetadataValue

MADE = Tokenizer(
    model="gpt2",
    tokens=("a", "b", "<|eot_id|>", "<|eom_id|>", "<pad>"),
    types=(1, 1, 3, 3, 3),
    merges=(),
    special={"bos": 0, "eos": 1, "padding": 4},
)
KEPT = TokenIds({"eos_token_id": [1, 0]}, {"eos_token_id": [0, 1], "pad_token_id": -1})


def test_a_file_of_another_tool_ends_at_all_that_llama_cpp_stops_at() -> None:
    found = ids_of(to_metadata(MADE), MADE)
    assert found.config == {"pad_token_id": 4, "bos_token_id": 0, "eos_token_id": 1}
    assert found.generation == {**found.config, "eos_token_id": [1, 2, 3]}


def test_a_file_that_names_no_ids_has_none() -> None:
    metadata = {"tokenizer.ggml.model": MetadataValue("string", "none")}
    found = ids_of(metadata, None)
    assert found.config == dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    assert found.generation is None


def test_a_file_of_sentencepiece_without_ids_has_the_usual() -> None:
    made = replace(MADE, model="llama", special={})
    assert ids_of(to_metadata(made), made).config["eos_token_id"] == 2


def test_what_both_files_said_comes_back() -> None:
    metadata = to_metadata(MADE)
    assert ids_of(metadata | KEPT.to_metadata(metadata), MADE) == KEPT


def test_ids_that_were_changed_since_count() -> None:
    metadata = to_metadata(MADE)
    metadata |= KEPT.to_metadata(metadata)
    changed = replace(MADE, special={"eos": 3})
    found = ids_of(metadata | to_metadata(changed), changed)
    assert found.config["eos_token_id"] == 3


@pytest.mark.parametrize(
    "text", ["", "[", "[]", "[" * 9999, "{}", '{"of":{"bos":0,"eos":1,"padding":4}}']
)
def test_a_damaged_key_does_not_count(text: str) -> None:
    metadata = to_metadata(MADE) | {"tokenizer.weightctl.token_ids": MetadataValue("string", text)}
    assert ids_of(metadata, MADE).config["eos_token_id"] == 1


@pytest.mark.parametrize("value", ["a", 1.5, [True], {"a": 1}, [[1]]])
def test_a_kept_entry_that_is_not_an_id_does_not_count(value: Any) -> None:
    metadata = to_metadata(MADE)
    metadata |= TokenIds({"eos_token_id": value}).to_metadata(metadata)
    assert ids_of(metadata, MADE).config["eos_token_id"] == 1

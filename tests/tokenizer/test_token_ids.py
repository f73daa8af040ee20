"""Ids of special tokens in config.json and generation_config.json, and ends of generation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from llama_cpp import ask
from real_files import fetch
from vocabulary_files import vocabulary_only
from weightctl import open_weights
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import (
    TokenIds,
    Tokenizer,
    from_metadata,
    ids_of,
    to_metadata,
    with_ends,
)
from weightctl.translate.tokenizer.token_ids import describe_assumed_end, list_ends, stops
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path


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


NAMES = (
    "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gpt-2", "llama-bpe", "llama-spm",
    "mpt", "phi-3", "qwen2", "refact", "starcoder",
)  # fmt: skip
PLAIN = 12  # the number of tokens before the special ones
CASES: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "nothing is named": ((), {}),
    "keys": ((), {"eos": 3, "eot": 4, "eom": 5}),
    "texts": (("<|eot_id|>", "</s>", "<eos>", "<|other|>"), {"eos": 3}),
    "harmony": (("<|return|>", "<|call|>", "<|end|>"), {"eos": 12}),
    "solar": (("<|flush|>", "<|calls|>", "<|end|>"), {"eos": 12}),
    "an end of parts alone": (("<|return|>", "<|end|>"), {"eos": 12}),
    "gemma4": (("<eos>", "</s>", "<|tool_response>"), {"eos": 12}),
    "fill in by text": (
        ("<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
        {"eos": 3},
    ),
    "fill in by key": (
        ("<|fim_pad|>", "<|file_sep|>"),
        {"eos": 3, "fim_pad": 4, "fim_rep": 5, "fim_pre": 6},
    ),
    "granite": (("<fim_pad>", "<reponame>", "<|end_of_text|>"), {"eos": 14}),
}


def made(*special: str, ends: tuple[int, ...] = (), **ids: int) -> Tokenizer:
    return Tokenizer(
        model="gpt2",
        pre="gpt-2",
        tokens=(*(chr(ord("a") + token) for token in range(PLAIN)), *special),
        types=(*[1] * PLAIN, *[3] * len(special)),
        merges=("a b",),
        special=ids,
        ends=ends,
        flags={"add_bos_token": False},
    )


def asked(tokenizer: Tokenizer, path: Path) -> set[int]:
    (ends,) = ask(vocabulary_only(tokenizer, "x", path), ("ends",), only_vocabulary=True)
    return set(ends)


@pytest.mark.parametrize("name", CASES)
def test_where_llama_cpp_stops_is_known(name: str, tmp_path: Path) -> None:
    texts, special = CASES[name]
    tokenizer = made(*texts, **special)
    assert stops(tokenizer) == asked(tokenizer, tmp_path / "v.gguf")


@pytest.mark.real
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_where_llama_cpp_stops_is_known_of_real_vocabularies(name: str) -> None:
    path = fetch("vocabularies") / f"ggml-vocab-{name}.gguf"
    tokenizer = from_metadata(open_weights(str(path)).header.metadata, str(path))
    assert tokenizer is not None
    (ends,) = ask(path, ("ends",), only_vocabulary=True)
    assert stops(tokenizer) == set(ends)
    assert len(list_ends(tokenizer)) == len({*list_ends(tokenizer)})
    assert {*list_ends(tokenizer)} <= set(ends)


@pytest.mark.parametrize(
    ("texts", "special", "ends"),
    [
        pytest.param((), {"eos": 6}, (6, 3, 5), id="the list of the issue"),
        pytest.param((), {"eos": 2}, (6, 3, 5), id="another end in tokenizer_config.json"),
        pytest.param((), {"eos": 2}, (3, 4, 5, 6, 7, 2), id="as many as GGUF has keys for"),
        pytest.param(("<eos>", "<end_of_turn>"), {"eos": 12}, (12, 13), id="gemma"),
        pytest.param(
            ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"), {"eos": 14}, (12, 13, 14), id="llama3"
        ),
        pytest.param(
            ("<|im_end|>", "<|endoftext|>", "<|fim_pad|>"), {"eos": 12}, (12, 13), id="qwen"
        ),
        pytest.param(
            ("<|endoftext|>", "<|assistant|>", "<|end|>"), {"eos": 12}, (12, 13, 14), id="phi3"
        ),
        pytest.param(
            ("<|endoftext|>", "<|user|>", "<|observation|>"), {"eos": 12}, (12, 13, 14), id="glm4"
        ),
    ],
)
def test_llama_cpp_stops_at_every_id_of_a_list(
    texts: tuple[str, ...], special: dict[str, int], ends: tuple[int, ...], tmp_path: Path
) -> None:
    tokenizer = with_ends(made(*texts, ends=ends, **special), "model")
    found = asked(tokenizer, tmp_path / "v.gguf")
    assert {*ends} <= found
    assert tokenizer.special["eos"] == special["eos"]


def test_a_list_that_llama_cpp_knows_by_its_texts_needs_no_keys() -> None:
    tokenizer = made("<|im_end|>", "<|endoftext|>", ends=(12, 13), eos=12)
    assert with_ends(tokenizer, "model").special == {"eos": 12}


def test_the_end_of_a_turn_that_llama_cpp_recognizes_stays_one() -> None:
    tokenizer = made("<|endoftext|>", "<|assistant|>", "<|end|>", ends=(12, 13, 14), eos=12)
    assert with_ends(tokenizer, "model").special == {"eos": 12, "eom": 13}


def test_ends_that_gguf_has_no_key_for_are_named_with_what_to_do() -> None:
    tokenizer = made("<|fim_prefix|>", ends=(3, 4, 5, 6, 7), eos=3)
    with pytest.raises(TokenizerError, match=r"5 ids, .* 6 \('g'\), 7 \('h'\)") as caught:
        with_ends(tokenizer, "model")
    assert "generation_config.json" in caught.value.hint


def test_ends_of_keys_and_texts_become_a_list() -> None:
    tokenizer = made("<|eot_id|>", "<|eom_id|>", "<|fim_pad|>", "<|x|>", eos=3, eot=15)
    assert list_ends(tokenizer) == [3, 15, 12, 13]


def test_ends_in_keys_for_tokens_that_fill_gaps_become_a_list_where_none_is_filled() -> None:
    assert list_ends(made(eos=3, fim_pad=5)) == [3, 5]
    assert list_ends(made("<|fim_prefix|>", eos=3, fim_pad=5)) == [3]


def test_a_list_that_a_gguf_states_keeps_its_order() -> None:
    assert list_ends(made("<|eot_id|>", ends=(5, 3), eos=3)) == [5, 3]


def test_an_end_that_llama_cpp_only_assumes_is_noted() -> None:
    assert "token 11 ('l')" in describe_assumed_end(made())
    assert not describe_assumed_end(made(eos=3))

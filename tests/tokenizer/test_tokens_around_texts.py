"""The tokens that llama.cpp adds before and after a text, for names that a directory states."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

import family_tokenizers as families
from lazy import transformers
from vocabulary_files import ids_of
from weightctl.translate.tokenizer import Tokenizer, from_directory

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ("The quick brown fox", "12 times", "")
ROLES = {
    "first and last of an encoder": {"cls_token": "[CLS]", "sep_token": "[SEP]"},
    "no roles": {},
    "others begin and end texts of a decoder": {
        "cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
    },
    "no tokens": {"bos_token": None, "eos_token": None},
}  # fmt: skip


@cache
def encoder() -> Any:
    return families.modernbert().backend_tokenizer


def saved(directory: Path, **config: Any) -> str:
    encoder().save(str(directory / "tokenizer.json"))
    written = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(written))
    return str(directory)


def read(directory: str) -> Tokenizer:
    found = from_directory(directory, 0, "modernbert")
    assert found is not None
    return found


@pytest.mark.parametrize("roles", ROLES)
def test_llama_cpp_adds_the_tokens_that_transformers_adds(roles: str, tmp_path: Path) -> None:
    directory = saved(tmp_path, **ROLES[roles])
    expected = [
        transformers.AutoTokenizer.from_pretrained(directory)(text)["input_ids"] for text in TEXTS
    ]
    found = read(directory)
    assert ids_of(found, TEXTS, tmp_path / "v.gguf", special=True) == expected
    assert not [note for note in found.notes if "post_processor" in note]


def test_a_token_that_is_to_be_added_but_has_no_id_is_not_added(tmp_path: Path) -> None:
    directory = saved(tmp_path, add_bos_token=True, add_eos_token=True)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    document["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    found = read(directory)
    assert found.flags == {"add_bos_token": False, "add_eos_token": False}
    plain = [encoder().encode(text, add_special_tokens=False).ids for text in TEXTS]
    assert ids_of(found, TEXTS, tmp_path / "v.gguf", special=True) == plain


def test_an_end_of_generation_stays_one_beside_a_token_that_ends_texts(tmp_path: Path) -> None:
    directory = saved(tmp_path, **ROLES["others begin and end texts of a decoder"])
    found = read(directory)
    assert found.special["eos"] == found.special["seperator"]
    assert found.tokens.index("<|endoftext|>") in found.ends

"""Conversion of WordPiece between tokenizer.json, vocab.txt and GGUF's metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer as Reference

from each import each
from lazy import transformers
from vocabulary_files import ids_of
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import (
    Tokenizer,
    from_directory,
    from_metadata,
    to_documents,
    to_metadata,
)

if TYPE_CHECKING:
    from pathlib import Path

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "é", "e", "Play", "!"]
TEXT = "Playing résumé [MASK] 你好 🦙 naïve\tcafé! unaffordable\n don't"


def read(directory: Path) -> Tokenizer:
    tokenizer = from_directory(str(directory), 0, "bert")
    assert tokenizer is not None
    return tokenizer


def back(tokenizer: Tokenizer) -> Reference:
    again = from_metadata(to_metadata(tokenizer), "model.gguf")
    assert again is not None
    return Reference.from_str(to_documents(again, "bert", {})["tokenizer.json"].decode())


def slow(directory: Path, **config: object) -> Path:
    (directory / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.real
def test_a_real_tokenizer_is_the_same_after_gguf(minilm: Path) -> None:
    before = Reference.from_file(str(minilm / "tokenizer.json"))
    after = back(read(minilm))
    assert json.loads(after.to_str()) == json.loads(before.to_str())
    assert after.encode(TEXT).ids == before.encode(TEXT).ids


@pytest.mark.real
def test_a_real_tokenizer_works_as_before_without_what_was_remembered(minilm: Path) -> None:
    before = Reference.from_file(str(minilm / "tokenizer.json"))
    before.no_padding()
    metadata = to_metadata(read(minilm))
    del metadata["tokenizer.weightctl.hugging_face"]
    tokenizer = from_metadata(metadata, "model.gguf")
    assert tokenizer is not None
    after = Reference.from_str(to_documents(tokenizer, "bert", {})["tokenizer.json"].decode())
    for texts in ((TEXT,), (TEXT, "a pair")):
        ours, theirs = after.encode(*texts), before.encode(*texts)
        assert (ours.ids, ours.type_ids) == (theirs.ids, theirs.type_ids)
        assert after.decode(ours.ids) == before.decode(theirs.ids)
    assert after.get_vocab() == before.get_vocab()


def test_gguf_marks_what_begins_a_word(tmp_path: Path) -> None:
    tokenizer = read(slow(tmp_path))
    assert tokenizer.tokens[:7] == (
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "\u2581play",
        "ing",
    )
    assert tokenizer.types[:6] == (3, 3, 3, 3, 3, 1)
    # llama.cpp adds its `bos` before every text.
    assert (tokenizer.special["bos"], tokenizer.special["seperator"]) == (2, 3)


@pytest.mark.parametrize("lowercase", [True, False])
def test_case_and_accents_are_kept_where_a_tokenizer_keeps_them(
    lowercase: bool, tmp_path: Path
) -> None:
    tokenizer = read(slow(tmp_path, do_lower_case=lowercase))
    assert tokenizer.flags["normalizer.lowercase"] == lowercase
    ids = back(tokenizer).encode("Playing é").ids
    assert ids == ([2, 5, 6, 8, 3] if lowercase else [2, 9, 6, 7, 3])


def test_the_kinds_of_segments_come_from_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"type_vocab_size": 2}')
    assert read(slow(tmp_path)).token_type_count == 2


def test_rules_that_are_not_berts_are_shown(tmp_path: Path) -> None:
    slow(tmp_path, tokenize_chinese_chars=False)
    with pytest.raises(TokenizerError, match="'handle_chinese_chars': False"):
        read(tmp_path)


def test_special_tokens_that_are_none_are_an_error_of_ours() -> None:
    tokenizer = Tokenizer(model="bert", tokens=("\u2581a",), types=(1,))
    with pytest.raises(TokenizerError, match=r"(seperator|cls)_token_id"):
        to_documents(tokenizer, "bert", {})


# Settings of tokenizer_config.json, and what transformers makes of them.
OVERRIDES: list[dict[str, object]] = [
    {"tokenizer_class": "BertTokenizer"},
    {"tokenizer_class": "BertTokenizer", "do_lower_case": True},
    {"tokenizer_class": "BertTokenizer", "do_lower_case": False},
    {"tokenizer_class": "DistilBertTokenizerFast", "do_lower_case": False, "strip_accents": True},
    {"tokenizer_class": "BertTokenizer", "strip_accents": False},
    {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False},
    {"do_lower_case": False},
]


@each("lowercase", [True, False])
@each("config", OVERRIDES)
def test_a_class_of_bert_takes_its_settings_from_tokenizer_config(
    tmp_path: Path, lowercase: bool, config: dict[str, object]
) -> None:
    slow(tmp_path, do_lower_case=lowercase)
    document = back(read(tmp_path)).to_str()
    (tmp_path / "tokenizer.json").write_text(document)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    judge = transformers.AutoTokenizer.from_pretrained(tmp_path).backend_tokenizer
    wanted = json.loads(judge.to_str())["normalizer"]
    flags, accents = read(tmp_path).flags, wanted["strip_accents"]
    assert flags["normalizer.lowercase"] == wanted["lowercase"]
    assert flags["normalizer.strip_accents"] == (
        wanted["lowercase"] if accents is None else accents
    )


def test_characters_that_llama_cpp_would_separate_are_refused(tmp_path: Path) -> None:
    slow(tmp_path)
    (tmp_path / "tokenizer.json").write_text(back(read(tmp_path)).to_str())
    config = {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(TokenizerError, match="handle_chinese_chars"):
        read(tmp_path)


# Words with marks that are spacing (Hindi, Burmese), and that are not (Hindi, Thai).
@each(
    "text, is_kept",
    [("\u0939\u0903", 0), ("\u1000\u102c", 0), ("\u0939\u0941", 1), ("\u0e01\u0e34", 1)],
)
@each("lowercase", [True, False])
def test_marks_that_llama_cpp_removes_are_noted(
    tmp_path: Path, text: str, is_kept: int, lowercase: bool
) -> None:
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase}
    slow(tmp_path, **config)
    (tmp_path / "vocab.txt").write_text("\n".join([*WORDS, text[0], f"##{text[1]}"]))
    tokenizer = read(tmp_path)
    expected = back(tokenizer).encode(text).ids
    found = ids_of(tokenizer, [text], tmp_path / "v.gguf", special=True)[0]
    assert (found == expected) == (bool(is_kept) or not lowercase)
    assert any("combining marks" in note for note in tokenizer.notes) == (found != expected)

"""Normalizers of SentencePiece models, compared with SentencePiece, llama.cpp and transformers."""
# ruff: noqa: RUF001 - the letters that look alike are what is tested

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Reference

from lazy import transformers
from sentencepiece_files import TEXTS, charsmap, field, model_of, number, pieces, read_fixture
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

# Texts that the tokenizers library treats differently from SentencePiece: character clusters.
CLUSTERS = {
    "①\u0301 ™\u0301 ½\u0338",
    "한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8",
    "ｶﾞｷﾞ ﾊﾟ ガギ か\u3099",
}
CR_LF = {"carriage\r\nreturn"}
SPACES = {" ", "   "}
ALL_SPACES = {*SPACES, "\n", "\t"}  # the normalizer converts the last two to spaces
AT_START = {" one space before", "   three before"}
IN_NORMALIZED = {*AT_START, " \t mixed \n ", "¨ ´ ¸ ˘", *CR_LF}


def read(directory: Path) -> Tokenizer:
    made = from_directory(str(directory), 0, "llama")
    assert made is not None
    return made


def with_model(directory: Path, name: str, **changes: object) -> Path:
    (directory / "spiece.model").write_bytes(model_of(name, **changes))
    return directory


def back(tokenizer: Tokenizer, *, remembers: bool = True) -> transformers.PreTrainedTokenizerFast:
    """Return the tokenizer after conversion to GGUF and back, as transformers loads it."""
    again = from_metadata(to_metadata(tokenizer), "model.gguf")
    assert again is not None
    if not remembers:  # like a GGUF of another tool
        again = replace(again, remainder=None)
    document = to_documents(again, "llama", {})["tokenizer.json"].decode()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=Reference.from_str(document))


def ids(tokenizer: transformers.PreTrainedTokenizerFast | Reference) -> list[list[int]]:
    if isinstance(tokenizer, Reference):
        return [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    return [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def otherwise(ours: list[list[int]], theirs: list[list[int]]) -> set[str]:
    return {text for text, one, two in zip(TEXTS, ours, theirs, strict=True) if one != two}


@pytest.mark.parametrize(
    ("name", "in_llama_cpp", "in_transformers"),
    [
        ("unigram identity removed", set(), set()),
        ("unigram nmt_nfkc removed", set(), CLUSTERS),
        ("unigram identity kept", SPACES, SPACES),
        ("unigram nmt_nfkc kept", ALL_SPACES, {*ALL_SPACES, *CLUSTERS, *CR_LF}),
        ("bpe identity kept", set(), set()),
    ],
)
def test_a_model_file_gives_the_ids_of_sentencepiece_everywhere_but_where_it_is_noted(
    name: str, in_llama_cpp: set[str], in_transformers: set[str], tmp_path: Path
) -> None:
    tokenizer = read(with_model(tmp_path, name))
    expected = read_fixture()["ids"][name]
    assert otherwise(ids_of(tokenizer, TEXTS, tmp_path / "v.gguf"), expected) == in_llama_cpp
    assert otherwise(ids(back(tokenizer)), expected) == in_transformers
    noted = [note for note in tokenizer.notes if "consists only of spaces" in note]
    assert bool(noted) == bool(in_llama_cpp)


def test_spaces_that_a_bpe_removes_and_llama_cpp_keeps_are_noted(tmp_path: Path) -> None:
    name = "bpe identity removed"
    tokenizer = read(with_model(tmp_path, name))
    differing = otherwise(
        ids_of(tokenizer, TEXTS, tmp_path / "v.gguf"), read_fixture()["ids"][name]
    )
    has_extra = {text for text in TEXTS if "  " in text or text != text.strip(" ")}
    assert differing == has_extra
    assert [note for note in tokenizer.notes if "removes extra spaces" in note]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("bpe nmt_nfkc kept", {"normalizer": field(1, b"nmt_nfkc")}, "normalizer `nmt_nfkc`"),
        ("unigram identity kept", {"trainer": number(24, 1)}, "marks the ends of words"),
        ("bpe identity kept", {"normalizer": number(5, 0)}, "does not mark spaces"),
        (
            "unigram identity removed",
            {"add_dummy_prefix": False},
            (
                "the tokenizer removes extra spaces, and adds no space at the start of a text; "
                "llama.cpp always adds one there if extra spaces are removed, so it would tokenize "
                "text differently"
            ),
        ),
        ("unigram nmt_nfkc kept", {"charsmap": charsmap()[:-1]}, "damaged"),
        (
            "bpe identity kept",
            {"algorithm": 1},
            r"the unigram model splits characters without a token into bytes \(`byte_fallback`\)",
        ),
        ("unigram identity kept", {"algorithm": 2}, "tokens for 0 of the 256 bytes"),
    ],
)
def test_a_model_file_that_llama_cpp_cannot_follow_is_refused(
    name: str, changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(TokenizerError, match=message) as caught:
        read(with_model(tmp_path, name, **changes))
    assert "--names keep" in str(caught.value.hint)


def test_text_of_tokens_that_sentencepiece_rewrites_is_noted(tmp_path: Path) -> None:
    more = field(5, field(2, charsmap()))
    tokenizer = read(with_model(tmp_path, "bpe identity kept", more=more))
    assert [note for note in tokenizer.notes if "denormalizer_spec" in note]


def unigram(normalizer: object, pre_tokenizer: object) -> Reference:
    vocabulary = [(text, score) for text, score, _ in pieces("unigram")]
    made = Reference(models.Unigram(vocabulary, 0, byte_fallback=False))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizer
    return made


NFKC = normalizers.Precompiled(charsmap())
RUNS = normalizers.Replace(Regex(" {2,}"), "▁")
STRIP = normalizers.Strip(left=False, right=True)
WORDS = pre_tokenizers.WhitespaceSplit()
MARKS = pre_tokenizers.Metaspace()
KEPT_MARKS = pre_tokenizers.Metaspace(split=False)


@pytest.mark.parametrize(
    ("made", "differing"),
    [
        # As transformers creates it from a model file, as in t5 and xlm-roberta, and other forms.
        (unigram(normalizers.Sequence([NFKC, STRIP, RUNS]), MARKS), CLUSTERS),
        (
            unigram(NFKC, pre_tokenizers.Sequence([WORDS, MARKS])),
            {*CLUSTERS, "next\u0085line\u2028sep\u2029par"},
        ),
        (unigram(normalizers.Sequence([]), KEPT_MARKS), {*AT_START, " \t mixed \n "}),
        (unigram(NFKC, KEPT_MARKS), {*CLUSTERS, *IN_NORMALIZED}),
        (unigram(None, pre_tokenizers.Metaspace(prepend_scheme="never", split=False)), set()),
    ],
)
def test_a_tokenizer_json_gives_its_ids_in_llama_cpp_everywhere_but_where_it_is_noted(
    made: Reference, differing: set[str], tmp_path: Path
) -> None:
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read(tmp_path)
    expected = ids(made)
    assert otherwise(ids_of(tokenizer, TEXTS, tmp_path / "v.gguf"), expected) == differing
    assert bool(tokenizer.notes) == bool(differing)
    assert ids(back(tokenizer)) == expected


def test_what_comes_back_without_a_memory_does_what_llama_cpp_does(tmp_path: Path) -> None:
    unigram(normalizers.Sequence([NFKC, STRIP, RUNS]), MARKS).save(str(tmp_path / "tokenizer.json"))
    tokenizer = read(tmp_path)
    for flags in ({}, {"remove_extra_whitespaces": True}, {"add_space_prefix": True}):
        changed = replace(tokenizer, flags=flags | {"add_eos_token": False})
        found = ids_of(changed, TEXTS, tmp_path / "v.gguf")
        again = ids(back(changed, remembers=False))
        assert otherwise(again, found) <= {*CLUSTERS, *CR_LF}


def test_the_normalizer_is_stored_once_and_comes_back(tmp_path: Path) -> None:
    made = unigram(normalizers.Sequence([NFKC, STRIP, RUNS]), MARKS)
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = read(tmp_path)
    assert tokenizer.remainder is not None
    assert len(tokenizer.remainder) < 10_000
    assert (
        json.loads(back(tokenizer).backend_tokenizer.to_str())["normalizer"]
        == (json.loads(made.to_str())["normalizer"])
    )


@pytest.mark.parametrize(
    ("normalizer", "pre_tokenizer", "message"),
    [
        (None, pre_tokenizers.Sequence([WORDS, MARKS]), "WhitespaceSplit"),
        (normalizers.Sequence([RUNS, NFKC]), MARKS, "Precompiled"),
        (normalizers.Sequence([STRIP, NFKC]), MARKS, "Precompiled"),
        (
            RUNS,
            pre_tokenizers.Metaspace(prepend_scheme="never"),
            (
                "the tokenizer removes extra spaces, and adds no space at the start of a text; "
                "llama.cpp always adds one there if extra spaces are removed, so it would tokenize "
                "text differently"
            ),
        ),
        (None, WORDS, "WhitespaceSplit"),
        (
            None,
            None,
            ("its normalizer and pre_tokenizer keep spaces, but llama.cpp replaces them with"),
        ),
        (None, pre_tokenizers.Metaspace(replacement="_"), "Metaspace"),
    ],
)
def test_steps_that_do_not_amount_to_what_llama_cpp_does_are_refused(
    normalizer: object, pre_tokenizer: object, message: str, tmp_path: Path
) -> None:
    unigram(normalizer, pre_tokenizer).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(TokenizerError, match=message):
        read(tmp_path)


def test_a_token_of_two_words_that_transformers_never_finds_is_refused(tmp_path: Path) -> None:
    made = unigram(None, MARKS)
    document = json.loads(made.to_str())
    document["model"]["vocab"].append(["▁of▁the", -3.0])
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(
        TokenizerError,
        match=r"splits text into words, but the token '▁of▁the' spans several words",
    ):
        read(tmp_path)
    document["pre_tokenizer"]["split"] = False
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    assert read(tmp_path).tokens[-1] == "▁of▁the"

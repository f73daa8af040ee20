"""Tokenizer files whose values have invalid types, sizes or depths."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Reference

from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import from_directory, from_metadata, to_documents
from weightctl.translate.tokenizer.files import TokenizerFiles
from weightctl.verify.checks.metadata.description import read_raw
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from pathlib import Path

LETTERS = {letter: token for token, letter in enumerate("abc")}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
PLAIN: dict[str, Any] = {
    "pre_tokenizer": BYTE_LEVEL,
    "model": {"type": "BPE", "vocab": LETTERS, "merges": []},
}
WORDS: dict[str, Any] = {
    "normalizer": {"type": "BertNormalizer"},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "added_tokens": [{"id": 0, "content": "[UNK]", "special": True}],
    "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "a": 1}, "unk_token": []},
}
STRANGE: list[dict[str, Any]] = [
    {"model": PLAIN["model"] | {"type": []}},
    {"model": PLAIN["model"] | {"type": {"x": 1}}},
    {"model": PLAIN["model"] | {"dropout": [0] * 10_000}},
    {"model": PLAIN["model"] | {"vocab": {"x" * 10_000: -1}}},
    {"model": PLAIN["model"] | {"merges": ["x" * 10_000]}},
    {
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": "x"}, "behavior": []},
                BYTE_LEVEL,
            ],
        }
    },
]
DEEP = 900


def written(directory: Path, document: object) -> str:
    (directory / "tokenizer.json").write_text(json.dumps(document))
    return str(directory)


def nested(depth: int) -> Any:
    made: Any = []
    for _ in range(depth):
        made = [made]
    return made


@pytest.mark.parametrize(
    "part",
    [
        {"post_processor": {"type": []}},
        {"post_processor": {"type": {}}},
        {"post_processor": {"type": "TemplateProcessing", "single": [1, None, True]}},
        {"decoder": {"type": "Sequence", "decoders": 5}},
        {"decoder": {"type": "Sequence", "decoders": True}},
    ],
)
def test_a_part_of_another_type_is_as_if_it_were_not_there(
    tmp_path: Path, part: dict[str, Any]
) -> None:
    tokenizer = from_directory(written(tmp_path, PLAIN | part), 0, "llama")
    assert tokenizer is not None
    assert tokenizer.tokens == ("a", "b", "c")


@pytest.mark.parametrize("part", STRANGE)
def test_what_no_tokenizer_says_is_refused_in_short(tmp_path: Path, part: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError) as caught:
        from_directory(written(tmp_path, PLAIN | part), 0, "llama")
    assert "tokenizer.json" in caught.value.message
    assert "--names keep" in caught.value.hint
    assert len(str(caught.value)) < 2500


def test_an_unknown_token_that_is_not_text_is_the_usual_one(tmp_path: Path) -> None:
    tokenizer = from_directory(written(tmp_path, WORDS), 0, "bert")
    assert tokenizer is not None
    assert tokenizer.special["unknown"] == 0


def test_what_is_nested_deeply_is_refused_or_read(tmp_path: Path) -> None:
    steps = '{"type":"Sequence","pretokenizers":[' * (DEEP // 2) + "]}" * (DEEP // 2)
    text = json.dumps(PLAIN | {"pre_tokenizer": "steps", "truncation": nested(DEEP)})
    (tmp_path / "tokenizer.json").write_text(text.replace('"steps"', steps))
    with pytest.raises(TokenizerError):
        from_directory(str(tmp_path), 0, "llama")


def test_an_embedding_with_more_rows_than_any_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="2147483647 rows"):
        from_directory(written(tmp_path, PLAIN), (1 << 31) - 1, "llama")


MARKED = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}
# The kinds of vocabulary, each without a token.
EMPTY: dict[str, dict[str, Any]] = {
    "byte-level BPE": PLAIN | {"model": {"type": "BPE", "vocab": {}, "merges": []}},
    "WordPiece": WORDS | {"model": {"type": "WordPiece", "vocab": {}}},
    "BPE": {"pre_tokenizer": MARKED, "model": {"type": "BPE", "vocab": {}, "merges": []}},
    "unigram": {"pre_tokenizer": MARKED, "model": {"type": "Unigram", "vocab": []}},
}


@pytest.mark.parametrize("kind", EMPTY)
def test_an_id_far_beyond_the_vocabulary_is_refused(tmp_path: Path, kind: str) -> None:
    added = [{"id": 1_048_574, "content": "<far>", "special": True}]
    directory = written(tmp_path, EMPTY[kind] | {"added_tokens": added})
    with pytest.raises(TokenizerError) as caught:
        from_directory(directory, 0, "llama")
    assert "the id 1048574 is too large for a vocabulary of 1 token" in caught.value.message


def test_verify_refuses_a_vocabulary_with_an_id_beyond_the_limit(tmp_path: Path) -> None:
    def read(token: int) -> tuple[str, ...]:
        document = {"model": {"type": "WordPiece", "vocab": {"a": token}}}
        found = read_raw(TokenizerFiles(str(tmp_path), document, {}))
        return () if found is None else found.tokens

    assert read(2) == ("", "", "a")
    with pytest.raises(TokenizerError, match="the token id 4,194,304 is too large"):
        read(1 << 22)


@pytest.mark.parametrize("kind", EMPTY)
def test_an_added_token_after_a_gap_is_refused_because_transformers_moves_it(
    tmp_path: Path, kind: str
) -> None:
    # llama.cpp requires a token for each byte.
    vocabulary: Any = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"[UNK]": 256}
    if kind == "unigram":
        vocabulary = [[text, 0.0] for text in vocabulary]
    more = {"vocab": vocabulary, "byte_fallback": kind == "BPE", "unk_id": 256}
    more |= {"unk_token": "[UNK]", "max_input_chars_per_word": 100}
    model = EMPTY[kind]["model"] | more | {"continuing_subword_prefix": "##"}
    if "BPE" in kind:
        model["continuing_subword_prefix"] = None
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    added = [flags | {"id": 300, "content": "<added>"}]
    moved = Reference.from_str(
        json.dumps({"version": "1.0", "added_tokens": added, "model": model})
    )
    assert moved.token_to_id("<added>") == 257
    directory = written(tmp_path, EMPTY[kind] | {"added_tokens": added, "model": model})
    with pytest.raises(TokenizerError, match=r"<added>.* has the id 300, but .* the id 257,"):
        from_directory(directory, 0, "llama")


@pytest.mark.parametrize("kind", ["byte-level BPE", "WordPiece", "BPE"])
def test_an_id_beyond_a_few_thousand_holes_is_read(tmp_path: Path, kind: str) -> None:
    added = [{"id": 4000, "content": "<added>", "special": True}]
    vocabulary = {"<added>": 4000}
    if kind == "BPE":
        # llama.cpp requires a token for each byte.
        vocabulary |= {f"<0x{byte:02X}>": byte for byte in range(256)}
    document = EMPTY[kind] | {"added_tokens": added}
    document |= {"model": document["model"] | {"vocab": vocabulary, "byte_fallback": kind == "BPE"}}
    directory = written(tmp_path, document)
    tokenizer = from_directory(directory, 0, "llama")
    assert tokenizer is not None
    assert tokenizer.tokens[-2:] == ("[PAD3999]", "<added>")
    assert len(tokenizer.tokens) == 4001


def test_an_id_of_thousands_of_digits_is_none(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text(json.dumps(LETTERS))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    added = {"9" * 5000: {"content": "d"}, "3": {"content": "<d>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    tokenizer = from_directory(str(tmp_path), 0, "gpt2")
    assert tokenizer is not None
    assert tokenizer.tokens == ("a", "b", "c", "<d>")


def test_a_template_whose_name_is_not_text_is_refused(tmp_path: Path) -> None:
    templates = [{"name": "\ud800", "template": "x"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    with pytest.raises(TokenizerError, match="a token of the tokenizer is not valid Unicode text"):
        from_directory(written(tmp_path, PLAIN), 0, "llama")


@pytest.mark.parametrize("kind", ["fifo", "directory", "dangling"])
def test_a_tokenizer_that_is_not_a_file_is_refused_and_not_waited_for(
    tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "tokenizer.json"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: ") as caught:
        from_directory(str(tmp_path), 0, "llama")
    assert "\n" not in caught.value.message


def test_a_long_token_costs_no_look_at_each_of_its_letters() -> None:
    tokenizer = from_metadata(sentence_pieces(["a" * 400_000, "a", "b" * 399_999]), "made")
    assert tokenizer is not None
    made = json.loads(to_documents(tokenizer, "llama", {})["tokenizer.json"])
    assert made["model"]["merges"] == []


def test_tokens_with_more_merges_than_fit_into_memory_are_refused() -> None:
    tokenizer = from_metadata(sentence_pieces(["a" * length for length in range(1, 1000)]), "made")
    assert tokenizer is not None
    with pytest.raises(TokenizerError, match="in too many ways"):
        to_documents(tokenizer, "llama", {})


def sentence_pieces(tokens: list[str]) -> dict[str, MetadataValue]:
    return {
        "tokenizer.ggml.model": MetadataValue("string", "llama"),
        "tokenizer.ggml.tokens": MetadataValue("array[string]", tokens),
        "tokenizer.ggml.scores": MetadataValue("array[f32]", [0.0] * len(tokens)),
    }

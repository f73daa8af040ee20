"""SentencePiece tokenizers of directories, and the tokenizer.json that is written for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Reference

from sentencepiece_files import model_file
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import Tokenizer, from_directory, to_documents

if TYPE_CHECKING:
    from pathlib import Path

BASE = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
BYTES = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
WORDS = ["▁h", "he", "▁he", "ll", "▁hell", "▁hello"]
LETTERS = ["▁", "h", "e", "l", "o"]
PIECES = [
    *BASE,
    *BYTES,
    *((text, -float(place), 1) for place, text in enumerate([*WORDS, *LETTERS])),
]
SPECIAL = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


def read(directory: Path, vocabulary: int = 0) -> Tokenizer:
    made = from_directory(str(directory), vocabulary, "llama")
    assert made is not None
    return made


def put(directory: Path, name: str, document: Any) -> None:
    (directory / name).write_text(json.dumps(document))


def reference(tokenizer: Tokenizer, model_type: str = "llama") -> Reference:
    return Reference.from_str(to_documents(tokenizer, model_type, {})["tokenizer.json"].decode())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "tokenizer.model").write_bytes(model_file(PIECES))
    return tmp_path


def test_a_model_file_alone_is_a_tokenizer(model: Path) -> None:
    made = read(model)
    assert (made.model, made.pre) == ("llama", "default")
    assert list(zip(made.tokens, made.scores or (), made.types, strict=True)) == PIECES
    assert made.special == {"bos": 1, "eos": 2, "unknown": 0}
    assert made.flags["add_space_prefix"] is True


def test_tokens_that_were_added_are_special_or_the_users_own(model: Path) -> None:
    put(model, "added_tokens.json", {"<mine>": len(PIECES)})
    decoder = {
        str(len(PIECES) + 1): {"content": "<turn>", "special": True},
        str(len(PIECES) + 2): {"content": "▁▁", "special": False},
        str(len(PIECES) + 3): {"content": "<|looks|>", "special": False},
    }
    put(model, "tokenizer_config.json", {"added_tokens_decoder": decoder})
    made = read(model)
    assert made.tokens[-4:] == ("<mine>", "<turn>", "  ", "<|looks|>")
    assert made.types[-4:] == (4, 3, 4, 3)


def test_ids_between_that_nothing_stands_for_are_padding(model: Path) -> None:
    put(model, "added_tokens.json", {"<mine>": len(PIECES) + 2})
    made = read(model)
    assert made.tokens[-3:] == (f"[PAD{len(PIECES)}]", f"[PAD{len(PIECES) + 1}]", "<mine>")
    assert made.types[-3:] == (5, 5, 4)


def test_what_the_classes_put_around_a_text_holds_until_a_file_says_otherwise(model: Path) -> None:
    assert read(model).flags.items() >= {"add_bos_token": True, "add_eos_token": False}.items()
    put(model, "tokenizer_config.json", {"add_bos_token": False, "add_eos_token": True})
    assert read(model).flags.items() >= {"add_bos_token": False, "add_eos_token": True}.items()


def test_added_tokens_that_the_embedding_has_no_row_for_are_left_out(model: Path) -> None:
    put(model, "added_tokens.json", {"<image>": len(PIECES)})
    assert read(model, len(PIECES)).tokens[-1] == "o"
    with pytest.raises(TokenizerError, match=f"has {len(PIECES) + 1} tokens"):
        read(model, len(PIECES) - 1)


def test_a_model_file_and_the_tokenizer_json_made_of_it_give_the_same(model: Path) -> None:
    reported = read(model)
    for name, content in to_documents(reported, "llama", {}).items():
        (model / name).write_bytes(content)
    (model / "tokenizer.model").unlink()
    again = read(model)
    assert (again.tokens, again.types) == (reported.tokens, reported.types)
    assert (again.special, again.flags) == (reported.special, reported.flags)
    assert (again.scores or ())[3:] == (reported.scores or ())[3:]  # except for special tokens


def test_a_tokenizer_json_with_another_vocabulary_comes_before_the_model_file(model: Path) -> None:
    document = json.loads(to_documents(read(model), "llama", {})["tokenizer.json"])
    vocabulary = document["model"]["vocab"]
    vocabulary["▁hell"], vocabulary["▁hello"] = vocabulary["▁hello"], vocabulary["▁hell"]
    put(model, "tokenizer.json", document)
    tokens = read(model).tokens
    assert tokens.index("▁hello") == vocabulary["▁hello"]


@pytest.mark.parametrize(
    ("class_name", "has_json", "expected"),
    [("LlamaTokenizer", True, False), ("GemmaTokenizer", True, True), ("X", False, False)],
)
def test_the_prefix_is_what_the_class_of_the_tokenizer_heeds(
    model: Path, class_name: str, has_json: bool, expected: bool
) -> None:
    if has_json:
        document = to_documents(read(model), "llama", {})["tokenizer.json"]
        (model / "tokenizer.json").write_bytes(document)
    config = {"tokenizer_class": class_name, "add_prefix_space": False}
    put(model, "tokenizer_config.json", config)
    assert read(model).flags["add_space_prefix"] is expected


def test_text_is_cut_by_scores_and_what_no_piece_has_is_bytes(model: Path) -> None:
    tokens = reference(read(model)).encode("hello é", add_special_tokens=False).tokens
    assert tokens == ["▁hello", "▁", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize("prefix", [True, False])
def test_decoding_gives_the_text_back(tmp_path: Path, prefix: bool) -> None:
    (tmp_path / "tokenizer.model").write_bytes(model_file(PIECES, add_dummy_prefix=prefix))
    tokenizer = reference(read(tmp_path))
    for text in ("hello hello", " hello", "é\n\thell "):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_runs_of_spaces_that_are_user_defined_are_joined_before_all_else(tmp_path: Path) -> None:
    runs = [("▁" * count, 0.0, 4) for count in (2, 3)]
    data = model_file([*PIECES, *runs], add_dummy_prefix=False)
    (tmp_path / "tokenizer.model").write_bytes(data)
    made = read(tmp_path)
    assert made.tokens[-2:] == ("  ", "   ")  # as llama.cpp searches for them
    tokenizer = reference(made)
    tokens = tokenizer.encode("   hello    l", add_special_tokens=False).tokens
    assert tokens == ["▁▁▁", "he", "ll", "o", "▁▁▁", "▁", "l"]


def test_spaces_after_a_control_token_of_phi3_go(model: Path) -> None:
    put(model, "added_tokens.json", {"<|end|>": len(PIECES)})
    tokenizer = reference(read(model), "phi3")
    ids = tokenizer.encode("<|end|>  hello", add_special_tokens=False).ids
    assert [tokenizer.id_to_token(index) for index in ids] == ["<|end|>", "▁hello"]


def test_a_unigram_model_is_t5s(tmp_path: Path) -> None:
    pieces = [*BASE, ("▁", -3.0, 1), ("▁a", -1.0, 1), ("b", -2.0, 1), ("ab", -9.0, 1)]
    (tmp_path / "spiece.model").write_bytes(model_file(pieces, algorithm=1, bos=-1))
    made = read(tmp_path)
    assert made.model == "t5"
    assert made.flags["remove_extra_whitespaces"]
    assert reference(made).encode("ab   b", add_special_tokens=False).ids == [4, 5, 3, 5]
    for name, content in to_documents(made, "t5", {}).items():
        (tmp_path / name).write_bytes(content)
    again = read(tmp_path)
    assert (again.tokens, again.scores and again.scores[3:]) == (
        made.tokens,
        (-3.0, -1.0, -2.0, -9.0),
    )


BYTE_IDS = {text: 9 + place for place, (text, _, _) in enumerate(BYTES)}
MARKS = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}


def bpe(**changes: Any) -> dict[str, Any]:
    vocabulary = {"<unk>": 0, "a": 1, **BYTE_IDS}
    model = {"type": "BPE", "byte_fallback": True, "vocab": vocabulary, "merges": []}
    return {"normalizer": MARKS, "model": model | changes}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (bpe(vocab={"a": 0, "b": 0}), "the same id"),
        (bpe(vocab={"a": 4_000_000_000}), "the id of 'a' is 4000000000"),
        (bpe(vocab={"a": -1}), "the id of 'a' is -1"),
        (bpe(vocab={"a": "x"}), "its vocabulary is not a JSON object that maps tokens to ids"),
        (bpe(vocab=[["a"]]), "which is not a token with a score"),
        (
            bpe(vocab={"\ud800": 0, **BYTE_IDS}),
            ("a token of the tokenizer is not valid Unicode text"),
        ),
        (bpe(vocab=[["a", 10**400]]), "which is not a token with a score"),
        (bpe(merges=["a"]), "the merge 'a' is not a pair of tokens"),
        (bpe() | {"added_tokens": [{"id": 1}]}, "the added token"),
        (
            bpe() | {"added_tokens": [{"id": 5, "content": "a"}]},
            ("tokens 1 and 5 have the same text 'a'"),
        ),
        (
            bpe(byte_fallback=False) | {"normalizer": None},
            ("its BPE is neither byte-level nor SentencePiece"),
        ),
        (
            {
                "model": {"type": "Unigram", "vocab": [["a", -1.0]]},
                "normalizer": {"type": "Precompiled", "precompiled_charsmap": "?"},
            },
            "not base64",
        ),
    ],
)
def test_a_damaged_tokenizer_json_is_refused(
    tmp_path: Path, document: dict[str, Any], message: str
) -> None:
    put(tmp_path, "tokenizer.json", document)
    with pytest.raises(TokenizerError, match=message):
        read(tmp_path)


def test_a_vocabulary_without_scores_has_no_order_to_join_in() -> None:
    with pytest.raises(TokenizerError, match=r"no `tokenizer\.ggml\.scores`"):
        to_documents(Tokenizer(model="llama", tokens=("a",), types=(1,)), "llama", {})

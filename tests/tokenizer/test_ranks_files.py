"""Files with the ranks of tokens: those of tiktoken, and tekken.json."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import TYPE_CHECKING, Any
from unicodedata import category, normalize

import pytest
import tiktoken
from tokenizers import Tokenizer as Reference

from commands import TINY
from each import each
from real_files import fetch
from sentencepiece_files import TEXTS
from vocabulary_files import ids_of
from weightctl.errors import TokenizerError
from weightctl.text.byte_level import from_byte_level
from weightctl.translate.tokenizer import from_directory, regexes, to_documents

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.translate.tokenizer import Tokenizer

MODEL = json.loads((TINY / "tokenizer.json").read_bytes())["model"]
# The tokens of the fixture in the order of their merges; the others are those of bytes.
BYTES = sorted(word for word in MODEL["vocab"] if len(word) == 1)
MERGED = ["".join(merge) for merge in MODEL["merges"]]
RANKS = {from_byte_level(word): rank for rank, word in enumerate([*BYTES, *MERGED])}
MORE = ("kept 1234567 x1y2 DON'T don't we'Ll", "if (x > 1) {\n\treturn x;\n}\n\n\n", "a" * 50)


def write_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    lines = [b"%s %d\n" % (b64encode(word), rank) for word, rank in ranks.items()]
    path.write_bytes(b"".join(lines))


def write_tekken(path: Path, special: list[dict[str, Any]] | None = None) -> None:
    vocabulary = [
        {"rank": rank, "token_bytes": b64encode(word).decode(), "token_str": None}
        for word, rank in RANKS.items()
    ]
    document = {
        "config": {
            "pattern": regexes.TEKKEN, "default_vocab_size": 20 + len(RANKS) - 5,
            "default_num_special_tokens": 20,
        },
        "vocab": vocabulary,
    }  # fmt: skip
    path.write_text(json.dumps({**document, "special_tokens": special} if special else document))


def read(directory: Path, model_type: str = "llama") -> Tokenizer:
    made = from_directory(str(directory), 0, model_type)
    assert made is not None
    return made


def assert_encodes(
    tokenizer: Tokenizer,
    judge: tiktoken.Encoding,
    path: Path,
    first: int = 0,
    *,
    is_composed: bool = False,
) -> None:
    """Compare ids with tiktoken's, in llama.cpp and in the tokenizer.json that is written.

    llama.cpp does not compose texts, where the model's own tokenizer does.
    """
    parts_marks = any("combining marks" in note for note in tokenizer.notes)
    texts = [*TEXTS, *MORE]
    given = [normalize("NFC", text) if is_composed else text for text in texts]
    expected = [[first + token for token in judge.encode_ordinary(text)] for text in given]
    in_llama_cpp = ids_of(tokenizer, given, path)
    document = to_documents(tokenizer, "llama", {})["tokenizer.json"]
    reference = Reference.from_str(document.decode())
    for text, ids, theirs in zip(texts, expected, in_llama_cpp, strict=True):
        assert reference.encode(text, add_special_tokens=False).ids == ids, text
        if not (parts_marks and any(category(char).startswith("M") for char in text)):
            assert theirs == ids, text


@each(
    ("name", "model_type", "pre", "special"),
    [
        ("qwen.tiktoken", "qwen", "qwen2", {"eos": "<|endoftext|>"}),
        (
            "hy.tiktoken", "hunyuan_v1_moe", "qwen2",
            {"bos": "<|bos|>", "eos": "<|eos|>"},
        ),
        ("tokenizer.model", "chatglm", "chatglm-bpe", {}),
        (
            "tokenizer.model", "llama", "llama-bpe",
            {"bos": "<|begin_of_text|>", "eos": "<|end_of_text|>"},
        ),
    ],
)  # fmt: skip
def test_ranks_are_tokens_and_merges(
    name: str, model_type: str, pre: str, special: dict[str, str], tmp_path: Path
) -> None:
    write_ranks(tmp_path / name, RANKS)
    tokenizer = read(tmp_path, model_type)
    assert tokenizer.pre == pre
    assert list(tokenizer.tokens[: len(RANKS)]) == [*BYTES, *MERGED]
    assert list(tokenizer.merges or ()) == [" ".join(merge) for merge in MODEL["merges"]]
    assert {role: tokenizer.tokens[token] for role, token in tokenizer.special.items()} == special


def test_texts_are_split_as_tiktoken_does(tmp_path: Path) -> None:
    write_ranks(tmp_path / "tokenizer.model", RANKS)
    # Meta's tokenizer of Llama 3.
    judge = tiktoken.Encoding(
        "llama", pat_str=regexes.LLAMA_3, mergeable_ranks=RANKS, special_tokens={}
    )
    assert_encodes(read(tmp_path), judge, tmp_path / "v.gguf")


def test_texts_are_split_as_hunyuans_tokenizer_does(tmp_path: Path) -> None:
    write_ranks(tmp_path / "hy.tiktoken", RANKS)
    judge = tiktoken.Encoding(
        "HunYuan", pat_str=regexes.QWEN_2, mergeable_ranks=RANKS, special_tokens={}
    )
    tokenizer = read(tmp_path, "hunyuan_v1_moe")
    assert_encodes(tokenizer, judge, tmp_path / "v.gguf", is_composed=True)
    assert tokenizer.tokens[len(RANKS) + 4 : len(RANKS) + 6] == ("<|pad|>", "<|extra_0|>")
    assert tokenizer.tokens[-1] == "<|extra_204|>"


def test_tokens_without_ranks_have_the_names_of_the_config(tmp_path: Path) -> None:
    write_ranks(tmp_path / "tiktoken.model", RANKS)
    count = len(RANKS)
    entries = {str(count): {"content": "[BOS]"}, str(count + 3): {"content": "<|im_user|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": entries}))
    tokenizer = read(tmp_path, "kimi_k2")
    reserved = (f"<|reserved_token_{count + place}|>" for place in (1, 2))
    assert tokenizer.tokens[count : count + 4] == ("[BOS]", *reserved, "<|im_user|>")
    assert len(tokenizer.tokens) == count + 256
    assert tokenizer.special["bos"] == count


def test_reserved_tokens_are_numbered_as_in_the_release(tmp_path: Path) -> None:
    write_ranks(tmp_path / "tokenizer.model", RANKS)
    special = read(tmp_path).tokens[len(RANKS) :]
    assert special[9:12] == (
        "<|eot_id|>",
        "<|reserved_special_token_5|>",
        "<|reserved_special_token_6|>",
    )
    assert special[-1] == "<|reserved_special_token_250|>"
    (tmp_path / "tokenizer.model").rename(tmp_path / "qwen.tiktoken")
    special = read(tmp_path, "qwen").tokens[len(RANKS) :]
    assert (special[2], special[3], special[-1]) == ("<|im_end|>", "<|extra_0|>", "<|extra_204|>")


def test_a_file_of_tekken_begins_with_special_tokens(tmp_path: Path) -> None:
    write_tekken(tmp_path / "tekken.json")
    tokenizer = read(tmp_path, "mistral")
    assert tokenizer.tokens[:4] == ("<unk>", "<s>", "</s>", "[INST]")
    assert list(tokenizer.tokens[20:]) == [*BYTES, *MERGED][:-5]
    assert tokenizer.special == {"bos": 1, "eos": 2, "unknown": 0, "padding": 11}
    write_tekken(tmp_path / "tekken.json", [{"rank": 1, "token_str": "<s>"}])
    assert read(tmp_path, "mistral").tokens[:3] == ("<SPECIAL_0>", "<s>", "<SPECIAL_2>")


@pytest.mark.real
@pytest.mark.long
def test_the_tokenizer_of_mistral_nemo_splits_texts_as_tiktoken_does(tmp_path: Path) -> None:
    path = fetch("tekken") / "tekken_240911.json"
    (tmp_path / "tekken.json").symlink_to(path)
    document = json.loads(path.read_bytes())
    size = document["config"]["default_vocab_size"] - 1000
    ranks = {b64decode(each["token_bytes"]): each["rank"] for each in document["vocab"][:size]}
    judge = tiktoken.Encoding(
        "tekken", pat_str=document["config"]["pattern"], mergeable_ranks=ranks, special_tokens={}
    )
    assert_encodes(read(tmp_path, "mistral"), judge, tmp_path / "v.gguf", first=1000)


@each(
    ("content", "message"),
    [
        (b"YQ== 0\nYg== x\n", "line 2 is not a token and a rank"),
        (b"YQ== 0\nY 1\n", "line 2 is not a token and a rank"),
        (b"YQ== 0\nYg== 2\n", "the ranks have gaps"),
        (b"YQ== 0\nYg== 1\n", "254 bytes have no token"),
    ],
)
def test_a_damaged_file_is_named(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "qwen.tiktoken").write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        read(tmp_path, "qwen")


@each(
    ("document", "message"),
    [
        ({}, "has no `config` and `vocab`"),
        ({"config": {}, "vocab": []}, "numbers of tokens are invalid"),
        (
            {"config": {"default_vocab_size": 9, "default_num_special_tokens": 1}, "vocab": [{}]},
            "the token of rank 0 is not base64",
        ),
    ],
)
def test_a_damaged_tekken_is_named(document: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps(document))
    with pytest.raises(TokenizerError, match=message):
        read(tmp_path, "mistral")


def test_a_model_whose_rule_is_not_known_is_refused(tmp_path: Path) -> None:
    write_ranks(tmp_path / "tokenizer.model", RANKS)
    with pytest.raises(TokenizerError, match="only for chatglm, llama"):
        read(tmp_path, "mistral")

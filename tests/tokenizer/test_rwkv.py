"""RWKV's vocabulary file and GGUF say the same: llama.cpp takes the tokens of a greedy trie."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest

import family_tokenizers
from family_cases import make_checkpoint
from llama_cpp import ask
from vocabulary_files import vocabulary_only
from weightctl import convert
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import Tokenizer, from_directory, from_metadata, to_documents
from weightctl.translate.tokenizer.encoding import encoder_of
from weightctl.translate.tokenizer.files import RWKV_VOCABULARY as VOCABULARY
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

TEXTS = [
    *family_tokenizers.TEXT.splitlines(keepends=True),
    family_tokenizers.TEXT,
    '\n\nUser: it\'s "so"\n\n\tAssistant\\: \\n \x00\x7f',
    "aaaaaaaaab abab aab",
    "é",
]


def pieces() -> list[bytes]:
    """Return all bytes, then pieces of the texts, some of which end inside of a character."""
    made = [bytes([byte]) for byte in range(256)]
    data = "".join(TEXTS).encode()
    more = {data[place : place + size] for place in range(0, 900, 3) for size in (2, 3, 5, 9)}
    more |= {b"\n\n", b"'\"", b"\\", b"aa", b"aaaa", b"ab", b"aab", "é".encode(), b"\t\r\n"}
    return made + sorted(more - {*made})


def vocabulary(contents: list[bytes]) -> str:
    lines: list[str] = []
    for token, content in enumerate(contents, 1):
        try:
            literal = repr(content.decode())
        except UnicodeDecodeError:
            literal = repr(content)
        lines.append(f"{token} {literal} {len(content)}\n")
    return "".join(lines)


def encode(contents: list[bytes], text: str) -> list[int]:
    """Return the ids of the longest tokens from the beginning, by a trie of bytes."""
    root: dict[Any, Any] = {}
    for token, content in enumerate(contents, 1):
        node = root
        for byte in content:
            node = node.setdefault(byte, {})
        node["id"] = token
    data, place, found = text.encode(), 0, list[int]()
    while place < len(data):
        node, end, token, after = root, place, 0, place
        while end < len(data) and data[end] in node:
            node, end = node[data[end]], end + 1
            if "id" in node:
                token, after = node["id"], end
        found.append(token)
        place = after
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / VOCABULARY).write_bytes(vocabulary(pieces()).encode())
    config = {"tokenizer_class": "RwkvTokenizer", "eos_token": "\n\n", "chat_template": "{{ 1 }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    # Published configs state such ids, which llama.cpp's converter does not use.
    (tmp_path / "config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))
    return tmp_path


def read(directory: Path, rows: int = 0) -> Tokenizer:
    found = from_directory(str(directory), rows, "rwkv7")
    assert found is not None
    return found


def test_llama_cpp_takes_the_tokens_of_the_trie(directory: Path, tmp_path: Path) -> None:
    made, contents = read(directory, 1 << 11), pieces()
    assert made.special == {"bos": 0, "eos": 0, "eot": contents.index(b"\n\n") + 1}
    ids = [encode(contents, text) for text in TEXTS]
    reported = ask(
        vocabulary_only(made, "rwkv", tmp_path / "v.gguf"),
        *(("tokenize", text) for text in TEXTS),
        *(("detokenize", each) for each in ids),
        only_vocabulary=True,
    )
    assert reported[: len(TEXTS)] == ids
    assert reported[len(TEXTS) :] == TEXTS
    encoder = encoder_of({}, str(directory), "rwkv7", "a")
    assert encoder is not None
    assert [encoder.ids(text) for text in TEXTS] == ids
    assert "".join(map(encoder.text, encoder.ids("a\n\nb"))) == "a\n\nb"


def test_the_file_comes_back_with_the_same_bytes(directory: Path) -> None:
    made = read(directory, 1 << 11)
    assert len(made.tokens) == 1 << 11
    back = to_documents(made, "rwkv7", {})
    assert back[VOCABULARY] == (directory / VOCABULARY).read_bytes()
    stated = json.loads((directory / "tokenizer_config.json").read_text())
    assert back["chat_template.jinja"].decode() == stated.pop("chat_template")
    assert json.loads(back["tokenizer_config.json"]) == stated
    plain = to_documents(replace(made, remainder=None), "rwkv7", {})
    assert json.loads(plain["tokenizer_config.json"])["tokenizer_class"] == "RwkvTokenizer"


def test_line_breaks_of_windows_are_read(directory: Path) -> None:
    (directory / VOCABULARY).write_bytes(vocabulary(pieces()).replace("\n", "\r\n").encode())
    assert read(directory).tokens[1:257] == tuple(repr(bytes([byte]))[2:-1] for byte in range(256))


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        ("98 'a 1", "line 98: it is not an id"),
        ("98 'a' 2", "line 98: it states 2 bytes for 1"),
        ("99 'a' 1", "line 98: its id is 99"),
        ("98 '\\x' 1", "line 98: its literal is invalid"),
        ("98 'b' 1", "two tokens are b'b'"),
        ("98 '' 0", "line 98: it is not an id"),
        ("98 'aaaaaaaa' 8", "the byte 0x61 has no token"),
        ("98 __import__('os') 1", "line 98: it is not an id"),
        (f"98 '{'a' * 20000}' 20000", "line 98: it is not an id"),
        ("98 'a'+'a' 2", "line 98: its literal is invalid"),
    ],
)
def test_a_damaged_line_is_named(directory: Path, new: str, reason: str) -> None:
    damaged = vocabulary(pieces()).replace("\n98 'a' 1\n", f"\n{new}\n")
    (directory / VOCABULARY).write_text(damaged)
    with pytest.raises(TokenizerError) as caught:
        read(directory)
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("token", "text", "reason"),
    [
        (300, "\\", "has an open escape"),
        (300, "\\x0", "has an open escape"),
        (300, "a", "two tokens have the same bytes"),
        (98, "aaaaaaaa", "the byte 0x61 has no token"),
    ],
)
def test_a_damaged_token_of_gguf_is_named(
    directory: Path, token: int, text: str, reason: str
) -> None:
    made = read(directory)
    tokens = (*made.tokens[:token], text, *made.tokens[token + 1 :])
    if reason.startswith("two"):
        tokens = (*made.tokens[:token], "\\x61", *made.tokens[token + 1 :])
    with pytest.raises(TokenizerError) as caught:
        to_documents(replace(made, tokens=tokens), "rwkv7", {})
    assert reason in caught.value.message


def test_a_token_that_is_not_normal_is_refused(directory: Path) -> None:
    made = read(directory)
    with pytest.raises(TokenizerError, match="can only state normal tokens"):
        to_documents(replace(made, types=(*made.types[:-1], 3)), "rwkv7", {})


@pytest.mark.long
def test_a_model_keeps_its_tokenizer_in_gguf_and_back(
    crossed: Path, tmp_path: Path, weightctl: Callable[..., Completed]
) -> None:
    source = tmp_path / "model"
    copytree(make_checkpoint("rwkv7", crossed).path, source)
    for each in source.glob("tokenizer*"):
        each.unlink()
    (source / VOCABULARY).write_text(vocabulary(pieces()[:600]))
    convert(source, tmp_path / "model.gguf")
    convert(tmp_path / "model.gguf", tmp_path / "back")
    assert (tmp_path / "back" / VOCABULARY).read_bytes() == (source / VOCABULARY).read_bytes()
    done = weightctl("verify", tmp_path / "model.gguf", "--against", source)
    assert "tokenizer rwkv, 640 tokens" in done.stdout
    tokens = ask(tmp_path / "model.gguf", ("tokenize", TEXTS[0]))
    assert tokens == [encode(pieces()[:600], TEXTS[0])]


def test_metadata_without_types_is_read() -> None:
    found = from_metadata(
        {
            "tokenizer.ggml.model": MetadataValue("string", "rwkv"),
            "tokenizer.ggml.tokens": MetadataValue("array[string]", ["<s>", "a"]),
        },
        "a.gguf",
    )
    assert found is not None
    with pytest.raises(TokenizerError, match="the byte 0x00 has no token"):
        to_documents(found, "rwkv7", {})

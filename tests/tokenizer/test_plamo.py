"""PLaMo 2's vocabulary file and GGUF say the same: the tokens with the best scores together."""

from __future__ import annotations

import json
from dataclasses import replace
from shutil import copytree
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import family_tokenizers
from family_cases import make_checkpoint
from llama_cpp import ask
from sentencepiece_files import TEXTS as HARD
from test_ranks_files import MORE
from vocabulary_files import vocabulary_only
from weightctl import convert, open_weights
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import Tokenizer, from_directory, from_metadata, to_documents
from weightctl.translate.tokenizer.encoding import encoder_of
from weightctl.translate.tokenizer.files import PLAMO_VOCABULARY as VOCABULARY
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [
    *HARD,
    *MORE,
    *family_tokenizers.TEXT.splitlines(keepends=True),
    *family_tokenizers.COMPOSED.splitlines(keepends=True),
    family_tokenizers.TEXT,
    "aaaaaaaaab abab aab",
    "\n\n\t<|plamo:bos|> <0x41> [PAD1]",
    "a\U0001f600b\u200d\u0301é日本語",
]
NAMES = ("unk", "bos", "eos", "pad", "op")


def rows() -> list[list[Any]]:
    """Return the tokens of a file: special ones, all bytes, then pieces of the texts."""
    draw = np.random.default_rng(5)
    special = [[f"<|plamo:{name}|>", 0.0, "CONTROL" if name != "op" else "NORMAL"]
               for name in NAMES]  # fmt: skip
    special[0][2] = "UNKNOWN"
    made = [*special, *([f"<0x{byte:02X}>", 0.0, "BYTE"] for byte in range(256))]
    whole = "".join(TEXTS)
    chars = sorted({*whole})
    some = [each for place, each in enumerate(chars) if place % 5]  # the others become bytes
    more = {whole[place : place + size] for place in range(0, 900, 3) for size in (2, 3, 5, 9)}
    more |= {"aa", "aaaa", "ab", "aab", "  ", "\n\n", "日本"}
    # Of these scores, many sums are equal.
    made += (
        [text, -1.5 - float(draw.integers(0, 40)) / 8 - len(text) / 4, "NORMAL"]
        for text in [*some, *sorted(more - {*some})]
        if "\0" not in text  # llama.cpp reads the texts of tokens as those of C
    )
    return made


def write(directory: Path, given: list[list[Any]], **config: Any) -> Path:
    lines = [json.dumps(row, ensure_ascii=False) for row in given]
    (directory / VOCABULARY).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    stated = {f"{name}_token": f"<|plamo:{name}|>" for name in ("unk", "bos", "eos", "pad")}
    stated |= {"tokenizer_class": "Plamo2Tokenizer", "add_bos_token": True, **config}
    (directory / "tokenizer_config.json").write_text(json.dumps(stated))
    return directory


def read(directory: Path, count: int = 0) -> Tokenizer:
    found = from_directory(str(directory), count, "plamo2")
    assert found is not None
    return found


def encode(given: list[list[Any]], text: str) -> list[int]:
    """Return the ids of the division with the best sum of scores, by trying all substrings."""
    ids = {row[0]: token for token, row in enumerate(given) if row[2] != "BYTE"}
    bytes_at = next(token for token, row in enumerate(given) if row[2] == "BYTE")
    best: list[tuple[int, list[int]]] = [(0, [])]  # of the text from its end
    for start in range(len(text) - 1, -1, -1):
        behind = len(text) - start - 1
        raw = [bytes_at + byte for byte in text[start].encode()]
        tried = [(best[behind][0] - 10**7, raw + best[behind][1])]
        for end in range(start + 1, len(text) + 1):
            token = ids.get(text[start:end])
            if token is not None:
                total, rest = best[len(text) - end]
                tried.append((total + round(given[token][1] * 1e4), [token, *rest]))
        # Of equal sums, that with the longest first token.
        best.append(max(reversed(tried), key=lambda each: each[0]))
    return best[-1][1]


def test_llama_cpp_takes_the_tokens_with_the_best_scores(tmp_path: Path) -> None:
    given = rows()
    made = read(write(tmp_path, given), len(given) + 9)
    assert made.model == "plamo2"
    assert made.tokens[-1].startswith("[PAD")
    words = {"unknown": 0, "bos": 1, "eos": 2, "padding": 3, "eot": 4}
    assert {word: made.special[word] for word in words} == words
    assert made.flags["add_bos_token"]
    ids = [encode(given, text) for text in TEXTS]
    reported = ask(
        vocabulary_only(made, "plamo2", tmp_path / "v.gguf"),
        *(("tokenize", text, False, False) for text in TEXTS),
        *(("detokenize", each) for each in ids),
        ("tokenize", "a<|plamo:op|>b", True, True),
        only_vocabulary=True,
    )
    assert reported[: len(TEXTS)] == ids
    assert reported[len(TEXTS) : -1] == TEXTS
    assert {1, 4} <= {*reported[-1]}
    encoder = encoder_of({}, str(tmp_path), "plamo2", "a")
    assert encoder is not None
    assert [encoder.ids(text) for text in TEXTS] == ids
    assert encoder.first == [1]
    assert not encoder.last
    assert "".join(map(encoder.text, encoder.ids("ab\n\naab"))) == "ab\n\naab"


def test_the_file_comes_back(tmp_path: Path) -> None:
    given = rows()
    made = read(write(tmp_path, given, chat_template="{{ 1 }}"), len(given) + 9)
    back = to_documents(made, "plamo2", {})
    expected = [[*row[:2], "CONTROL" if row[0] == "<|plamo:op|>" else row[2]] for row in given]
    assert [json.loads(line) for line in back[VOCABULARY].decode().split("\n")[:-1]] == expected
    stated = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert back["chat_template.jinja"].decode() == stated.pop("chat_template")
    assert json.loads(back["tokenizer_config.json"]) == stated
    plain = json.loads(to_documents(replace(made, remainder=None), "plamo2", {})[
        "tokenizer_config.json"])  # fmt: skip
    assert plain["tokenizer_class"] == "Plamo2Tokenizer"
    assert (plain["bos_token"], plain["add_bos_token"]) == ("<|plamo:bos|>", True)


def test_a_model_and_its_tokenizer_come_back(crossed: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    copytree(make_checkpoint("plamo2", crossed).path, source)
    (source / "tokenizer.json").unlink()
    count = json.loads((source / "config.json").read_text())["vocab_size"]
    write(source, rows()[:count])
    convert(source, tmp_path / "model.gguf")
    metadata = header_of(open_weights(tmp_path / "model.gguf")).metadata
    found = from_metadata(metadata, "model.gguf")
    assert found is not None
    assert found.model == "plamo2"
    convert(tmp_path / "model.gguf", tmp_path / "back")
    one, other = (read(each) for each in (source, tmp_path / "back"))
    assert one.tokens == other.tokens
    assert one.scores == other.scores
    assert one.types == other.types
    assert ask(tmp_path / "model.gguf", ("tokenize", TEXTS[0], False, False)) == [
        encode(rows()[:count], TEXTS[0])
    ]


@pytest.mark.parametrize(
    ("place", "new", "reason"),
    [
        (300, "[", "line 301: it is not JSON"),
        (300, '["a"]', "line 301: it is not a list of a text"),
        (300, '["a", "b", "NORMAL"]', "line 301: it is not a list of a text"),
        (300, '["", 0, "NORMAL"]', "line 301: it is not a list of a text"),
        (70, '["x y z", 0, "NORMAL"]', "the byte <0x41> has no token"),
        (300, '["<|plamo:bos|>", 0, "CONTROL"]', "line 301: line 2 has the same text"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, place: int, new: str, reason: str) -> None:
    write(tmp_path, rows())
    lines = (tmp_path / VOCABULARY).read_text("utf-8").split("\n")
    lines[place] = new
    (tmp_path / VOCABULARY).write_text("\n".join(lines), "utf-8")
    with pytest.raises(TokenizerError) as caught:
        read(tmp_path)
    assert reason in caught.value.message


def test_the_first_token_cannot_be_that_of_a_byte(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="token 0 is that of a byte"):
        read(write(tmp_path, rows()[len(NAMES) :]))


def test_a_tokenizer_of_another_class_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="only the class Plamo2Tokenizer"):
        read(write(tmp_path, rows(), tokenizer_class="Plamo3Tokenizer"))


def test_tokens_without_scores_are_not_written(tmp_path: Path) -> None:
    made = replace(read(write(tmp_path, rows())), scores=None)
    with pytest.raises(TokenizerError, match="scores` is missing"):
        to_documents(made, "plamo2", {})

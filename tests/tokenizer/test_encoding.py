"""Text is encoded as in transformers, with a checkpoint's own tokenizer."""

from __future__ import annotations

import gc
import json
import signal
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer, models

import family_tokenizers
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer import from_directory, library_process, to_metadata
from weightctl.translate.tokenizer.encoding import Encoder, encoder_of

if TYPE_CHECKING:
    from pathlib import Path

KINDS = {"llama3": "llama", "llama2": "llama", "gpt2": "gpt2", "gemma": "gemma3", "bert": "bert"}
TEXT = "The quick brown fox, 12 times over.\n\tIt's done"


@cache
def tokenizer(kind: str) -> Any:
    return getattr(family_tokenizers, kind)()


def of_directory(directory: Path, kind: str = "llama") -> Encoder:
    found = encoder_of({}, str(directory), kind, "model")
    assert found is not None
    return found


def around(encoder: Encoder, ids: list[int]) -> list[int]:
    return [*encoder.first, *ids, *encoder.last]


@pytest.mark.parametrize("kind", KINDS)
def test_a_directory_s_tokenizer_cuts_as_transformers_does(kind: str, tmp_path: Path) -> None:
    tokenizer(kind).save_pretrained(tmp_path)
    encoder = of_directory(tmp_path, KINDS[kind])
    assert around(encoder, encoder.ids(TEXT)) == tokenizer(kind)(TEXT)["input_ids"]
    assert encoder.count == len(tokenizer(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_s_tokenizer_cuts_as_the_directory_s_that_it_was_made_of(
    kind: str, tmp_path: Path
) -> None:
    tokenizer(kind).save_pretrained(tmp_path)
    made = from_directory(str(tmp_path), 0, KINDS[kind])
    assert made is not None
    encoder = encoder_of(to_metadata(made), None, KINDS[kind], "model.gguf")
    assert encoder is not None
    assert around(encoder, encoder.ids(TEXT)) == tokenizer(kind)(TEXT)["input_ids"]


def test_a_gguf_goes_by_its_own_tokenizer_and_not_by_one_that_lies_beside_it(
    tmp_path: Path,
) -> None:
    tokenizer("gpt2").save_pretrained(tmp_path)
    made = from_directory(str(tmp_path), 0, "gpt2")
    assert made is not None
    (tmp_path / "tokenizer.json").write_text("{}")
    assert encoder_of(to_metadata(made), str(tmp_path), "gpt2", "model.gguf") is not None


def test_tokens_are_text_again(tmp_path: Path) -> None:
    tokenizer("llama3").save_pretrained(tmp_path)
    encoder = of_directory(tmp_path)
    assert "".join(map(encoder.text, encoder.ids(TEXT))) == TEXT
    assert encoder.text(encoder.first[0]) == "<|begin_of_text|>"


def test_texts_are_neither_cut_short_nor_padded(tmp_path: Path) -> None:
    tokenizer("bert").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    document["truncation"] = {
        "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    document["padding"] = {
        "strategy": {"Fixed": 500}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "[PAD]",
    }  # fmt: skip
    path.write_text(json.dumps(document))
    assert 8 < len(of_directory(tmp_path, "bert").ids(TEXT)) < 100


@pytest.mark.parametrize(("reported", "first"), [(True, 1), (False, 0)])
def test_the_config_decides_on_the_token_at_the_beginning(
    reported: bool, first: int, tmp_path: Path
) -> None:
    tokenizer("llama2").save_pretrained(tmp_path)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"add_bos_token": reported, "bos_token": "<s>"}))
    assert len(of_directory(tmp_path).first) == first


def test_the_config_adds_a_beginning_that_the_document_lacks(tmp_path: Path) -> None:
    tokenizer("gpt2").save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"add_bos_token": True, "bos_token": {"content": "<|endoftext|>"}})
    )
    encoder = of_directory(tmp_path, "gpt2")
    assert list(map(encoder.text, encoder.first)) == ["<|endoftext|>"]


def test_half_a_character_for_the_token_at_the_beginning_is_refused(tmp_path: Path) -> None:
    tokenizer("gpt2").save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(r'{"bos_token": "\ud800"}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        of_directory(tmp_path, "gpt2")


def test_where_there_is_no_tokenizer_there_is_no_encoder(tmp_path: Path) -> None:
    assert encoder_of({}, str(tmp_path), "llama", "model") is None
    assert encoder_of({}, None, "llama", "model") is None


@pytest.mark.parametrize(
    "written",
    ["{}", '{"version": "1.0", "model": {"type": "BPE", "vocab": 3, "merges": []}}', "[[[", '"x"'],
)
def test_a_damaged_document_is_named(written: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(written)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        of_directory(tmp_path)


def test_a_text_that_the_library_cannot_take_is_refused(tmp_path: Path) -> None:
    tokenizer("gpt2").save_pretrained(tmp_path)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        of_directory(tmp_path, "gpt2").ids("half a character: \ud800")


# A tokenizer.json has patterns that its library runs: they have limits.


def document(normalizer: dict[str, Any]) -> bytes:
    """Return a tokenizer.json of two letters with a normalizer."""
    made = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    return json.dumps(json.loads(made.to_str()) | {"normalizer": normalizer}).encode()


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


def test_a_text_that_grows_without_limit_ends_with_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = f"import {library_process.__name__} as a; a._SECONDS = 1; a.main()"
    monkeypatch.setattr(library_process, "_PROGRAM", program)
    growing = document({"type": "Sequence", "normalizers": [DOUBLE] * 40})
    with pytest.raises(TokenizerError, match="the tokenizer needs more than 10 s or 2 GiB"):
        Encoder(growing, {}, "tokenizer.json")
    harmless = Encoder(document(DOUBLE), {}, "tokenizer.json")
    assert harmless.ids("ab") == [0, 0, 1]


def test_a_pattern_that_is_tried_in_too_many_ways_is_refused() -> None:
    pattern = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    encoder = Encoder(document(pattern), {}, "tokenizer.json")
    with pytest.raises(TokenizerError, match=r"rejects the tokenizer: .*limit"):
        encoder.ids("a" * 40 + "b")


@pytest.mark.usefixtures("own_children")
def test_the_process_of_a_tokenizer_ends_with_its_encoder() -> None:
    encoder = Encoder(document(DOUBLE), {}, "tokenizer.json")
    process = encoder._tokenizer._process
    del encoder
    gc.collect()
    assert process.returncode == -signal.SIGKILL

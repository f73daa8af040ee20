"""The reader of SentencePiece's model files, on files made by hand."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentencepiece_files import field, model_file, number, piece
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.sentencepiece.protobuf import (
    BPE,
    SentencePiece,
    SentencePieceModel,
    parse_sentencepiece,
)


def test_a_model_file_gives_its_pieces_and_what_it_says_of_them() -> None:
    data = model_file(
        [("<unk>", 0.0, 2), ("▁a", -1.5, 1)],
        bos=-1,
        eos=7,
        add_dummy_prefix=False,
        charsmap=b"map",
    )
    assert parse_sentencepiece(data, "m") == SentencePieceModel(
        pieces=(SentencePiece("<unk>", 0.0, 2), SentencePiece("▁a", -1.5, 1)),
        algorithm=BPE,
        bos=-1,
        eos=7,
        add_dummy_prefix=False,
        charsmap=b"map",
    )


def test_what_a_model_file_does_not_say_is_what_sentencepiece_takes() -> None:
    assert parse_sentencepiece(piece("a"), "m") == SentencePieceModel((SentencePiece("a", 0.0, 1),))


def test_fields_that_are_not_known_are_skipped() -> None:
    unknown = field(90, b"text") + number(91, 5) + bytes([92 << 3 & 0xFF | 5, 5, 0, 0, 0, 0])
    assert parse_sentencepiece(unknown + piece("a"), "m").pieces == (SentencePiece("a", 0.0, 1),)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "byte 0: .* no pieces"),
        (
            piece("a") + b"\x0a\xff\xff\xff\x7f",
            ("a field ends 268435455 bytes after the end of its message"),
        ),
        (piece("a") + b"\x0b", "byte 5: .* wire type 3"),
        (b"\xff" * 11, r"tokenizer\.model, byte 0: not a valid SentencePiece model"),
        (field(1, b"\x0a\x01\xff"), "byte 4: .* not UTF-8"),
        (piece("a", kind=9), "a piece has the invalid type 9"),
        (b"# a ranks file of tiktoken\n", "not a valid SentencePiece model"),
    ],
)
def test_a_file_that_is_not_a_model_is_refused_with_the_place(data: bytes, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        parse_sentencepiece(data, "tokenizer.model")


@given(st.binary(max_size=60), st.integers(0, 40))
def test_damage_is_an_error_or_a_model_and_never_a_crash(damage: bytes, place: int) -> None:
    data = model_file([("<unk>", 0.0, 2), ("a", -1.0, 1)])
    with suppress(TokenizerError):
        assert parse_sentencepiece(data[:place] + damage + data[place + len(damage) :], "m").pieces

"""SentencePiece's model files, created by hand; its compiled normalizer, and its merges."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from lazy import transformers
from sentencepiece_files import TEXTS, charsmap, field, model_file, number, piece
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.sentencepiece.normalizers import Charsmap
from weightctl.translate.tokenizer.sentencepiece.protobuf import (
    BPE,
    SentencePiece,
    SentencePieceModel,
    parse_sentencepiece,
)
from weightctl.translate.tokenizer.sentencepiece.tokens import merges_from_scores, rank_tokens


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


def test_characters_are_replaced_as_the_library_replaces_them() -> None:
    library = normalizers.Precompiled(charsmap())
    table = Charsmap(charsmap(), "x")
    for character in {each for text in TEXTS for each in text} - {"\0"}:
        replaced = table.replacement(character)
        found = character if replaced is None else replaced
        assert found == library.normalize_str(character), f"U+{ord(character):04X}"


def test_a_text_of_several_characters_has_a_replacement_of_its_own() -> None:
    table = Charsmap(charsmap(), "x")
    assert table.replacement("e\u0301") == "é"
    assert table.replacement("plain") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0",
        struct.pack("<I", 0) + b"a\0",
        struct.pack("<I", 3) + b"aaa\0",
        struct.pack("<I", 4) + b"aaaa",  # no replacements
        struct.pack("<I", 4) + b"aaaaa",  # one that is not terminated
        struct.pack("<I", 1 << 31) + b"aaaa\0",
    ],
)
def test_bytes_that_llama_cpp_refuses_are_refused(data: bytes) -> None:
    with pytest.raises(TokenizerError, match=r"^x: its `precompiled_charsmap` is damaged"):
        Charsmap(data, "x")


@given(st.binary(max_size=64), st.text(max_size=4))
def test_no_bytes_are_met_with_any_other_error(data: bytes, text: str) -> None:
    size = len(data) // 4 * 4
    try:
        found = Charsmap(struct.pack("<I", size) + data + b"\0", "x").replacement(text)
        assert found is None or isinstance(found, str)
    except TokenizerError as error:
        assert error.hint  # noqa: PT017


_SCORES = st.dictionaries(st.text("ab▁", min_size=1, max_size=5), st.integers(-9, 0).map(float))


def test_the_token_of_the_highest_score_is_joined_first_in_every_way_it_can_be() -> None:
    scores = {"a": -9.0, "b": -9.0, "ab": -2.0, "aba": -3.0, "ba": -1.0}
    assert merges_from_scores(scores) == [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]


def keys(pair: tuple[str, str], scores: dict[str, float]) -> tuple[float, int, int]:
    left, right = pair
    return scores[left + right], len(left), len(right)


@given(_SCORES)
def test_merges_are_those_that_transformers_makes(scores: dict[str, float]) -> None:
    ids = {token: index for index, token in enumerate(scores)}
    made = transformers.tokenization_utils_base.generate_merges(ids, scores)
    # Pairs that are otherwise equal are in different orders, which does not change any joins.
    assert sorted(merges_from_scores(scores)) == sorted(made)
    assert [keys(pair, scores) for pair in merges_from_scores(scores)] == [
        keys(pair, scores) for pair in made
    ]


@given(_SCORES)
def test_tokens_that_merges_make_are_ranked_as_their_scores_are(scores: dict[str, float]) -> None:
    distinct = {token: -float(place) for place, token in enumerate(scores)}
    made = rank_tokens(merges_from_scores(distinct))
    assert list(made) == sorted(made, key=distinct.__getitem__, reverse=True)

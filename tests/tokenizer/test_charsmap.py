"""SentencePiece's compiled normalizer."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import normalizers

from sentencepiece_fixture import charsmap
from sentencepiece_texts import TEXTS
from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.charsmap import Charsmap


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
        struct.pack("<I", 4) + b"aaaaa",  # one that does not end
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

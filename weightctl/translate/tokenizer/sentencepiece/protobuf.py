"""Parsing of a SentencePiece model file: the fields that define the tokenizer.

The file is a protobuf message, `ModelProto` of sentencepiece's `sentencepiece_model.proto`; its
other fields are skipped. Lengths are checked before anything is read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from weightctl.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Iterator

UNIGRAM: Final = 1
BPE: Final = 2

# Wire types: the encodings of a field's content.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
# The largest known vocabularies have 300,000 pieces.
_MAX_PIECES = 1 << 20
_HINT = "download tokenizer.model again from the source of the checkpoint"


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """A token; `type` is a `TokenType` of GGUF, which has the same numbers as sentencepiece."""

    text: str
    score: float
    type: int


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """The content of a SentencePiece model file; ids of missing tokens are -1.

    `normalizer` is the name of the rule whose compiled form is `charsmap`. `escapes_spaces`: the
    model sees spaces as `▁`. `marks_word_ends`: the mark is after a word, not before it.
    `denormalizes`: the text of generated tokens is changed too.
    """

    pieces: tuple[SentencePiece, ...]
    algorithm: int = UNIGRAM
    unknown: int = 0
    bos: int = 1
    eos: int = 2
    padding: int = -1
    normalizer: str = ""
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escapes_spaces: bool = True
    marks_word_ends: bool = False
    denormalizes: bool = False


def parse_sentencepiece(data: bytes, path: str) -> SentencePieceModel:
    """Return the content of a SentencePiece model file.

    Raises `TokenizerError`, with the path and the byte offset, if it is invalid.
    """
    return _Reader(data, path).model()


class _Reader:
    def __init__(self, data: bytes, path: str) -> None:
        self._data = data
        self._path = path

    def model(self) -> SentencePieceModel:
        pieces: list[SentencePiece] = []
        numbers: dict[int, int] = {}
        flags: dict[int, int] = {}
        name = charsmap = denormalizer = b""
        for number, wire, start, value in self._fields(0, len(self._data)):
            if wire != _BYTES:
                continue
            if number == 1:
                if len(pieces) == _MAX_PIECES:
                    raise self._error(start, f"it has more than {_MAX_PIECES} pieces")
                pieces.append(self._piece(start, value))
            elif number == 2:
                numbers |= self._read_integers(start, value)
            elif number == 3:
                flags |= self._read_integers(start, value)
                name = self._bytes_of(1, start, value) or name
                charsmap = self._bytes_of(2, start, value) or charsmap
            elif number == 5:
                denormalizer = self._bytes_of(2, start, value) or denormalizer
        if not pieces:
            raise self._error(0, "it has no pieces")
        return SentencePieceModel(
            pieces=tuple(pieces),
            algorithm=numbers.get(3, UNIGRAM),
            unknown=_to_signed(numbers.get(40, 0)),
            bos=_to_signed(numbers.get(41, 1)),
            eos=_to_signed(numbers.get(42, 2)),
            padding=_to_signed(numbers.get(43, -1)),
            normalizer=name.decode("utf-8", "replace"),
            charsmap=charsmap,
            add_dummy_prefix=bool(flags.get(3, 1)),
            remove_extra_whitespaces=bool(flags.get(4, 1)),
            escapes_spaces=bool(flags.get(5, 1)),
            marks_word_ends=bool(numbers.get(24, 0)),
            denormalizes=bool(denormalizer),
        )

    def _piece(self, start: int, stop: int) -> SentencePiece:
        text, score, kind = "", 0.0, 1
        for number, wire, at, value in self._fields(start, stop):
            if number == 1 and wire == _BYTES:
                try:
                    text = str(self._data[at:value], "utf-8")
                except ValueError:
                    raise self._error(at, "a piece is not UTF-8") from None
            elif number == 2 and wire == _FIXED32:
                (score,) = struct.unpack_from("<f", self._data, at)
            elif number == 3 and wire == _VARINT:
                kind = value
        if not 1 <= kind <= 6:
            raise self._error(start, f"a piece has the invalid type {kind}")
        return SentencePiece(text, score, kind)

    def _read_integers(self, start: int, stop: int) -> dict[int, int]:
        return {
            number: value for number, wire, _, value in self._fields(start, stop) if wire == _VARINT
        }

    def _bytes_of(self, wanted: int, start: int, stop: int) -> bytes:
        found = b""
        for number, wire, at, value in self._fields(start, stop):
            if number == wanted and wire == _BYTES:
                found = self._data[at:value]
        return found

    def _fields(self, start: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield the number and wire type of each field, the offset of its content, and a value.

        The value is the integer of a varint; for other types, it is the end of the content.
        """
        at = start
        while at < stop:
            key, content = self._varint(at, stop)
            wire = key & 7
            if wire == _VARINT:
                value, after = self._varint(content, stop)
            elif wire == _BYTES:
                length, content = self._varint(content, stop)
                value = after = content + length
            elif wire in {_FIXED32, _FIXED64}:
                value = after = content + (4 if wire == _FIXED32 else 8)
            else:
                raise self._error(at, f"a field has the invalid wire type {wire}")
            if after > stop:
                raise self._error(
                    at, f"a field ends {after - stop} bytes after the end of its message"
                )
            yield key >> 3, wire, content, value
            at = after

    def _varint(self, at: int, stop: int) -> tuple[int, int]:
        value = shift = 0
        for position in range(at, min(stop, at + 10)):
            byte = self._data[position]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position + 1
            shift += 7
        raise self._error(at, "a number is incomplete")

    def _error(self, offset: int, message: str) -> TokenizerError:
        return TokenizerError(
            f"{self._path}, byte {offset}: not a valid SentencePiece model: {message}", hint=_HINT
        )


def _to_signed(value: int) -> int:
    # A negative int32 is written as the 64 bits of an int64.
    return value - (1 << 64) if value >= 1 << 63 else value

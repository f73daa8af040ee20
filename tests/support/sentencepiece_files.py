"""SentencePiece model files made by hand, field by field; nothing here comes from weightctl."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def number(key: int, value: int) -> bytes:
    """Return a field that is an integer."""
    return varint(key << 3) + varint(value)


def field(key: int, content: bytes) -> bytes:
    """Return a field that is a string, bytes or a message."""
    return varint(key << 3 | 2) + varint(len(content)) + content


def piece(text: str, score: float | None = None, kind: int | None = None) -> bytes:
    """Return a piece, as the field of a model that it is."""
    content = field(1, text.encode())
    if score is not None:
        content += varint(2 << 3 | 5) + struct.pack("<f", score)
    if kind is not None:
        content += number(3, kind)
    return field(1, content)


def model_file(
    pieces: Iterable[tuple[str, float, int]],
    *,
    algorithm: int = 2,
    bos: int = 1,
    eos: int = 2,
    add_dummy_prefix: bool = True,
    charsmap: bytes = b"",
    normalizer: bytes = b"",
    trainer: bytes = b"",
    more: bytes = b"",
) -> bytes:
    """Return a tokenizer.model; the algorithm is BPE, 2, or unigram, 1; pieces of bytes are used.

    `normalizer` and `trainer` are further fields of these two, and `more` those of the model.
    """
    pieces = list(pieces)
    trainer += number(35, any(kind == 6 for _, _, kind in pieces))
    content = number(3, algorithm) + number(41, bos) + number(42, eos) + trainer
    rules = field(2, charsmap) + number(3, add_dummy_prefix) + normalizer
    return b"".join(piece(*each) for each in pieces) + field(2, content) + field(3, rules) + more


def keeps_spaces() -> bytes:
    """Return the field of a normalizer that keeps extra spaces."""
    return number(4, 0)

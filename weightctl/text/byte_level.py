"""The spelling of bytes as printable characters that byte-level tokenizers use (GPT-2)."""

from __future__ import annotations

from functools import cache

# Printable characters of Latin-1 stand for their own byte. The other bytes get the characters from
# here on, in order.
_FIRST = 256


@cache
def _list_characters() -> tuple[str, ...]:
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)}
    others = iter(range(_FIRST, 2 * _FIRST))
    return tuple(chr(byte if byte in plain else next(others)) for byte in range(256))


@cache
def _number_characters() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(_list_characters())}


def to_byte_level(raw: bytes) -> str:
    """Return a character for each byte."""
    characters = _list_characters()
    return "".join([characters[byte] for byte in raw])


def from_byte_level(spelled: str) -> bytes:
    """Return the bytes; raises `KeyError` for a character that does not stand for a byte."""
    numbers = _number_characters()
    return bytes([numbers[character] for character in spelled])

"""SentencePiece's compiled normalizer: a table of texts and what each of them is replaced with.

The texts are a double array as darts-clone stores it, after its length in bytes; the replacements
follow it, each ended by a zero byte.
"""

from __future__ import annotations

import struct

from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.files import KEEP_HINT

__all__ = ["Charsmap"]

_WORD = struct.Struct("<I")
_LABEL = 1 << 31 | 0xFF
_VALUE = (1 << 31) - 1
_HAS_LEAF, _IS_WIDE = 1 << 8, 1 << 9


class Charsmap:
    """A compiled normalizer; `where` names it in errors.

    Raises `TokenizerError` for bytes that llama.cpp refuses.
    """

    def __init__(self, data: bytes, where: str) -> None:
        self._where = where
        size = _WORD.unpack_from(data)[0] if len(data) >= _WORD.size else 0
        if not size or size % _WORD.size or size + _WORD.size >= len(data) or data[-1]:
            raise self._report_damage(
                f"{len(data)} bytes are too few for a table of {size} bytes and its texts"
            )
        self._units = memoryview(data)[_WORD.size : _WORD.size + size]
        self._texts = memoryview(data)[_WORD.size + size :]

    def replacement(self, text: str) -> str | None:
        """Return what a whole text is replaced with, None if the table does not have it.

        Raises `TokenizerError` if the table leads out of itself.
        """
        unit = self._unit(0)
        place = _offset(unit)
        for byte in text.encode():
            place ^= byte
            unit = self._unit(place)
            if unit & _LABEL != byte:
                return None
            place ^= _offset(unit)
        if not unit & _HAS_LEAF:
            return None
        start = self._unit(place) & _VALUE
        if start >= len(self._texts):
            raise self._report_damage(
                f"the replacement at byte {start} is past the end of the {len(self._texts)} bytes "
                f"of texts"
            )
        found = bytes(self._texts[start:]).split(b"\0", 1)[0]
        return found.decode("utf-8", "replace")

    def _unit(self, place: int) -> int:
        if place * _WORD.size >= len(self._units):
            raise self._report_damage(
                f"entry {place} does not exist: the table has {len(self._units) // _WORD.size} "
                f"entries"
            )
        unit: int = _WORD.unpack_from(self._units, place * _WORD.size)[0]
        return unit

    def _report_damage(self, what: str) -> TokenizerError:
        return TokenizerError(
            f"{self._where}: its `precompiled_charsmap` is damaged: {what}", hint=KEEP_HINT
        )


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & _IS_WIDE) >> 6)

"""Wrapping of text to a number of columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Spaces, except between a number and its unit.
_BETWEEN_WORDS = re.compile(r" (?!%)(?!(?<=\d )(?:nats|[kMGT]i?B?|B)\b)")


def width(text: str) -> int:
    """Return how many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width  # seldom needed

    return sum(
        0 if combining(char) else 2 if east_asian_width(char) in {"W", "F"} else 1 for char in text
    )


def wrap_text(text: str, room: int, *, cuts_words: bool = False) -> list[str]:
    """Return a printable text in lines of at most `room` columns.

    Lines break between words. A word that is longer than a line, such as a path, has a line of its
    own; it is split only if `cuts_words` is set.
    """
    lines: list[str] = []
    line = ""
    for word in _words(text, room if cuts_words else None):
        if line and width(line) + 1 + width(word) > room:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line else lines


def _words(text: str, most: int | None) -> Iterator[str]:
    for word in _BETWEEN_WORDS.split(" ".join(text.split())):
        left = word
        while most is not None and width(left) > most and len(left) > 1:
            end = most
            while end > 1 and width(left[:end]) > most:
                end -= 1
            yield left[:end]
            left = left[end:]
        yield left

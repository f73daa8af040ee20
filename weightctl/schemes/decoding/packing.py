"""Numbers of a few bits out of the words that they are packed in."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import U8

__all__ = ["PackingLayout", "unpack_table"]


class PackingLayout(NamedTuple):
    """How numbers of `bits` bits follow one another in words of `word` bits, the lowest first.

    They are one stream of bits; with `whole` no number is split between two words, and what is left
    of a word is unused. Where they do not stand in their own order, `order` has the place of each.
    """

    bits: int
    word: int
    whole: bool = False
    order: tuple[int, ...] = ()

    @property
    def numbers(self) -> int:
        """How many numbers there are in `words` words, after which all repeats."""
        return self.word // self.bits if self.whole else self.word // gcd(self.bits, self.word)

    @property
    def words(self) -> int:
        """How many words those numbers fill."""
        return 1 if self.whole else self.bits // gcd(self.bits, self.word)

    def words_of(self, count: int) -> int:
        """Return how many words this many numbers fill."""
        if self.whole:
            return -(-count // self.numbers)
        return -(-count * self.bits // self.word)


def unpack_table(words: NDArray[Any], layout: PackingLayout, axis: int) -> U8:
    """Return the numbers of a table of unsigned words, packed along an axis (0 or 1).

    Where the words end within a repetition of the layout, the numbers that are not there are 0.
    """
    missing = -words.shape[axis] % layout.words
    if missing:
        padding = [(0, 0), (0, 0)]
        padding[axis] = (0, missing)
        words = np.pad(words, padding)
    bits, numbers, width = layout.bits, layout.numbers, layout.words
    rows, columns = words.shape
    if axis:
        grouped = words.reshape(rows, columns // width, width)
        made = np.empty((rows, columns // width, numbers), np.uint8)
    else:
        grouped = np.moveaxis(words.reshape(rows // width, width, columns), 1, 2)
        made = np.moveaxis(np.empty((rows // width, numbers, columns), np.uint8), 1, 2)
    mask = words.dtype.type((1 << bits) - 1)
    for index in range(numbers):
        place, shift = divmod(index * bits, layout.word)
        level = grouped[..., place] >> words.dtype.type(shift)
        if shift + bits > layout.word:
            level |= grouped[..., place + 1] << words.dtype.type(layout.word - shift)
        level &= mask
        made[..., layout.order[index] if layout.order else index] = level
    if axis:
        return made.reshape(rows, -1)
    return np.moveaxis(made, 2, 1).reshape(-1, columns)

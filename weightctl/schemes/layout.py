"""How the codes and scales of a weight are laid out in stored tensors; used in both directions.

A scheme describes its layout once: decoding unpacks tables of words as a `Packing` states, and
encoding derives the shapes and bytes of all stored tensors from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import gcd, lcm, prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS
from weightctl.schemes.naming import divide_up

if TYPE_CHECKING:
    from weightctl.schemes.arrays.rounding import Rounding


class Packing(NamedTuple):
    """How values of `bits` bits are packed into words of `word` bits, lowest bits first.

    They are packed along the rows of a table (`axis` 1) or along its columns (0), as one stream of
    bits. With `whole`, no value is split between two words, and the rest of a word is unused. If
    the values are permuted, `order` has the index of each.
    """

    bits: int
    word: int
    axis: int = 1
    whole: bool = False
    order: tuple[int, ...] = ()

    @property
    def numbers(self) -> int:
        """The number of values in one repetition of the layout, which has `words` words."""
        return self.word // self.bits if self.whole else self.word // gcd(self.bits, self.word)

    @property
    def words(self) -> int:
        """The number of words in one repetition of the layout."""
        return 1 if self.whole else self.bits // gcd(self.bits, self.word)

    def words_of(self, count: int) -> int:
        """Return the number of words that hold `count` values."""
        if self.whole:
            return divide_up(count, self.numbers)
        return divide_up(count * self.bits, self.word)

    def shape_of(self, table: tuple[int, int]) -> tuple[int, int]:
        """Return the number of rows and columns of the words that hold a table of values."""
        rows, columns = table
        return (rows, self.words_of(columns)) if self.axis else (self.words_of(rows), columns)


class PartContent(Enum):
    """What a stored tensor holds of a weight."""

    CODES = "a code for each value"
    SCALES = "a scale for each block"
    OFFSETS = "a zero point or a bias for each block"
    WHOLE_SCALE = "a scale of the whole weight"


class StoredPart(NamedTuple):
    """A tensor that a weight is stored in: the ending of its name, its content and encoding.

    `packing` states how codes or zero points are packed. `shape` is given if it is not that of
    the table. If blocks have no zero points, all are `zero`.
    """

    ending: str
    content: PartContent
    encoding: str
    packing: Packing | None = None
    shape: tuple[int, ...] = ()
    zero: int = 0

    @property
    def size(self) -> int:
        """The size of an element, or of a word, in bytes."""
        return ENCODINGS[self.encoding].size


class ConstantPart(NamedTuple):
    """A tensor beside a weight that does not depend on its values."""

    ending: str
    encoding: str
    shape: tuple[int, ...]
    raw: bytes


@dataclass(frozen=True, slots=True)
class WeightEncoding:
    """How a weight is rounded and stored, as a table whose columns are its last axis.

    The first part has the codes. If it is `by_columns`, columns of the weight are rows of the
    stored tables.
    """

    parts: tuple[StoredPart | ConstantPart, ...]
    shape: tuple[int, ...]
    rounding: Rounding
    by_columns: bool = False

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def unit(self) -> int:
        """The number of rows, or columns if it is `by_columns`, that are packed together."""
        return lcm(*(self._span(part) for part in self.parts if isinstance(part, StoredPart)))

    def _span(self, part: StoredPart) -> int:
        """Return the number of rows or columns of the weight that share words of a part."""
        values = part.packing.numbers if part.packing and not part.packing.axis else 1
        if part.content is PartContent.CODES:
            return values
        grid = self.rounding.grid
        return values * max(1, grid.columns if self.by_columns else grid.rows)

    def shape_of(self, part: StoredPart) -> tuple[int, ...]:
        if self._is_whole(part):
            return (1,)
        return part.shape or self._count_words(part, self.rows, self.columns)

    def unit_bytes(self, part: StoredPart) -> int:
        """Return the bytes of a part that each unit fills; the last unit can fill fewer.

        If it is 0, the part is the same for the whole weight.
        """
        if self._is_whole(part):
            return 0
        rows, columns = self.rows, self.columns
        unit = (rows, self.unit) if self.by_columns else (self.unit, columns)
        return part.size * prod(self._count_words(part, *unit))

    def _is_whole(self, part: StoredPart) -> bool:
        is_scale = part.content is PartContent.SCALES and not self.rounding.grid.columns
        return is_scale or part.content is PartContent.WHOLE_SCALE

    def _count_words(self, part: StoredPart, rows: int, columns: int) -> tuple[int, int]:
        """Return the shape of a part for some rows and columns of the weight."""
        if part.content is not PartContent.CODES:
            grid = self.rounding.grid
            rows, columns = divide_up(rows, grid.rows), divide_up(columns, grid.columns)
        table = (columns, rows) if self.by_columns else (rows, columns)
        return part.packing.shape_of(table) if part.packing else table

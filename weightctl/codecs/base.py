"""What every encoding's module offers, and how its work is cut into pieces that stay in cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["F32", "U8", "Codec", "tiles"]

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class Codec(Protocol):
    """A module, or an object, that turns numbers into the bytes of one encoding and back."""

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:
        """Fill `out`, shape (r, n // block * size), with `rows`, shape (r, n), encoded.

        `n` is a multiple of the encoding's block. `importance`, shape (n,), says how much an error
        in each column matters (ggml's `quant_weights`).
        """
        ...

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // block * size)."""
        ...


def tiles(shape: tuple[int, ...], area: int) -> Iterator[tuple[slice, slice]]:
    """Cut a table of (rows, columns) into rectangles of at most `area` cells.

    They are whole rows if one fits, else parts of one row.
    """
    rows, columns = shape
    width = max(1, min(columns, area))
    height = max(1, area // width)
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield slice(top, top + height), slice(left, left + width)

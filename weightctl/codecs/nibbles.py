"""What ggml's blocks of 32 numbers in 4 or 5 bits share: weights, and how levels are packed.

Byte i of a block's `low` has the low four bits of the levels of numbers i and i + 16. Where there
is a fifth bit, that of number i is bit i of `high`, little endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.search import sum_of_squares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

    # From numbers (r, b, 32), and their weights or None: levels of that shape, and what each field
    # of scales holds, shape (r, b).
    Fit = Callable[[F32, F32 | None], tuple[U8, dict[str, F32]]]

__all__ = ["encode", "unpacked"]

_TILE = 2048  # blocks
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)


def encode(rows: F32, importance: F32 | None, blocks: NDArray[np.void], fit: Fit) -> None:
    """Fill `blocks`, shape (r, n // 32), with what `fit` makes of `rows`, shape (r, n).

    ggml weights a number by the importance of its column, shape (n,), and by its own size beside
    that of its whole row.
    """
    x = rows.reshape(*blocks.shape, 32)
    with np.errstate(all="ignore"):
        if importance is None:
            for tile in tiles(blocks.shape, _TILE):
                _pack(*fit(x[tile], None), blocks[tile])
            return
        columns = importance.reshape(-1, 32)
        variance = (sum_of_squares(rows) / np.float32(rows.shape[1]))[:, None, None]
        for tile in tiles(blocks.shape, _TILE):
            part = x[tile]
            weights = columns[tile[1]] * np.sqrt(variance[tile[0]] + part * part)
            _pack(*fit(part, weights), blocks[tile])


def _pack(level: U8, scales: dict[str, F32], block: NDArray[np.void]) -> None:
    for name, values in scales.items():
        block[name] = values
    block["low"] = level[..., :16] & 15 | level[..., 16:] << 4
    if "high" in (block.dtype.names or ()):
        block["high"] = np.packbits(level >> 4, axis=-1, bitorder="little")


def unpacked(
    blocks: NDArray[np.void], out: F32
) -> Iterator[tuple[NDArray[np.void], NDArray[np.int8], F32]]:
    """Yield blocks (r, b), their levels (r, b, 32), and where their numbers go, the same shape.

    Together these cover `blocks`, shape (r, n // 32), and `out`, shape (r, n).
    """
    values = out.reshape(*blocks.shape, 32)
    for tile in tiles(blocks.shape, _TILE):
        part = blocks[tile]
        if "high" in (part.dtype.names or ()):
            level = np.unpackbits(part["high"], axis=-1, bitorder="little")
            level <<= 4
        else:
            level = np.zeros((*part.shape, 32), np.uint8)
        # Sixteen low bits are two words here, and each word is one of a long column.
        low, words = part["low"].view(np.uint64), level.view(np.uint64)
        for i in range(2):
            words[..., i] |= low[..., i] & _LOW
            words[..., i + 2] |= low[..., i] >> np.uint64(4) & _LOW
        yield part, level.view(np.int8), values[tile]

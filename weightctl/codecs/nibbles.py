"""Blocks of 32 values with levels of 4 or 5 bits, and the packing of levels in pairs.

Byte i of a block's `low` has the low four bits of the levels of elements i and i + 16. The fifth
bit of element i, if there is one, is bit i of `high`, little endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.scale_search import sum_of_squares

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8

_TILE = 2048  # blocks
_LOW = np.uint64(0x0F0F0F0F0F0F0F0F)


class NibbleCodec(NamedTuple):
    """The codec of blocks of 32 values with levels of 4 or 5 bits.

    `fit` takes values of shape (r, b, 32), and their weights or None; it returns levels of the same
    shape, and the content of each scale field, shape (r, b). `restore` fills an array of shape (r,
    b, 32) from levels of that shape and their blocks, shape (r, b).
    """

    block_dtype: np.dtype[np.void]
    fit: Callable[[F32, F32 | None], tuple[U8, dict[str, F32]]]
    restore: Callable[[NDArray[np.int8], NDArray[np.void], F32], None]

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:
        """Fill `out` with the blocks of `rows`: the bytes of ggml's `quantize_...`.

        As in ggml, the weight of a value depends on the importance of its column and on its square
        plus the mean square of the row.
        """
        blocks = out.view(self.block_dtype)
        x = rows.reshape(*blocks.shape, 32)
        with np.errstate(all="ignore"):
            if importance is None:
                for tile in tiles(blocks.shape, _TILE):
                    _store(*self.fit(x[tile], None), blocks[tile])
                return
            columns = importance.reshape(-1, 32)
            variance = (sum_of_squares(rows) / np.float32(rows.shape[1]))[:, None, None]
            for tile in tiles(blocks.shape, _TILE):
                part = x[tile]
                weights = columns[tile[1]] * np.sqrt(variance[tile[0]] + part * part)
                _store(*self.fit(part, weights), blocks[tile])

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the values of `blocks`."""
        with np.errstate(all="ignore"):
            for block, level, values in _unpack(blocks.view(self.block_dtype), out):
                self.restore(level, block, values)


def _store(level: U8, scales: dict[str, F32], block: NDArray[np.void]) -> None:
    for name, values in scales.items():
        block[name] = values
    pack_levels(level, block)


def pack_levels(level: U8, block: NDArray[np.void]) -> None:
    """Store levels (..., 32), each from 0 on, in blocks of shape (...)."""
    block["low"] = level[..., :16] & 15 | level[..., 16:] << 4
    if "high" in (block.dtype.names or ()):
        block["high"] = np.packbits(level >> 4, axis=-1, bitorder="little")


def _unpack(
    blocks: NDArray[np.void], out: F32
) -> Iterator[tuple[NDArray[np.void], NDArray[np.int8], F32]]:
    """Yield blocks (r, b), their levels (r, b, 32), and views of `out` of the same shape.

    Together they cover `blocks`, shape (r, n // 32), and `out`, shape (r, n).
    """
    values = out.reshape(*blocks.shape, 32)
    for tile in tiles(blocks.shape, _TILE):
        part = blocks[tile]
        if "high" in (part.dtype.names or ()):
            level = np.unpackbits(part["high"], axis=-1, bitorder="little")
            level <<= 4
        else:
            level = np.zeros((*part.shape, 32), np.uint8)
        # The low bits are processed as two 64-bit words per block.
        low, words = part["low"].view(np.uint64), level.view(np.uint64)
        for i in range(2):
            words[..., i] |= low[..., i] & _LOW
            words[..., i + 2] |= low[..., i] >> np.uint64(4) & _LOW
        yield part, level.view(np.int8), values[tile]


def pack_pairs(level: U8) -> U8:
    """Return the bytes (..., n / 2) of 4-bit levels (..., n): byte i has i and, high, i + n / 2."""
    half = level.shape[-1] // 2
    both: U8 = level[..., :half] | level[..., half:] << np.uint8(4)
    return both


def unpack_pairs(q: U8) -> U8:
    """Return the levels (..., n) in bytes (..., n / 2) from `pack_pairs`."""
    return np.concatenate([q & np.uint8(15), q >> np.uint8(4)], axis=-1)

"""TQ1_0: 256 numbers as -1, 0 or 1, five in a byte, times one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs.base import tiles
from weightctl.codecs.ternary import decoded, leveled

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_tq1_0`. Byte i of each part has numbers i, i + its bytes, i + twice its bytes ...,
# the first the most significant of five ternary digits; `third` has four numbers in a byte.
BLOCK = np.dtype([("first", "u1", 32), ("second", "u1", 16), ("third", "u1", 4), ("scale", "<f2")])
assert BLOCK.itemsize == 54  # noqa: S101  (the layout itself, not a check of input)

# Where each part's numbers begin and end, and how many are in a byte.
_PARTS = {"first": (0, 160, 5), "second": (160, 240, 5), "third": (240, 256, 4)}
_TILE = 256  # blocks


def encode(rows: F32, importance: F32 | None, out: U8) -> None:  # noqa: ARG001
    """Fill `out`, shape (r, n // 256 * 54), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_tq1_0`; as there, `importance` changes nothing.
    """
    blocks = out.view(BLOCK)
    x = rows.reshape(*blocks.shape, 256)
    with np.errstate(all="ignore"):
        for tile in tiles(blocks.shape, _TILE):
            block = blocks[tile]
            block["scale"], level = leveled(x[tile])
            for name, (start, stop, digits) in _PARTS.items():
                part = level[..., start:stop].reshape(*block.shape, digits, -1)
                number = np.zeros(block[name].shape, np.uint16)
                for i in range(5):
                    number *= 3
                    if i < digits:
                        number += part[..., i, :]
                # The byte is the fraction number / 243, rounded up: each multiplication by 3 then
                # carries the next digit out of it.
                block[name] = (number * np.uint16(256) + np.uint16(242)) // np.uint16(243)


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 256 * 54)."""
    block = blocks.view(BLOCK)
    values = out.reshape(*block.shape, 256)
    with np.errstate(all="ignore"):
        for tile in tiles(block.shape, _TILE):
            part = block[tile]
            level = np.empty((*part.shape, 256), np.uint8)
            for name, (start, stop, digits) in _PARTS.items():
                fraction = part[name].copy()
                digit = level[..., start:stop].reshape(*part.shape, digits, -1)
                for i in range(digits):
                    digit[..., i, :] = fraction.astype(np.uint16) * np.uint16(3) >> np.uint16(8)
                    fraction *= 3
                level[..., start:stop] = digit.reshape(*part.shape, -1)
            decoded(level, part["scale"], values[tile])

"""Q4_1: 32 numbers in 4 bits each, one scale and one min."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import affine

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_q4_1`.
BLOCK = np.dtype([("scale", "<f2"), ("min", "<f2"), ("low", "u1", 16)])
assert BLOCK.itemsize == 20  # noqa: S101  (the layout itself, not a check of input)

_MOST = 15


def encode(rows: F32, importance: F32 | None, out: U8) -> None:
    """Fill `out`, shape (r, n // 32 * 20), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_q4_1`.
    """
    affine.encode(rows, importance, out.view(BLOCK), _MOST)


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 32 * 20)."""
    affine.decode(blocks.view(BLOCK), out)

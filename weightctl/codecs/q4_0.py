"""Q4_0: 32 numbers in 4 bits each and one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import symmetric

if TYPE_CHECKING:
    from weightctl.codecs.base import F32, U8

__all__ = ["BLOCK", "decode", "encode"]

# ggml's `block_q4_0`. A level of 8 is zero.
BLOCK = np.dtype([("scale", "<f2"), ("low", "u1", 16)])
assert BLOCK.itemsize == 18  # noqa: S101  (the layout itself, not a check of input)

_HALF = 8


def encode(rows: F32, importance: F32 | None, out: U8) -> None:
    """Fill `out`, shape (r, n // 32 * 18), with the blocks of `rows`, shape (r, n).

    The bytes are those of ggml's `quantize_q4_0`.
    """
    symmetric.encode(rows, importance, out.view(BLOCK), _HALF)


def decode(blocks: U8, out: F32) -> None:
    """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // 32 * 18)."""
    symmetric.decode(blocks.view(BLOCK), out, _HALF)

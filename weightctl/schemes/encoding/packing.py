"""Packing of codes into words, the inverse of `decoding.tables`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.kernels import pair_packer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.base import U8
    from weightctl.schemes.encoding.rounding import Codes

__all__ = [
    "as_bytes",
    "pack_columns",
    "pack_high_first",
    "pack_rows",
    "reorder",
    "transpose",
    "transpose_words",
    "zeros_of",
]


def pack_rows(codes: U8, bits: int, *, word: int = 8) -> U8:
    """Return the bytes of codes that are packed along rows, lowest bits first.

    `bits` is 4 or 8. Rows are padded to words of `word` bits.
    """
    missing = -codes.shape[1] % (word // bits)
    if missing:
        codes = np.pad(codes, ((0, 0), (0, missing)))
    if bits == 8:
        return np.ascontiguousarray(codes)
    return _pack_pairs(codes, high_first=False)


def pack_columns(codes: U8, bits: int) -> U8:
    """Return the bytes of codes that are packed along columns into words of 32 bits.

    Columns are padded to whole words.
    """
    count = 32 // bits
    missing = -codes.shape[0] % count
    if missing:
        codes = np.pad(codes, ((0, missing), (0, 0)))
    grouped = codes.reshape(-1, count, codes.shape[1])
    words = np.zeros((grouped.shape[0], codes.shape[1]), np.uint32)
    for place in range(count):
        words |= grouped[:, place].astype(np.uint32) << np.uint32(place * bits)
    return words.view(np.uint8)


def pack_high_first(codes: U8) -> U8:
    """Return the bytes of 4-bit codes, the first of each pair in the high bits."""
    return _pack_pairs(codes, high_first=True)


def _pack_pairs(codes: U8, *, high_first: bool) -> U8:
    codes = np.ascontiguousarray(codes)
    packer = pair_packer()
    if packer is None:
        first, last = (0, 1) if high_first else (1, 0)
        packed: U8 = codes[:, first::2] << np.uint8(4) | codes[:, last::2]
        return packed
    packed = np.empty((codes.shape[0], codes.shape[1] // 2), np.uint8)
    packer.pack(codes, high_first=high_first, out=packed)
    return packed


def transpose(table: U8) -> U8:
    """Return a table with rows and columns exchanged, in memory too."""
    return np.ascontiguousarray(table.T)


def transpose_words(table: U8, size: int) -> U8:
    """Return a table of words of `size` bytes with rows and columns exchanged."""
    words = np.ascontiguousarray(table).view(f"u{size}")
    return np.ascontiguousarray(words.T).view(np.uint8)


def reorder(codes: U8, order: Sequence[int]) -> U8:
    """Return the codes with each run of as many columns as the order has in that order."""
    runs = codes.reshape(codes.shape[0], -1, len(order))
    return np.ascontiguousarray(runs[..., list(order)]).reshape(codes.shape)


def zeros_of(made: Codes, middle: int) -> U8:
    """Return the zero points of a tile; `middle` for each scale of 16 bits if there are none."""
    if made.offsets is not None:
        return made.offsets
    rows, size = made.scales.shape
    return np.full((rows, size // 2), middle, np.uint8)


def as_bytes(number: np.float32) -> U8:
    """Return the bytes of a float32."""
    return np.array([number], np.float32).view(np.uint8)

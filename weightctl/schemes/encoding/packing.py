"""Packing of codes into words, the inverse of `decoding.tables`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.kernels import pair_packer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import U8
    from weightctl.schemes.encoding.rounding import Codes

# The size of a word in bytes.
_WORD = 4


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


def pack_transposed(codes: U8, bits: int) -> U8:
    """Return the bytes of codes that are packed along rows into words of 32 bits.

    Rows are padded to whole words, and become columns of words.
    """
    return transpose_words(pack_rows(codes, bits, word=32), 4)


def pack_columns(codes: U8, bits: int) -> U8:
    """Return the bytes of codes that are packed along columns into words of 32 bits.

    Columns are padded to whole words.
    """
    return transpose_words(pack_rows(codes.T, bits, word=32), 4)


def pack_row_groups(codes: U8, order: Sequence[int]) -> U8:
    """Return the bytes of 4-bit codes that are packed along columns into words of 32 bits.

    The columns become rows of words. `order` has the row of each of the 8 codes in a word, lowest
    bits first.
    """
    packer, columns = pair_packer(), codes.shape[1]
    if packer is not None and codes.size:
        words = np.empty((columns, len(codes) // len(order)), np.uint32)
        packer.pack_row_groups(np.ascontiguousarray(codes), columns, bytes(order), words)
        return words.view(np.uint8)
    groups = codes.reshape(-1, len(order), columns)
    made: list[NDArray[Any]] = [groups[:, row] for row in order]
    for bits, kind in (4, np.uint8), (8, np.uint16), (16, np.uint32):
        pairs = zip(made[::2], made[1::2], strict=True)
        made = [_join(low.astype(kind), high.astype(kind), bits) for low, high in pairs]
    return np.ascontiguousarray(made[0].T).view(np.uint8)


def _join(low: NDArray[Any], high: NDArray[Any], bits: int) -> NDArray[Any]:
    """Return integers whose lowest bits are `low`, and the others `high`, which is overwritten."""
    high *= 1 << bits  # NumPy multiplies many values at a time, but shifts one by one
    high |= low
    return high


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


def transpose_words(table: U8, size: int) -> U8:
    """Return a table of words of `size` bytes with rows and columns exchanged."""
    words = np.ascontiguousarray(table).view(f"u{size}")
    packer = pair_packer()
    if packer is not None and size == _WORD and words.size:
        turned = np.empty(words.shape[::-1], np.uint32)
        packer.transpose_words(words, words.shape[1], turned)
        return turned.view(np.uint8)
    return np.ascontiguousarray(words.T).view(np.uint8)


def zeros_of(made: Codes, middle: int) -> U8:
    """Return the zero points of a tile; `middle` for each scale of 16 bits if there are none."""
    if made.offsets is not None:
        return made.offsets
    rows, size = made.scales.shape
    return np.full((rows, size // 2), middle, np.uint8)


def as_bytes(number: np.float32) -> U8:
    """Return the bytes of a float32."""
    return np.array([number], np.float32).view(np.uint8)

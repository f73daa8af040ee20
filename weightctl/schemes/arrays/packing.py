"""Tables of codes as words, and back, as a `Packing` states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.kernels import pair_packer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import U8
    from weightctl.schemes.layout import Packing

# Words for which there are kernels: the size in bytes, and the number of codes of 4 bits.
_WORD, _CODES = 4, 8
# The order of a pair whose first code is in the high bits.
_HIGH_FIRST = (1, 0)


def unpack_table(words: NDArray[Any], packing: Packing) -> U8:
    """Return the values of a table of unsigned words.

    If the words end within a repetition of the layout, the missing values are 0.
    """
    axis, bits = packing.axis, packing.bits
    missing = -words.shape[axis] % packing.words
    if missing:
        padding = [(0, 0), (0, 0)]
        padding[axis] = (0, missing)
        words = np.pad(words, padding)
    numbers, width = packing.numbers, packing.words
    rows, columns = words.shape
    if axis:
        grouped = words.reshape(rows, columns // width, width)
        made = np.empty((rows, columns // width, numbers), np.uint8)
    else:
        grouped = np.moveaxis(words.reshape(rows // width, width, columns), 1, 2)
        made = np.moveaxis(np.empty((rows // width, numbers, columns), np.uint8), 1, 2)
    mask = words.dtype.type((1 << bits) - 1)
    for index in range(numbers):
        place, shift = divmod(index * bits, packing.word)
        level = grouped[..., place] >> words.dtype.type(shift)
        if shift + bits > packing.word:
            level |= grouped[..., place + 1] << words.dtype.type(packing.word - shift)
        level &= mask
        made[..., packing.order[index] if packing.order else index] = level
    if axis:
        return made.reshape(rows, -1)
    return np.moveaxis(made, 2, 1).reshape(-1, columns)


def pack_table(codes: U8, packing: Packing, *, transposed: bool = False) -> U8:
    """Return the bytes of the words of a table of codes with 4 or 8 bits.

    If it is `transposed`, columns of `codes` are the rows of the table. The axis along which codes
    are packed is padded to whole words.
    """
    axis = packing.axis if not transposed else 1 - packing.axis
    missing = -codes.shape[axis] % packing.numbers
    if missing:
        padding = [(0, 0), (0, 0)]
        padding[axis] = (0, missing)
        codes = np.pad(codes, padding)
    packer, columns = pair_packer(), codes.shape[1]
    is_compiled = transposed and not axis and (packing.bits, packing.word) == (4, 8 * _WORD)
    if packer is not None and is_compiled and codes.size:
        words = np.empty((columns, len(codes) // _CODES), np.uint32)
        order = bytes(packing.order or range(_CODES))
        packer.pack_row_groups(np.ascontiguousarray(codes), columns, order, words)
        return words.view(np.uint8)
    packed = _pack_along_rows(codes, packing) if axis else _pack_along_columns(codes, packing)
    return transpose_words(packed, packing.word // 8) if transposed else packed


def _pack_along_rows(codes: U8, packing: Packing) -> U8:
    if packing.order and packing.order != _HIGH_FIRST:
        groups = codes.reshape(len(codes), codes.shape[1] // packing.numbers, packing.numbers)
        codes = groups[..., list(packing.order)].reshape(codes.shape)
    codes = np.ascontiguousarray(codes)
    if packing.bits == 8:
        return codes
    return _pack_pairs(codes, high_first=packing.order == _HIGH_FIRST)


def _pack_along_columns(codes: U8, packing: Packing) -> U8:
    count, columns = packing.numbers, codes.shape[1]
    groups = codes.reshape(len(codes) // count, count, columns)
    words = np.zeros((len(groups), columns), f"u{packing.word // 8}")
    for place, row in enumerate(packing.order or range(count)):
        # NumPy multiplies many values at a time, but shifts one by one.
        words |= groups[:, row] * words.dtype.type(1 << (packing.bits * place))
    return words.view(np.uint8)


def _pack_pairs(codes: U8, *, high_first: bool) -> U8:
    packer = pair_packer()
    if packer is None:
        first, last = (0, 1) if high_first else (1, 0)
        made: U8 = codes[:, first::2] << np.uint8(4) | codes[:, last::2]
        return made
    made = np.empty((codes.shape[0], codes.shape[1] // 2), np.uint8)
    packer.pack(codes, high_first=high_first, out=made)
    return made


def transpose_words(table: U8, size: int) -> U8:
    """Return a table of words of `size` bytes with rows and columns exchanged."""
    words = np.ascontiguousarray(table).view(f"u{size}")
    packer = pair_packer()
    if packer is not None and size == _WORD and words.size:
        turned = np.empty(words.shape[::-1], np.uint32)
        packer.transpose_words(words, words.shape[1], turned)
        return turned.view(np.uint8)
    return np.ascontiguousarray(words.T).view(np.uint8)

"""The protocol of codecs, and the codec of a block type, which processes tiles of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class Codec(Protocol):
    """Encodes values into the bytes of one encoding, and decodes them."""

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:
        """Fill `out`, shape (r, n // block * size), with `rows`, shape (r, n), encoded.

        `n` is a multiple of the encoding's block. `importance`, shape (n,), is the weight of an
        error in each column (ggml's `quant_weights`).
        """
        ...

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out`, shape (r, n), with the values of `blocks`, shape (r, n // block * size)."""
        ...


class BlockCodec(NamedTuple):
    """The codec of blocks of `elements` values; each block is encoded independently.

    `block_dtype` has the fields of one block. `encode_tile` takes values of shape (r, b, elements)
    and their importance, shape (b, elements), and fills blocks of shape (r, b); `decode_tile` takes
    such blocks and fills an array of such values. At most `area` values are processed at a time.
    """

    block_dtype: np.dtype[np.void]
    elements: int
    encode_tile: Callable[[F32, F32 | None, NDArray[np.void]], None]
    decode_tile: Callable[[NDArray[np.void], F32], None]
    area: int = 1 << 16

    def encode(self, rows: F32, importance: F32 | None, out: U8) -> None:
        """Fill `out` with the blocks of `rows`: the bytes of ggml's `quantize_...`."""
        blocks = out.view(self.block_dtype)
        x = rows.reshape(*blocks.shape, self.elements)
        columns = None if importance is None else importance.reshape(-1, self.elements)
        with np.errstate(all="ignore"):
            for tile in tiles(blocks.shape, self.area // self.elements):
                weights = None if columns is None else columns[tile[1]]
                self.encode_tile(x[tile], weights, blocks[tile])

    def decode(self, blocks: U8, out: F32) -> None:
        """Fill `out` with the values of `blocks`."""
        block = blocks.view(self.block_dtype)
        values = out.reshape(*block.shape, self.elements)
        with np.errstate(all="ignore"):
            for tile in tiles(block.shape, self.area // self.elements):
                self.decode_tile(block[tile], values[tile])


def tiles(shape: tuple[int, ...], area: int) -> Iterator[tuple[slice, slice]]:
    """Cut a table of (rows, columns) into rectangles of at most `area` cells.

    The rectangles consist of whole rows if a row fits, and otherwise of parts of one row.
    """
    rows, columns = shape
    width = max(1, min(columns, area))
    height = max(1, area // width)
    for top in range(0, rows, height):
        for left in range(0, columns, width):
            yield slice(top, top + height), slice(left, left + width)

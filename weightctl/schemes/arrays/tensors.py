"""The stored tensors of a quantized weight, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weightctl.dtype import DType
from weightctl.errors import ConversionError
from weightctl.schemes.arrays.tables import (
    BlockGrid,
    Order,
    PackedNumbers,
    PerBlock,
    PlainNumbers,
    Powers,
    Table,
)
from weightctl.schemes.naming import ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.tables import NumberTable
    from weightctl.schemes.layout import Packing
    from weightctl.schemes.naming import Quantized
    from weightctl.schemes.settings import Settings
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
# The maximum size of a tensor that is read at once: an order has a few bytes for each input.
_MOST_READ = 16 << 20


@dataclass(frozen=True, slots=True)
class SchemeTensors:
    """The tensors that a weight is stored in: the stored values first, then their scales."""

    weight: Quantized
    tensors: tuple[ReadableTensor, ...]
    settings: Settings

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    @property
    def bits(self) -> int:
        """The width of the stored values, if the scheme does not determine it."""
        return self.weight.number_bits

    @property
    def numbers(self) -> TensorInfo:
        """The description of the tensor with the stored values."""
        return self.tensors[0].info

    @property
    def scales(self) -> TensorInfo:
        """The description of the tensor with their scales."""
        return self.tensors[1].info

    def find(self, *endings: str) -> int | None:
        """Return the index of the tensor whose name has one of these endings, or None."""
        for place, tensor in enumerate(self.tensors[2:], start=2):
            if tensor.info.name.endswith(endings):
                return place
        return None

    def refuse_others(self, *endings: str) -> None:
        """Raise `ConversionError` if there are tensors whose names have none of these endings."""
        for tensor in self.tensors[2:]:
            if not tensor.info.name.endswith((*endings, *ACTIVATIONS)):
                raise self.cannot_dequantize(
                    f"its additional tensor `{tensor.info.name}` is not supported"
                )

    def cannot_dequantize(self, why: str) -> ConversionError:
        """Return the error for a weight that cannot be dequantized."""
        return ConversionError(
            f"`{self.weight.name}` is stored as {self.weight.label} and cannot be dequantized: "
            f"{why}",
            hint="use the unquantized model as input",
        )

    def raw(self, place: int) -> bytes:
        """Return the bytes of a small tensor."""
        tensor = self.tensors[place]
        if tensor.info.nbytes > _MOST_READ:
            raise self.cannot_dequantize(
                f"`{tensor.info.name}` has {tensor.info.nbytes} bytes; "
                f"at most {_MOST_READ} are expected"
            )
        made = bytearray(tensor.info.nbytes)
        tensor.read_into(0, memoryview(made))
        return bytes(made)

    def floats(self, place: int, count: int) -> F32:
        """Return the values of a small F32 tensor with `count` elements."""
        info = self.tensors[place].info
        if info.encoding.name != "F32" or info.size != count:
            raise self.cannot_dequantize(
                f"`{info.name}` is stored as {info.encoding} of shape {list(info.shape)}, but "
                f"{count} F32 values are expected"
            )
        return np.frombuffer(self.raw(place), np.float32).copy()

    def table(self, place: int, columns: int | None = None) -> Table:
        """Return a tensor as a table of unsigned words; columns default to its last dimension."""
        info = self.tensors[place].info
        word = _WORDS.get(info.encoding.size)
        if word is None:
            raise self.cannot_dequantize(
                f"`{info.name}` is stored as {info.encoding}, which is not supported here"
            )
        if columns is None:
            columns = (info.shape[-1] if info.shape else 1) // info.encoding.block
        return Table(place, columns, word)

    def plain(self, place: int, columns: int | None = None, *, powers: bool = False) -> NumberTable:
        """Return a tensor as a table of values; with `powers`, bytes are exponents plus 127."""
        info = self.tensors[place].info
        dtype = info.encoding.dtype
        is_readable = dtype is not None and (dtype.is_float or dtype in {DType.int8, DType.uint8})
        if dtype is None or not is_readable or info.encoding.block != 1:
            raise self.cannot_dequantize(
                f"`{info.name}` is stored as {info.encoding}, but floats or 8-bit integers are "
                "expected"
            )
        table = self.table(place, columns)
        return Powers(table) if powers and dtype is DType.uint8 else PlainNumbers(table, dtype)

    def pack_numbers(
        self, place: int, packing: Packing, shape: tuple[int, int], *, plus: int = 0
    ) -> PackedNumbers:
        """Return a tensor with packed values as a table of `shape`."""
        info, words = self.tensors[place].info, packing.shape_of(shape)
        if info.size != prod(words) or 8 * info.encoding.size != packing.word:
            raise self.cannot_dequantize(
                f"`{info.name}` is stored as {info.encoding} of shape {list(info.shape)}, but "
                f"{prod(words)} words of {packing.word} bits are expected"
            )
        return PackedNumbers(self.table(place, words[1]), packing, plus=plus)

    def grid(self, shape: Sequence[int], counts: Sequence[int], axis: int = -1) -> BlockGrid:
        """Return the grid of `counts` blocks over the elements of `shape`.

        The block sizes are those that the settings state, if they fit, else powers of two, else a
        divisor of the length. The settings' groups are along `axis`.
        """
        if len(shape) != len(counts):
            raise self.cannot_dequantize(
                f"its scales have shape {[*counts]}, but the weight has {len(shape)} dimensions"
            )
        blocks: list[int] = []
        for place, (length, count) in enumerate(zip(shape, counts, strict=True)):
            distance = place - len(shape)
            sizes = self.settings.sizes(-1 if distance == axis else -2)
            blocks.append(self._block(length, count, sizes))
        return BlockGrid(tuple(shape), tuple(counts), tuple(blocks))

    def _block(self, length: int, count: int, sizes: Sequence[int]) -> int:
        if count in {1, length}:
            return length // count
        powers = (1 << power for power in range(1, length.bit_length()))
        for size in (*sizes, *powers):
            if -(-length // size) == count:
                return size
        if count > 0 and length % count == 0:
            return length // count
        raise self.cannot_dequantize(
            f"it has {count} scales for {length} elements, and the block size is not stated"
        )

    def per_block(self, place: int, grid: BlockGrid, *, powers: bool = False) -> PerBlock:
        """Return a tensor as the values of a grid's blocks."""
        info = self.tensors[place].info
        if info.size != prod(grid.counts):
            raise self.cannot_dequantize(
                f"`{info.name}` has shape {list(info.shape)}, but "
                f"{prod(grid.counts)} elements are expected, one for each block"
            )
        return PerBlock(self.plain(place, grid.counts[-1], powers=powers), grid)

    def input_factors(self) -> PerBlock | None:
        """Return the factors of the inputs, as in ModelOpt's AWQ; None if there are none.

        The inputs are multiplied by them before they are multiplied by the weight.
        """
        place = self.find(".pre_quant_scale")
        if place is None:
            return None
        columns = self.shape[-1]
        if self.tensors[place].info.size != columns:
            raise self.cannot_dequantize(
                f"`{self.tensors[place].info.name}` does not have {columns} elements"
            )
        counts = (*(1 for _ in self.shape[:-1]), columns)
        return self.per_block(place, self.grid(self.shape, counts))

    def ordered_grid(
        self, place: int | None, shape: tuple[int, ...], counts: tuple[int, ...], axis: int
    ) -> BlockGrid:
        """Return a grid of groups along an axis, which is -1 or -2.

        The tensor at `place` can assign the indices of the axis to groups. If it is missing or
        empty, has only -1, or assigns them in order, consecutive indices form the groups.
        """
        if place is None or self.tensors[place].info.size == 0:
            return self.grid(shape, counts, axis)
        info, groups = self.tensors[place].info, counts[axis]
        is_fit = info.encoding.name in {"I32", "I64"} and info.shape == (shape[axis],)
        if not is_fit or len(shape) != 2:
            raise self.cannot_dequantize(
                f"`{info.name}` is stored as {info.encoding} of shape {list(info.shape)}, but one "
                f"group index for each of {shape[axis]} inputs of a matrix is expected"
            )
        order = np.frombuffer(self.raw(place), f"i{info.encoding.size}")
        if bool((order == -1).all()):
            return self.grid(shape, counts, axis)
        if order.min() < 0 or order.max() >= groups:
            raise self.cannot_dequantize(
                f"`{info.name}` has a group index that is not in 0 to {groups - 1}"
            )
        one = [*counts]
        one[axis] = 1
        others = self.grid(shape, one, axis)
        # If groups are consecutive, all except the last have the size of the first.
        size = max(1, int((order == 0).sum()))
        blocks = [*others.blocks]
        blocks[axis] = size
        if np.array_equal(order, np.arange(order.size) // size):
            return BlockGrid(shape, counts, tuple(blocks))
        return BlockGrid(shape, counts, others.blocks, Order(place, axis + 2, groups))


def is_half(encoding: Encoding) -> bool:
    """Whether float16 represents all values of an encoding exactly."""
    return encoding.name in {"F16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}

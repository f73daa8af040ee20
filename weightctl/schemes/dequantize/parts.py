"""The stored tensors of one quantized weight, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weightctl.dtype import DType
from weightctl.errors import ConversionError
from weightctl.schemes.dequantize.grid import BlockGrid, Order, PerBlock
from weightctl.schemes.dequantize.numbers import PackedNumbers, PlainNumbers, Powers
from weightctl.schemes.dequantize.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.schemes.dequantize.numbers import NumberTable
    from weightctl.schemes.dequantize.packing import PackingLayout
    from weightctl.schemes.dequantize.settings import Settings
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

__all__ = ["SchemeTensors", "align_counts"]

_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
# No part that is read at once is larger: what says an order has some bytes for each input.
_MOST_READ = 16 << 20
# They are for activations: the weight is the same without them.
_ACTIVATIONS = (
    "input_scale", "input_zero_point", "input_global_scale", "activation_scale", ".scale_input",
    ".input_scale_ub", ".output_scale",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchemeTensors:
    """The tensors that a weight is stored as, the numbers first and their scales next."""

    name: str
    shape: tuple[int, ...]
    scheme: str
    tensors: tuple[ReadableTensor, ...]
    settings: Settings

    @property
    def numbers(self) -> TensorInfo:
        """The tensor of the numbers."""
        return self.tensors[0].info

    @property
    def scales(self) -> TensorInfo:
        """The tensor of their scales."""
        return self.tensors[1].info

    def find(self, *endings: str) -> int | None:
        """Return the place of the part whose name ends so, None where there is none."""
        for place, tensor in enumerate(self.tensors[2:], start=2):
            if tensor.info.name.endswith(endings):
                return place
        return None

    def refuse_others(self, *endings: str) -> None:
        """Raise `ConversionError` where there are parts but those that end so."""
        for tensor in self.tensors[2:]:
            if not tensor.info.name.endswith((*endings, *_ACTIVATIONS)):
                raise self.cannot_dequantize(f"`{tensor.info.name}` stands beside it")

    def cannot_dequantize(self, why: str) -> ConversionError:
        """Return the error for a weight that cannot be dequantized."""
        return ConversionError(
            f"`{self.name}` is stored as {self.scheme} and cannot be dequantized: {why}",
            hint="start from the unquantized model",
        )

    def raw(self, place: int) -> bytes:
        """Return what a part holds, which is small."""
        tensor = self.tensors[place]
        if tensor.info.nbytes > _MOST_READ:
            raise self.cannot_dequantize(f"`{tensor.info.name}` is of {tensor.info.nbytes} bytes")
        made = bytearray(tensor.info.nbytes)
        tensor.read_into(0, memoryview(made))
        return bytes(made)

    def table(self, place: int, columns: int | None = None) -> Table:
        """Return a part as a table of unsigned words; its rows are its last dimension."""
        info = self.tensors[place].info
        word = _WORDS.get(info.encoding.size)
        if word is None:
            raise self.cannot_dequantize(f"`{info.name}` is of {info.encoding}")
        if columns is None:
            columns = (info.shape[-1] if info.shape else 1) // info.encoding.block
        return Table(place, columns, word)

    def plain(self, place: int, columns: int | None = None, *, powers: bool = False) -> NumberTable:
        """Return the numbers of a part; with `powers` bytes are exponents of two, plus 127."""
        info = self.tensors[place].info
        dtype = info.encoding.dtype
        is_readable = dtype is not None and (dtype.is_float or dtype in {DType.int8, DType.uint8})
        if dtype is None or not is_readable or info.encoding.block != 1:
            raise self.cannot_dequantize(f"`{info.name}` is of {info.encoding}")
        table = self.table(place, columns)
        return Powers(table) if powers and dtype is DType.uint8 else PlainNumbers(table, dtype)

    def packed(
        self, place: int, layout: PackingLayout, axis: int, shape: tuple[int, int], *, plus: int = 0
    ) -> PackedNumbers:
        """Return a part as a table of packed numbers of a shape, packed along an axis of it."""
        info, (rows, columns) = self.tensors[place].info, shape
        words = (rows, layout.words_of(columns)) if axis else (layout.words_of(rows), columns)
        if info.size != prod(words) or 8 * info.encoding.size != layout.word:
            raise self.cannot_dequantize(
                f"`{info.name}` is {info.encoding} of shape {list(info.shape)}"
            )
        return PackedNumbers(self.table(place, words[1]), layout, axis, plus=plus)

    def grid(self, shape: Sequence[int], counts: Sequence[int], axis: int = -1) -> BlockGrid:
        """Return which of `counts` blocks the elements of `shape` are in.

        The sizes of blocks are those that the settings name where these fit, then powers of two,
        then what divides the length. `axis` is where the settings' groups are.
        """
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
            f"nothing says which of {length} elements each of {count} scales is for"
        )

    def per_block(self, place: int, grid: BlockGrid, *, powers: bool = False) -> PerBlock:
        """Return a part as the numbers of a grid's blocks."""
        info = self.tensors[place].info
        if info.size != prod(grid.counts):
            raise self.cannot_dequantize(f"`{info.name}` is of shape {list(info.shape)}")
        return PerBlock(self.plain(place, grid.counts[-1], powers=powers), grid)

    def ordered_grid(
        self, place: int | None, shape: tuple[int, ...], counts: tuple[int, ...], axis: int
    ) -> BlockGrid:
        """Return a grid of groups along an axis, -1 or -2 of two.

        A part may say in which group each index of the axis is. Where there is none, or it is
        empty, or has -1 alone, and where it says the same, groups are by place.
        """
        if place is None or self.tensors[place].info.size == 0:
            return self.grid(shape, counts, axis)
        info, groups = self.tensors[place].info, counts[axis]
        is_fit = info.encoding.name in {"I32", "I64"} and info.shape == (shape[axis],)
        if not is_fit or len(shape) != 2:
            raise self.cannot_dequantize(
                f"`{info.name}` is {info.encoding} of shape {list(info.shape)}"
            )
        said = np.frombuffer(self.raw(place), f"i{info.encoding.size}")
        if bool((said == -1).all()):
            return self.grid(shape, counts, axis)
        if said.min() < 0 or said.max() >= groups:
            raise self.cannot_dequantize(
                f"`{info.name}` names groups beyond the {groups} that there are"
            )
        one = [*counts]
        one[axis] = 1
        others = self.grid(shape, one, axis)
        # By place, the first group has the size of all but the last.
        size = max(1, int((said == 0).sum()))
        blocks = [*others.blocks]
        blocks[axis] = size
        if np.array_equal(said, np.arange(said.size) // size):
            return BlockGrid(shape, counts, tuple(blocks))
        return BlockGrid(shape, counts, others.blocks, Order(place, axis + 2, groups))


def align_counts(counts: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of scales with as many dimensions as what they are for."""
    if all(count == 1 for count in counts):
        return (1,) * len(shape)
    if len(counts) > len(shape):
        counts = [count for count in counts if count != 1]
    return (*counts, *(1,) * (len(shape) - len(counts)))


def is_half(encoding: Encoding) -> bool:
    """Whether all numbers of an encoding are exactly what float16 has."""
    return encoding.name in {"F16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}

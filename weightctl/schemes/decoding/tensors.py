"""The stored tensors of one quantized weight, as tables, and how it is made of them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.dtype import DType
from weightctl.errors import ConversionError
from weightctl.formats.huggingface import config as config_beside
from weightctl.schemes.decoding.tables import (
    BlockGrid,
    Order,
    PackedNumbers,
    PerBlock,
    PlainNumbers,
    Powers,
    Table,
)
from weightctl.schemes.matching import find_quantized
from weightctl.schemes.scheme import ACTIVATIONS
from weightctl.text.untyped import is_list, is_object
from weightctl.weights.derived import StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding.blocks import Microscaled
    from weightctl.schemes.decoding.tables import NumberTable, PackingLayout
    from weightctl.schemes.decoding.values import WeightValues
    from weightctl.schemes.matching import Quantized
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.source import Source

__all__ = ["Decoding", "SchemeTensors", "find_scheme_tensors", "is_half"]

_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
# No tensor that is read at once is larger: what says an order has some bytes for each input.
_MOST_READ = 16 << 20
# What the settings are called in a config.json.
_SETTINGS = ("quantization_config", "quantization", "compression_config")


class Settings:
    """The quantization settings of a config.json, which may be untrusted; empty if it has none.

    Models of text and images may have them with those of the text.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._found: Mapping[str, Any] = {}
        text = config.get("text_config")
        for document in (config, text if is_object(text) else {}):
            for key in _SETTINGS:
                found = document.get(key)
                if is_object(found) and not self._found:
                    self._found = found

    def of(self, layer: str) -> Settings:
        """Return those of a layer, which may have some of its own."""
        own = self._found.get(layer)
        made = Settings({})
        made._found = {**self._found, **own} if is_object(own) else self._found  # of this class
        return made

    def text(self, key: str) -> str:
        """Return a setting that is text, in lower case; empty if there is none."""
        found = self._found.get(key)
        return found.lower() if isinstance(found, str) else ""

    def sizes(self, axis: int) -> tuple[int, ...]:
        """Return the sizes of blocks that are named, along an axis counted from the end: -1, -2."""
        return tuple(size for size in self._sizes(axis) if type(size) is int and size > 0)

    def _sizes(self, axis: int) -> Iterator[Any]:
        groups = self._found.get("config_groups")
        groups = groups.values() if is_object(groups) else ()
        weights = [group.get("weights") for group in groups if is_object(group)]
        for settings in (self._found, *filter(is_object, weights)):
            for key in ("weight_block_size", "block_structure"):
                blocks = settings.get(key)
                if is_list(blocks) and len(blocks) == 2:
                    yield blocks[axis]
            if axis == -1:
                yield settings.get("group_size")
                yield settings.get("q_group_size")


class Decoding(NamedTuple):
    """How a weight is made of its tensors.

    `values` give it as a matrix, or several; with `transposed` the columns of those are its rows.
    `shape` is that of the weight. Integers have `bits` bits, with `middle` in their middle, and 0
    bits where they fit no blocks of ggml. `microscaled` has the weight as MXFP4, where it is
    that, with rows as they are stored.
    """

    shape: tuple[int, ...]
    values: WeightValues
    transposed: bool = False
    bits: int = 0
    middle: int = 0
    microscaled: Microscaled | None = None


@dataclass(frozen=True, slots=True)
class SchemeTensors:
    """The tensors that a weight is stored as, the numbers first and their scales next."""

    weight: Quantized
    tensors: tuple[ReadableTensor, ...]
    settings: Settings

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.weight.shape

    @property
    def bits(self) -> int:
        """The bits of a number, where the scheme does not say it."""
        return self.weight.number_bits

    @property
    def numbers(self) -> TensorInfo:
        """The tensor of the numbers."""
        return self.tensors[0].info

    @property
    def scales(self) -> TensorInfo:
        """The tensor of their scales."""
        return self.tensors[1].info

    def find(self, *endings: str) -> int | None:
        """Return the place of the tensor whose name ends so, None if there is none."""
        for place, tensor in enumerate(self.tensors[2:], start=2):
            if tensor.info.name.endswith(endings):
                return place
        return None

    def refuse_others(self, *endings: str) -> None:
        """Raise `ConversionError` if there are tensors but those that end so."""
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
        """Return what a tensor holds, which is small."""
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
        """Return what a small tensor of this many F32 holds."""
        info = self.tensors[place].info
        if info.encoding.name != "F32" or info.size != count:
            raise self.cannot_dequantize(
                f"`{info.name}` is stored as {info.encoding} of shape {list(info.shape)}, but "
                f"{count} F32 values are expected"
            )
        return np.frombuffer(self.raw(place), np.float32).copy()

    def table(self, place: int, columns: int | None = None) -> Table:
        """Return a tensor as a table of unsigned words; its rows are its last dimension."""
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
        """Return the numbers of a tensor; with `powers` bytes are exponents of two, plus 127."""
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
        self, place: int, layout: PackingLayout, axis: int, shape: tuple[int, int], *, plus: int = 0
    ) -> PackedNumbers:
        """Return a tensor as a table of packed numbers of a shape, packed along an axis of it."""
        info, (rows, columns) = self.tensors[place].info, shape
        words = (rows, layout.words_of(columns)) if axis else (layout.words_of(rows), columns)
        if info.size != prod(words) or 8 * info.encoding.size != layout.word:
            raise self.cannot_dequantize(
                f"`{info.name}` is stored as {info.encoding} of shape {list(info.shape)}, but "
                f"{prod(words)} words of {layout.word} bits are expected"
            )
        return PackedNumbers(self.table(place, words[1]), layout, axis, plus=plus)

    def grid(self, shape: Sequence[int], counts: Sequence[int], axis: int = -1) -> BlockGrid:
        """Return which of `counts` blocks the elements of `shape` are in.

        The sizes of blocks are those that the settings name where these fit, then powers of two,
        then what divides the length. `axis` is where the settings' groups are.
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
        """Return a tensor as the numbers of a grid's blocks."""
        info = self.tensors[place].info
        if info.size != prod(grid.counts):
            raise self.cannot_dequantize(
                f"`{info.name}` has shape {list(info.shape)}, but "
                f"{prod(grid.counts)} elements are expected, one for each block"
            )
        return PerBlock(self.plain(place, grid.counts[-1], powers=powers), grid)

    def input_factors(self) -> PerBlock | None:
        """Return what the inputs are multiplied with before the weight is, as ModelOpt's AWQ does.

        None if there is nothing.
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
        """Return a grid of groups along an axis, -1 or -2 of two.

        A tensor may say in which group each index of the axis is. Where there is none, or it is
        empty, or has -1 alone, and where it says the same, groups are by place.
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
        # By place, the first group has the size of all but the last.
        size = max(1, int((order == 0).sum()))
        blocks = [*others.blocks]
        blocks[axis] = size
        if np.array_equal(order, np.arange(order.size) // size):
            return BlockGrid(shape, counts, tuple(blocks))
        return BlockGrid(shape, counts, others.blocks, Order(place, axis + 2, groups))


def find_scheme_tensors(source: Source) -> dict[str, SchemeTensors]:
    """Return the tensors of each quantized weight, in the order of their first.

    Small tensors that say the shapes of others are read, and nothing else.
    """
    header = source.header
    config = config_beside(header.files)
    settings = Settings(config)

    def read(name: str) -> bytes:
        made = bytearray(header.tensors[name].nbytes)
        source.read_into(name, 0, memoryview(made))
        return bytes(made)

    return {
        name: SchemeTensors(
            weight,
            tuple(StoredTensor(source, tensor) for tensor in weight.tensors),
            settings.of(name.removesuffix(".weight")),
        )
        for name, weight in find_quantized(header, config, read).items()
    }


def is_half(encoding: Encoding) -> bool:
    """Whether all numbers of an encoding are exactly what float16 has."""
    return encoding.name in {"F16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"}

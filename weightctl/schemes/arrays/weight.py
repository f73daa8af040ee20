"""A weight that is rounded and packed into several tensors, in bands of rows or of columns."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import isfinite
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.loss import Loss, sum_squares_and_error
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.kernels import active, block_rounder
from weightctl.schemes.arrays.blocks import repack
from weightctl.schemes.arrays.feedback import feed_back, find_grid
from weightctl.schemes.arrays.packing import pack_table, transpose_words
from weightctl.schemes.arrays.peaks import TILE, SharedPeak, make_finite
from weightctl.schemes.arrays.rounding import Codes, reduce_blocks, shape_of
from weightctl.schemes.arrays.search import has_one_scale, search_codes
from weightctl.schemes.layout import ConstantPart, PartContent
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import read_blocks, read_floats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.kernels import BlockRounder
    from weightctl.schemes.arrays.rounding import RoundedBlocks, Rounding
    from weightctl.schemes.arrays.search import ScaleSearch, SearchedCodes
    from weightctl.schemes.layout import StoredPart, WeightEncoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# The number of values in a band of columns, for which rows are read as a whole.
_COLUMN_BAND = 1 << 23
# Tiles of such a band have a multiple of this many rows, because some are packed into one word.
_ROWS = 8
# The number of bytes of packed values that are kept, and of the tensors beside them.
_MOST_VALUES, _MOST_BESIDE = 16 << 20, 64 << 20


class _Tile(NamedTuple):
    """Rows of values, how many of these were not finite, and their blocks if they are repacked."""

    values: F32
    nonfinite: int
    blocks: U8 | None = None


class _Band(NamedTuple):
    """The bytes of the parts of a band, and the rounding error of its values."""

    parts: tuple[U8, ...]
    loss: Loss


class RoundedTile(NamedTuple):
    """The codes of a tile, and the sums of the squares of its values and of their errors."""

    codes: Codes
    sums: tuple[float, float]


def round_in_one_pass(
    rounding: Rounding,
    raw: U8,
    columns: int,
    encoding: Encoding,
    peak: np.float32,
    *,
    level: int | None = None,
) -> RoundedTile | None:
    """Round rows of `columns` values, whose bytes `raw`, shape (r, bytes), are in an encoding.

    `peak` is the largest magnitude of the whole weight. Returns None if there is no kernel, and if
    a value is not finite before or after: NumPy's way then finds out which.
    """
    rounder = block_rounder(encoding.name, level)
    if rounder is None or not raw.size:
        return None
    grid = rounding.grid
    size = min(grid.columns, columns)
    codes = np.empty((len(raw), columns), np.uint8)
    scales = rounding.choose(_find_edges(rounder, raw, columns, grid), peak)
    offsets = None if scales.zeros is None else _per_row(scales.zeros, grid.rows, len(raw))
    if grid.table:
        offsets = np.array(grid.table, np.float32)
    sums = rounder.round(
        raw, columns, size or codes.size,
        kind=grid.kind, scales=_per_row(scales.held, grid.rows, len(raw)),
        offsets=offsets,
        most=grid.most, out=codes,
    )  # fmt: skip
    if not (isfinite(sums[0]) and isfinite(sums[1])):
        return None
    return RoundedTile(Codes(codes, scales.stored, scales.offsets), sums)


def _find_edges(
    rounder: BlockRounder, raw: U8, columns: int, grid: RoundedBlocks
) -> tuple[F32, ...]:
    """Return what scales are chosen for: nothing, magnitudes, or minima and maxima."""
    if not grid.columns:
        return ()
    size = min(grid.columns, columns)
    tables = np.empty((2 if grid.has_ranges else 1, len(raw), -(-columns // size)), np.float32)
    rounder.reduce(raw, columns, size, tables[0] if grid.has_ranges else None, tables[-1])
    if grid.rows > 1:
        return tuple(reduce_blocks(np.maximum, table, grid.rows, 0) for table in tables)
    return tuple(tables)


def _per_row(table: F32, rows: int, count: int) -> F32:
    """Return a table with a cell for each block, with a cell for each row of each block."""
    if rows > 1:
        table = np.repeat(table, rows, axis=0)[:count]
    return np.ascontiguousarray(table, np.float32)


class BandCache:
    """Bands that were made last; the tensors beside the values take little memory, and stay longer.

    Chunks of an output are cut without regard to bands, and the tensors of a weight may not be
    adjacent in the file.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: OrderedDict[tuple[str, int], tuple[U8, Loss]] = OrderedDict()
        self._beside: OrderedDict[tuple[str, int], tuple[U8, ...]] = OrderedDict()
        self._sizes = [0, 0]
        self._making: dict[tuple[str, int], Lock] = {}

    def lock(self, key: tuple[str, int]) -> Lock:
        """Return the lock to hold while a band is made, so that no other thread makes it too."""
        with self._lock:
            return self._making.setdefault(key, Lock())

    def find(self, key: tuple[str, int], place: int) -> tuple[U8, Loss | None] | None:
        """Return a part of a band, with the loss for that of the values; None if it is not kept."""
        with self._lock:
            if place == 0:
                return self._values.get(key)
            beside = self._beside.get(key)
            return None if beside is None else (beside[place - 1], None)

    def keep(self, key: tuple[str, int], band: _Band) -> None:
        """Keep a band, and forget the oldest ones if they take too much memory."""
        with self._lock:
            self._making.pop(key, None)
            if key not in self._values:
                self._values[key] = band.parts[0], band.loss
                self._sizes[0] += band.parts[0].nbytes
            while self._sizes[0] > _MOST_VALUES and len(self._values) > 1:
                _, (values, _) = self._values.popitem(last=False)
                self._sizes[0] -= values.nbytes
            if key not in self._beside:
                self._beside[key] = band.parts[1:]
                self._sizes[1] += sum(part.nbytes for part in band.parts[1:])
            while self._sizes[1] > _MOST_BESIDE and len(self._beside) > 1:
                _, beside = self._beside.popitem(last=False)
                self._sizes[1] -= sum(part.nbytes for part in beside)


@dataclass(frozen=True, slots=True, eq=False)
class EncodedWeight:
    """A weight, and how it is stored in several tensors; if it `is_exact`, nothing is rounded.

    With a `search`, scales are those with the smallest error; without, values are rounded to
    nearest. If `blocks` are given, their codes and scales are taken; values can then change in the
    last bit of float32, unless the weight is exact.
    """

    tensor: ReadableTensor
    name: str
    encoding: WeightEncoding
    label: str
    cache: BandCache
    peak: SharedPeak
    zero_nonfinite: bool = False
    is_exact: bool = False
    search: ScaleSearch | None = None
    blocks: ReadableTensor | None = None

    @property
    def stored_blocks(self) -> ReadableTensor | None:
        """The tensor whose codes and scales are taken; None if values are rounded."""
        return self.tensor if self.blocks is None and self.is_exact else self.blocks

    @property
    def feeds_back(self) -> bool:
        """Whether codes are chosen with error feedback."""
        return self.search is not None and self.search.products is not None

    def list_tensors(self, layer: str) -> Iterator[tuple[str, DerivedTensor]]:
        """Yield the tensors that the weight is stored in, by their names; `layer` begins them."""
        place = 0
        for part in self.encoding.parts:
            name = layer + part.ending
            if isinstance(part, ConstantPart):
                yield name, DerivedTensor(name, _ConstantTensor(part, self.label), [self.tensor])
            else:
                yield name, DerivedTensor(name, _PackedTensor(self, part, place), [self.tensor])
                place += 1

    @property
    def band(self) -> int:
        """The number of units in a band."""
        made = self.encoding
        across = made.rows if made.by_columns else made.columns
        if made.by_columns and self.feeds_back:
            return -(-made.columns // made.unit)  # errors are passed on to all columns
        area = _COLUMN_BAND if made.by_columns else TILE
        return max(1, area // (across * made.unit))

    def read_part(self, number: int, place: int) -> tuple[U8, Loss | None]:
        """Return a part of a band, and the rounding error for that of the values."""
        key = (self.name, number)
        found = self.cache.find(key, place)
        if found is not None:
            return found
        with self.cache.lock(key):
            found = self.cache.find(key, place)
            if found is not None:
                return found
            made = self._make(number)
            self.cache.keep(key, made)
        return made.parts[place], made.loss if place == 0 else None

    def _make(self, number: int) -> _Band:
        made = self.encoding
        peak = self.peak.find() if made.rounding.needs_peak else np.float32(0)
        step = self.band * made.unit
        first = number * step
        last = min(first + step, made.columns if made.by_columns else made.rows)
        packed: list[list[U8]] = []
        loss = Loss(0)
        # Overflows make the error infinite or NaN.
        with np.errstate(all="ignore"):
            for codes, measured in self._round_tiles(first, last, peak):
                packed.append(_pack(made, codes, peak))
                loss += measured
        if len(packed) == 1:
            parts = packed[0]
        else:
            parts = [np.concatenate(each, axis=1) for each in zip(*packed, strict=True)]
        return _Band(tuple(part.reshape(-1) for part in parts), loss)

    def _round_tiles(self, first: int, last: int, peak: np.float32) -> Iterator[tuple[Codes, Loss]]:
        """Yield the codes of rows or columns from `first` to `last`, in tiles of rows."""
        made = self.encoding
        if not made.by_columns:
            found = self._round_stored(first, last, peak)
            yield self._round(self._read_rows(first, last), first, peak) if found is None else found
            return
        step = max(_ROWS, TILE // made.columns // _ROWS * _ROWS)
        block, size = self.tensor.info.encoding.block, self.tensor.info.encoding.size
        columns = slice(first // block * size, last // block * size)
        for top in range(0, made.rows, step):
            bottom = min(top + step, made.rows)
            found = self._round_stored(top, bottom, peak, columns)
            if found is not None:
                yield found
                continue
            values, nonfinite, blocks = self._read_rows(top, bottom)
            if blocks is not None:
                blocks = np.ascontiguousarray(blocks[:, columns])
            tile = _Tile(np.ascontiguousarray(values[:, first:last]), nonfinite, blocks)
            yield self._round(tile, first, peak)

    def _round_stored(
        self, top: int, bottom: int, peak: np.float32, part: slice | None = None
    ) -> tuple[Codes, Loss] | None:
        """Round rows as they are stored, or a part of the bytes of each row.

        Returns None if a value is not finite, and without kernels.
        """
        info, columns = self.tensor.info, self.encoding.columns
        encoding = info.encoding
        if self.stored_blocks is not None or self.search is not None:
            return None
        if active() is None or columns % encoding.block:
            return None
        raw = read_blocks(self.tensor, top * columns, (bottom - top) * columns)
        raw = raw.reshape(bottom - top, -1)
        if part is not None:
            raw = np.ascontiguousarray(raw[:, part])
            columns = raw.shape[1] // encoding.size * encoding.block
        found = round_in_one_pass(self.encoding.rounding, raw, columns, encoding, peak)
        return (
            None
            if found is None
            else (found.codes, Loss(raw.shape[0] * columns, 0, 0, *found.sums))
        )

    def _round(self, tile: _Tile, first: int, peak: np.float32) -> tuple[Codes, Loss]:
        """Round a tile, which begins at column `first` if bands are columns; else at that row."""
        nearest = None
        if tile.blocks is None and self.search is not None:
            codes, nearest = self._search_codes(self.search, tile.values, first, peak)
            rounded = self._measure(codes, tile.values, peak)
        else:
            rounded = self._round_values(tile, peak)
        if not isfinite(rounded.sums[1]) or (
            self.is_exact and tile.blocks is not None and rounded.sums[1]
        ):
            raise ConversionError(
                f"`{self.name}` has values that are too large for {self.label}",
                hint="to keep their type, use --tensor-type REGEX=keep (tensor_types in Python)",
            )
        return rounded.codes, Loss(tile.values.size, 0, 0, *rounded.sums, tile.nonfinite, nearest)

    def _search_codes(
        self, search: ScaleSearch, values: F32, first: int, peak: np.float32
    ) -> SearchedCodes:
        made = self.encoding
        if made.by_columns:
            weights = search.find_weights(first, (1, values.shape[1]))
        else:
            weights = search.find_weights(first * made.columns, shape_of(values))
        ratio = None
        if has_one_scale(made.rounding):
            ratio = self.peak.find_ratio(made.rounding)
        found = search_codes(made.rounding, values, peak, weights, ratio)
        grid = find_grid(made.rounding, made.columns)
        if search.products is None or grid is None or weights is None:
            return found
        curvature = search.curvatures.find(search.products, grid.block)
        codes = feed_back(
            made.rounding, values, found.codes, peak, grid=grid, curvature=curvature
        )  # fmt: skip
        return found._replace(codes=codes)

    def _round_values(self, tile: _Tile, peak: np.float32) -> RoundedTile:
        values, how = tile.values, self.encoding.rounding
        if tile.blocks is None:
            raw = values.view(np.uint8)
            found = round_in_one_pass(how, raw, values.shape[1], ENCODINGS["F32"], peak)
            if found is not None:
                return found
            codes = how.round(values, peak)
        else:
            source = self.stored_blocks or self.tensor
            codes = repack(tile.blocks, source.info.encoding, how)
        return self._measure(codes, values, peak)

    def _measure(self, codes: Codes, values: F32, peak: np.float32) -> RoundedTile:
        held = self.encoding.rounding.restore(codes, peak)
        return RoundedTile(codes, sum_squares_and_error(values.reshape(-1), held.reshape(-1)))

    def _read_rows(self, top: int, bottom: int) -> _Tile:
        columns = self.encoding.columns
        begin = top * columns
        values = read_floats(self.tensor, begin, (bottom - top) * columns)
        values, nonfinite = make_finite(
            values, self.tensor, begin, zero_nonfinite=self.zero_nonfinite
        )
        blocks = None
        # Zeros in place of values that are not finite need other scales.
        source = self.stored_blocks
        if source is not None and not nonfinite:
            blocks = read_blocks(source, begin, values.size).reshape(bottom - top, -1)
        return _Tile(values.reshape(bottom - top, columns), nonfinite, blocks)


def _pack(encoding: WeightEncoding, made: Codes, peak: np.float32) -> list[U8]:
    """Return the bytes of a tile in each tensor that depends on the values."""
    return [
        _pack_part(encoding, part, made, peak)
        for part in encoding.parts
        if not isinstance(part, ConstantPart)
    ]


def _pack_part(encoding: WeightEncoding, part: StoredPart, made: Codes, peak: np.float32) -> U8:
    rounding, transposed = encoding.rounding, encoding.by_columns
    if part.content is PartContent.SCALES:
        return transpose_words(made.scales, part.size) if transposed else made.scales
    if part.content is PartContent.WHOLE_SCALE:
        return np.array([rounding.scale_of_weight(peak)], np.float32).view(np.uint8)
    table = made.codes
    if part.content is PartContent.OFFSETS:
        groups = table.shape[1] // rounding.grid.columns
        zeros = np.full((len(table), groups), part.zero, np.uint8)
        table = zeros if made.offsets is None else made.offsets
    return pack_table(table, part.packing, transposed=transposed) if part.packing else table


@dataclass(frozen=True, slots=True, eq=False)
class _PackedTensor:
    """A tensor that a weight is stored in; `place` is its index in a band."""

    weight: EncodedWeight
    part: StoredPart
    place: int

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape and the encoding of the part."""
        del inputs
        return self.weight.encoding.shape_of(self.part), ENCODINGS[self.part.encoding]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> Loss | None:
        """Round the bands of a byte range; the loss of a band is part of that of its first byte."""
        del inputs
        out = np.frombuffer(buffer, np.uint8)
        size = self.weight.band * self.weight.encoding.unit_bytes(self.part)
        stop = start + out.size
        total: Loss | None = None
        for number in range(start // size, -(-stop // size)) if size else (0,):
            made, loss = self.weight.read_part(number, self.place)
            begin = number * size
            first, last = max(start, begin), min(stop, begin + made.size)
            out[first - start : last - start] = made[first - begin : last - begin]
            if loss is not None and first == begin:
                total = loss if total is None else total + loss
        return total

    def __str__(self) -> str:
        is_repacked = self.weight.stored_blocks is not None
        return f"{'repacked as' if is_repacked else 'quantized to'} {self.weight.label}"


@dataclass(frozen=True, slots=True)
class _ConstantTensor:
    """A tensor beside a weight that does not depend on its values."""

    part: ConstantPart
    label: str

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape and the encoding of the part."""
        del inputs
        return self.part.shape, ENCODINGS[self.part.encoding]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        del inputs
        buffer[:] = self.part.raw[start : start + len(buffer)]

    def __str__(self) -> str:
        return f"of {self.label}"

"""Finds the order in which a tensor has the rows or columns of its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.errors import ConversionError
from weightctl.verify.compare.explaining import is_proven
from weightctl.verify.compare.measure import read_values
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32
from weightctl.weights.steps.rows import RowOrder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

    Places = tuple[int, ...]

ROWS, COLUMNS = 0, 1

# The number of values by which a row or column is recognized.
_SIGNATURE = 64
# Columns are sampled in this number of bands of consecutive rows.
_BANDS = 4
_PIECE = 1 << 20
# More differing rows than this are not matched, since the time grows with the square of their
# number.
_MOST_MATCHED = 1 << 15
# The number of rows to match first; most of them must have a match.
_PROBES = 16
# A row may be a different row if its relative error exceeds this multiple of the typical error, and
# this minimum.
_OFF, _LEAST_OFF = 3.0, 1e-3
# A row was moved if its distance to the nearest row of the reference is less than this fraction of
# its distance to the reference's row in the same place.
_NEARER = 0.5
_AT_ONCE = 512
# The largest number of entries of an order that a message lists.
_MOST_LISTED = 8
_NOUNS = {ROWS: "rows", COLUMNS: "columns"}


class _Sides(NamedTuple):
    """Values by which the rows or columns of both tensors are recognized: [rows or columns, n]."""

    own: F32
    reference: F32


def find_order(pair: Pair, pairing: Pairing, axis: int) -> Places | None:
    """Return the index of the reference's row, or column, at each place of a tensor.

    The order is proven: the reference in this order matches the tensor. Return None if the tensor
    is in the reference's order, or if no order makes them match.
    """
    key = (pair.module, axis, pair.tensor.origin.steps)
    if key not in pairing.orders:
        pairing.orders[key] = _search_order(pair, pairing, axis)
    return pairing.orders[key]


def find_output_order(pair: Pair, pairing: Pairing) -> Places | None:
    """Return the index of the reference's output at each output of a linear layer.

    `pair` is a pair of weights, or of biases; a bias must be in the same order as its weight.
    Return None if the order is the reference's, or cannot be proven.
    """
    view = pairing.seen_in("gguf", pair)
    if view is None or len(view.tensor.info.shape) != 1:
        return None if view is None else find_order(view, pairing, ROWS)
    weight = pairing.by_module.get(f"{pair.module.removesuffix('.bias')}.weight")
    if weight is None or weight.module == pair.module:
        return None
    places = find_output_order(weight, pairing)
    return places if places is not None and is_in_order(view, pairing, ROWS, places) else None


def is_in_order(pair: Pair, pairing: Pairing, axis: int, places: Places) -> bool:
    """Whether a tensor matches its reference with the rows or columns in the order `places`."""
    made = _reorder(pair, axis, places)
    return made is not None and is_proven(made, pairing)


def find_block_order(places: Places, size: int) -> Places | None:
    """Return the order of blocks of `size` rows or columns.

    Return None if `places` does not keep the rows or columns of each block together, in order.
    """
    if size < 1 or len(places) % size:
        return None
    given = np.asarray(places).reshape(-1, size)
    starts = given[:, 0]
    if (starts % size).any() or (given != starts[:, None] + np.arange(size)).any():
        return None
    return tuple((starts // size).tolist())


def find_swap(places: Places) -> tuple[int, int] | None:
    """Return the two places that are swapped; None if the order is not a single swap."""
    wrong = [place for place, number in enumerate(places) if place != number]
    return (wrong[0], wrong[1]) if len(wrong) == 2 else None


def describe_order(places: Places, noun: str) -> str:
    """Describe the order of rows, columns or blocks: `heads 1 and 3 are swapped`."""
    pair = find_swap(places)
    if pair is not None:
        return f"{noun} {pair[0]} and {pair[1]} are swapped"
    more = ", ..." if len(places) > _MOST_LISTED else ""
    listed = ", ".join(map(str, places[:_MOST_LISTED]))
    return f"its {noun} are in another order; in the reference they are {listed}{more}"


def _reorder(pair: Pair, axis: int, places: Places) -> Pair | None:
    """Return the pair with the reference's rows or columns reordered; None if the counts differ."""
    reference = pair.reference
    try:
        if axis == ROWS:
            made = DerivedTensor(pair.module, RowOrder(places), [reference])
        else:
            numbers = DerivedTensor(pair.module, AsFloat32(), [reference])
            made = DerivedTensor(pair.module, _ColumnOrder(places), [numbers])
    except ConversionError:
        return None
    return pair._replace(reference=made)


class _ColumnOrder(NamedTuple):
    """A step that reorders the columns of a float32 tensor: column i is `order[i]` of the input."""

    order: Places

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape and the encoding of the input."""
        (info,) = inputs
        if len(info.shape) != 2 or info.shape[1] != len(self.order):
            raise ConversionError(f"`{info.name}` does not have {len(self.order)} columns")
        return info.shape, info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read whole rows, and select their columns."""
        (tensor,) = inputs
        row = tensor.info.nbytes // tensor.info.shape[0]
        first, last = start // row, -(-(start + len(buffer)) // row)
        raw = bytearray((last - first) * row)
        tensor.read_into(first * row, memoryview(raw))
        rows = np.frombuffer(raw, np.float32).reshape(last - first, -1)
        picked = rows[:, np.asarray(self.order)].reshape(-1).view(np.uint8)
        begin = start - first * row
        np.frombuffer(buffer, np.uint8)[:] = picked[begin : begin + len(buffer)]

    def __str__(self) -> str:
        return "columns in another order"


def _search_order(pair: Pair, pairing: Pairing, axis: int) -> Places | None:
    shape = pair.tensor.info.shape
    if len(shape) != 2 or shape != pair.reference.info.shape or 0 in shape:
        return None
    read = _sample_rows if axis == ROWS else _sample_columns
    sides = _Sides(read(pair.tensor), read(pair.reference))
    if not all(np.isfinite(side).all() for side in sides):
        return None
    usual = max(side.typical for side in pair.sides)
    places = _match(sides, max(_OFF * usual, _LEAST_OFF))
    if places is None or not is_in_order(pair, pairing, axis, places):
        return None
    return places


def _sample_rows(tensor: ReadableTensor) -> F32:
    """Return evenly spaced values of each row, [rows, n]."""
    count, width = tensor.info.shape
    columns = np.unique(np.linspace(0, width - 1, _SIGNATURE).astype(np.int64))
    step = max(_PIECE // width, 1)
    made = np.empty((count, len(columns)), np.float32)
    for first in range(0, count, step):
        rows = min(step, count - first)
        numbers = read_values(tensor, first * width, rows * width).reshape(rows, width)
        made[first : first + rows] = numbers[:, columns]
    return made


def _sample_columns(tensor: ReadableTensor) -> F32:
    """Return values of each column, from evenly spaced bands of rows, [columns, n]."""
    count, width = tensor.info.shape
    band = min(count, _SIGNATURE // _BANDS)
    starts = dict.fromkeys((count - band) * part // (_BANDS - 1) for part in range(_BANDS))
    bands = [read_values(tensor, start * width, band * width) for start in starts]
    return np.ascontiguousarray(np.concatenate(bands).reshape(-1, width).T)


def _match(sides: _Sides, threshold: float) -> Places | None:
    """Return the index of the reference's row at each place; None if rows do not seem reordered.

    Rows whose relative error is at most the threshold stay in place; the others get the nearest row
    of the reference. Return None if fewer than two rows or too many rows are left to match, or if
    most of a sample of them do not have a nearer row in another place.
    """
    apart, lengths = _sum_squares(sides.own - sides.reference), _sum_squares(sides.reference)
    wrong = np.flatnonzero(apart > threshold**2 * lengths)
    if not 2 <= len(wrong) <= _MOST_MATCHED:
        return None
    own, reference = sides.own[wrong], sides.reference[wrong]
    probes = np.unique(np.linspace(0, len(wrong) - 1, _PROBES).astype(np.int64))
    nearest = _find_nearest(own[probes], reference)
    is_moved = _sum_squares(own[probes] - reference[nearest]) < _NEARER**2 * apart[wrong][probes]
    if 2 * np.count_nonzero(is_moved & (nearest != probes)) < len(probes):
        return None
    places = np.arange(len(apart))
    places[wrong] = wrong[_use_each_once(_find_nearest(own, reference))]
    return tuple(places.tolist())


def _find_nearest(own: F32, reference: F32) -> NDArray[np.int64]:
    """Return the index of the reference's nearest row for each row of `own`."""
    squares = np.vecdot(reference, reference)
    nearest = np.empty(len(own), np.int64)
    for first in range(0, len(own), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        nearest[part] = np.argmin(squares - 2 * (own[part] @ reference.T), axis=1)
    return nearest


def _use_each_once(nearest: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replace repeated indices by unused ones, so that each index occurs once.

    Indices are repeated if several rows have the same nearest row, as equal rows do.
    """
    _, first = np.unique(nearest, return_index=True)
    is_second = np.ones(len(nearest), bool)
    is_second[first] = False
    made = nearest.copy()
    made[is_second] = np.setdiff1d(np.arange(len(nearest)), nearest)
    return made


def _sum_squares(rows: F32) -> NDArray[np.float64]:
    wide = rows.astype(np.float64)
    found: NDArray[np.float64] = np.vecdot(wide, wide)
    return found


def find_permuted(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that the rows or columns are cyclically shifted, swapped or in another order."""
    del found
    own = pairing.checkpoint
    view = pair if own is None else pairing.seen_in(own.convention, pair)
    if view is None:
        return None
    for axis, noun in _NOUNS.items():
        places = find_order(view, pairing, axis)
        if places is not None:
            return _make_cause(places, noun)
    return None


def _make_cause(places: Places, noun: str) -> Explanation:
    size = len(places)
    by = places.index(0)
    if len(places) > 2 and all(
        number == (place - by) % size for place, number in enumerate(places)
    ):
        text = f"its {noun} are rotated by {by} of {size}: the first one is at {by} here"
        return Explanation("rolled", text)
    return Explanation("permuted", describe_order(places, noun))

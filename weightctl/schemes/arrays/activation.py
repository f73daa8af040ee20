"""Activation-aware scaling of weights before they are rounded, as AWQ does (arXiv 2306.00978).

The columns of weights are multiplied by factors, which are larger for columns with large inputs,
so that these columns lose less precision. What computes the inputs is divided by the same factors:
the weight of a norm, or the rows of another matrix. So the model computes the same without
rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.schemes.arrays.search import search_codes
from weightctl.weights.steps.numbers import AsFloat32, numbers_of, read_floats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32
    from weightctl.codecs.feedback import Curvature
    from weightctl.dtype import Encoding
    from weightctl.formats.imatrix.entry import ColumnWeights, Hessian
    from weightctl.schemes.arrays.rounding import Rounding
    from weightctl.schemes.arrays.search import ScaleSearch
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# The exponents that are tried, and the number of values of each weight with which they are tried.
_EXPONENTS = tuple(step / 20 for step in range(1, 21))
_SAMPLE = 1 << 17
# Bounds of magnitudes relative to the largest, so that unused columns keep a finite factor.
_LEAST = 1e-4


class Consumer(NamedTuple):
    """A weight whose columns are multiplied, how it is rounded, and its importance."""

    tensor: ReadableTensor
    rounding: Rounding
    search: ScaleSearch


class SharedInputs(NamedTuple):
    """How many heads of `size` columns have the same inputs: query heads that share values."""

    heads: int = 1
    size: int = 1


class ActivationScale:
    """The factors of the inputs that some weights have in common, which are found on first use.

    The factors are `x ** a`, where `x` is the magnitude of the inputs of a column. AWQ uses the
    mean magnitude; an importance matrix has mean squares, so `x` is the root of the mean square.
    The exponent `a` has the smallest rounding error, weighted by the importance of columns, in a
    sample of rows whose scales are searched; 0 comes first, so the sample does not become worse.

    With a `norm`, factors are such that its weight plus `offset`, divided by them, is a number of
    the norm's type, so that the division is exact. With `shared`, neighboring heads have the same
    factors.
    """

    def __init__(
        self,
        consumers: Sequence[Consumer],
        norm: ReadableTensor | None = None,
        encoding: Encoding | None = None,
        offset: float = 0.0,
        shared: SharedInputs = SharedInputs(),  # noqa: B008  # immutable
    ) -> None:
        self._consumers = tuple(consumers)
        self._norm, self._encoding, self._offset = norm, encoding, offset
        self._shared = shared
        self._lock = Lock()
        self._found: F32 | None = None

    def find(self) -> F32:
        """Return the factor of each column; this reads a sample of the weights once."""
        with self._lock:
            if self._found is None:
                with np.errstate(all="ignore"):
                    self._found = self._match_norm(self._choose())
            return self._found

    def find_divisors(self) -> F32:
        """Return the divisor of each row of what computes the inputs; heads share rows."""
        heads, size = self._shared
        found: F32 = self.find().reshape(-1, heads, size)[:, 0].reshape(-1)
        return found

    def divide_norm(self, weight: F32, encoding: Encoding) -> F32:
        """Return a norm's weight divided by the factors, rounded to a type."""
        with np.errstate(all="ignore"):
            divided = (weight + np.float32(self._offset)) / self.find()
            return _round(divided - np.float32(self._offset), encoding)

    def _match_norm(self, factors: F32) -> F32:
        if self._norm is None or self._encoding is None:
            return factors
        offset = np.float32(self._offset)
        whole = numbers_of(self._norm) + offset
        divided = _round(whole / factors - offset, self._encoding) + offset
        exact: F32 = (whole / divided).astype(np.float32)
        is_usable = np.isfinite(exact) & (exact > factors / 2) & (exact < factors * 2)
        return np.where(is_usable, exact, np.float32(1))

    def _choose(self) -> F32:
        magnitudes = self._find_magnitudes()
        ones = np.ones(magnitudes.shape, np.float32)
        tiles = [
            (_sample(each.tensor), _weights_of(each.search), each.rounding)
            for each in self._consumers
        ]
        best, least = ones, _sum_errors(tiles, ones)
        for exponent in _EXPONENTS:
            factors = (magnitudes**exponent).astype(np.float32)
            factors /= np.sqrt(factors.max() * factors.min())
            error = _sum_errors(tiles, factors)
            if error < least:
                best, least = factors, error
        return best

    def _find_magnitudes(self) -> F32:
        """Return the root of the mean square of the inputs of each column; at most 1."""
        squares = np.mean([_weights_of(each.search) for each in self._consumers], axis=0)
        heads, size = self._shared
        means = squares.reshape(-1, heads, size).mean(1, keepdims=True)
        roots = np.sqrt(np.repeat(means, heads, axis=1).reshape(-1))
        most = roots.max()
        if not most > 0:
            return np.ones(roots.shape, np.float32)
        found: F32 = np.maximum(roots / most, _LEAST).astype(np.float32)
        return found


def _weights_of(search: ScaleSearch) -> F32:
    """Return the weights of the columns; equal ones if all are negligible."""
    found = search.find_weights(0, (1, search.columns))
    return np.ones(search.columns, np.float32) if found is None else found[0]


def _sample(tensor: ReadableTensor) -> F32:
    """Return rows of a matrix at equal distances; values that are not finite become 0."""
    rows, columns = tensor.info.shape
    count = min(rows, max(1, _SAMPLE // columns))
    made = np.empty((count, columns), np.float32)
    for place in range(count):
        made[place] = read_floats(tensor, place * rows // count * columns, columns)
    np.nan_to_num(made, copy=False, posinf=0.0, neginf=0.0)
    return made


def _sum_errors(tiles: Sequence[tuple[F32, F32, Rounding]], factors: F32) -> float:
    """Return the weighted squared error of weights that are multiplied, rounded and divided."""
    total = 0.0
    for values, weights, rounding in tiles:
        scaled = values * factors
        peak = np.float32(np.abs(scaled).max())
        scaled_weights = (weights / (factors * factors))[None].astype(np.float32)
        codes = search_codes(rounding, scaled, peak, scaled_weights).codes
        scaled = rounding.restore(codes, peak)
        scaled /= factors
        scaled -= values
        scaled *= scaled
        total += float((scaled.sum(0, dtype=np.float64) * weights).sum())
    return total if np.isfinite(total) else np.inf


def _round(values: F32, encoding: Encoding) -> F32:
    single = ENCODINGS["F32"]
    raw = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(1, -1)
    stored = transcode(raw, single, encoding).raw
    found: F32 = transcode(stored.reshape(1, -1), encoding, single).raw.reshape(-1).view(np.float32)
    return found.copy()


@dataclass(frozen=True, slots=True, eq=False)
class ScaledImportance:
    """The importance of columns that are multiplied by the factors of a scale."""

    importance: ColumnWeights
    scale: ActivationScale

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of matrices, and the number of columns of each."""
        return self.importance.shape

    def __getitem__(self, matrix: int, /) -> F32:
        """Return the importance of a matrix's columns, shape (n,)."""
        factors = self.scale.find()
        found: F32 = (self.importance[matrix] / (factors * factors)).astype(np.float32)
        return found


@dataclass(frozen=True, slots=True)
class ScaledProducts:
    """The products of columns that are multiplied by the factors of a scale."""

    products: Hessian
    scale: ActivationScale

    def prepare_curvature(self, block: int) -> Curvature:
        """Return what rounding blocks of this many columns with error feedback needs."""
        return self.products.prepare_curvature(block, self.scale.find())


@dataclass(frozen=True, slots=True, eq=False)
class ScaledTensor:
    """A matrix or a bias in float32, multiplied by `columns` and divided by `rows`."""

    columns: ActivationScale | None = None
    rows: ActivationScale | None = None

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and F32."""
        return AsFloat32().infer(inputs)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the requested range, multiply, and divide."""
        AsFloat32().read_into(inputs, start, buffer)
        values = np.frombuffer(buffer, np.float32)
        width = inputs[0].info.shape[1] if len(inputs[0].info.shape) > 1 else 1
        with np.errstate(all="ignore"):  # NaN and infinity stay
            for place, row, first, last in _list_rows(start // 4, values.size, width):
                if self.columns is not None:
                    values[place : place + last - first] *= self.columns.find()[first:last]
                if self.rows is not None:
                    values[place : place + last - first] /= self.rows.find_divisors()[row]

    def __str__(self) -> str:
        return "scaled by activations"


def _list_rows(start: int, count: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield, for each row in a range of values: its place there, number, first and last column."""
    place = 0
    while place < count:
        row, first = divmod(start + place, width)
        last = min(width, first + count - place)
        yield place, row, first, last
        place += last - first


@dataclass(frozen=True, slots=True, eq=False)
class DividedNorm:
    """The weight of a norm, divided by the factors of a scale, in its own type."""

    scale: ActivationScale
    encoding: Encoding

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and the encoding; raises `ConversionError` for a matrix."""
        (info,) = inputs
        if len(info.shape) != 1:
            raise ConversionError(f"`{info.name}` is not the weight of a norm")
        return info.shape, self.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Divide the whole weight, and copy the requested range."""
        divided = self.scale.divide_norm(numbers_of(inputs[0]), self.encoding)
        raw = divided.view(np.uint8).reshape(1, -1)
        stored = transcode(raw, ENCODINGS["F32"], self.encoding).raw
        buffer[:] = memoryview(stored.tobytes())[start : start + len(buffer)]

    def __str__(self) -> str:
        return "divided by the scales of activations"

"""Counts of the values of a tensor, and the statistics that follow from them.

A 16-bit type has 65,536 values, so how often each occurs describes a tensor of any size exactly.
Values of other types are counted by the upper 16 bits of their float32, which are those of a
bfloat16: the sign, the exponent and seven bits of the mantissa.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from math import inf, nan, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    F64 = NDArray[np.float64]
    I64 = NDArray[np.int64]

# The number of words of 16 bits.
WORDS = 1 << 16
# The percentiles of magnitudes that `Statistics` has.
PERCENTILES = (50.0, 99.0, 99.9)
# Values further from the mean than this number of standard deviations are outliers.
_FAR = 6.0
# The number of upper bits of a float32 that are counted includes those of bfloat16 only.
_UPPER = "BF16"


class Statistics(NamedTuple):
    """Statistics of the finite values of tensors; they are NaN if there are none.

    `std` is the standard deviation. `percentiles` are those of magnitudes, for `PERCENTILES`.
    `outliers` is the share of values that are more than 6 standard deviations from the mean.
    `size`, `zeros`, `nans` and `infinities` are numbers of values.
    """

    size: int
    least: float
    most: float
    mean: float
    std: float
    percentiles: tuple[float, ...]
    outliers: float
    zeros: int
    nans: int
    infinities: int


@dataclass(slots=True)
class ValueCounts:
    """How often each value occurs.

    `words` has the count of each word: of the values in the 16-bit type `kind`, or of the upper
    halves of float32 values if `is_cut`. Then `least`, `most`, `total` and `squares` have the exact
    extremes and sums of the finite values, and `zeros` and `nans` the exact numbers of these.
    """

    kind: str = _UPPER
    is_cut: bool = False
    words: I64 = field(default_factory=lambda: np.zeros(WORDS, np.int64))
    least: float = inf
    most: float = -inf
    total: float = 0.0
    squares: float = 0.0
    zeros: int = 0
    nans: int = 0

    def add(self, other: ValueCounts) -> None:
        """Add the counts of other values of the same kind."""
        self.words += other.words
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        self.total += other.total
        self.squares += other.squares
        self.zeros += other.zeros
        self.nans += other.nans

    def has_nonfinite(self) -> bool:
        """Return whether a value is NaN or infinite."""
        values = _list_values(self.kind, is_cut=self.is_cut)
        return self.nans > 0 or bool(self.words[~np.isfinite(values)].any())

    def find_largest(self) -> float:
        """Return the largest magnitude of a finite value; 0 if there is none."""
        if self.is_cut:
            return max(-self.least, self.most, 0.0)
        values, _ = self._list_finite()
        return float(np.abs(values).max()) if len(values) else 0.0

    def statistics(self) -> Statistics:
        """Return the statistics of all values that were counted."""
        values, counts = self._list_finite()
        words = np.flatnonzero(self.words)
        size, count = int(self.words[words].sum()), int(counts.sum())
        is_nan = np.isnan(_list_values(self.kind, is_cut=self.is_cut)[words])
        nans = self.nans if self.is_cut else int(self.words[words[is_nan]].sum())
        if not count:
            missing = (nan,) * len(PERCENTILES)
            return Statistics(size, nan, nan, nan, nan, missing, nan, 0, nans, size - nans)
        if self.is_cut:
            least, most, total, squares = self.least, self.most, self.total, self.squares
        else:
            least, most = float(values.min()), float(values.max())
            total, squares = float(counts @ values), float(counts @ (values * values))
        mean = total / count
        std = sqrt(max(squares / count - mean * mean, 0.0))
        # A cut word is an outlier if its whole range is: the range is 2**-7 of its value.
        margin = np.abs(values) / 256 if self.is_cut else 0.0
        is_far = np.abs(values - mean) - margin > _FAR * std
        return Statistics(
            size, least, most, mean, std,
            tuple(_find_percentiles(np.abs(values), counts, max(-least, most))),
            int(counts[is_far].sum()) / count if std else 0.0,
            self.zeros if self.is_cut else int(counts[values == 0].sum()),
            nans, size - count - nans,
        )  # fmt: skip

    def histogram(self, bins: int) -> tuple[I64, float]:
        """Return counts of values in equal ranges from -`limit` to `limit`, and the limit.

        The limit is four standard deviations plus the magnitude of the mean, or less if no
        magnitude is larger. Values beyond it are in the first and the last range.
        """
        made = np.zeros(bins, np.int64)
        found = self.statistics()
        limit = min(4 * found.std + abs(found.mean), max(-found.least, found.most))
        if not limit > 0:  # it may be NaN
            return made, 0.0
        values, counts = self._list_finite()
        places = np.floor((values / limit + 1) * (bins / 2)).astype(np.int64)
        np.add.at(made, np.clip(places, 0, bins - 1), counts)
        return made, limit

    def _list_finite(self) -> tuple[F64, I64]:
        """Return the finite values that occur, and their counts."""
        words = np.flatnonzero(self.words)
        values = _list_values(self.kind, is_cut=self.is_cut)[words]
        finite = np.isfinite(values)
        return values[finite], self.words[words[finite]]


@cache
def _list_values(kind: str, *, is_cut: bool) -> F64:
    """Return the value of each word.

    A cut word stands for a range of values; its value is the middle of the range.
    """
    words = np.arange(WORDS, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    with np.errstate(invalid="ignore"):  # signaling NaNs
        held = transcode(words, ENCODINGS[kind], ENCODINGS["F32"]).raw.view(np.float32).reshape(-1)
        if is_cut:
            middles = (np.arange(WORDS, dtype=np.uint32) << np.uint32(16)) | np.uint32(1 << 15)
            middles[[0, 1 << 15]] = 0  # most of these values are zeros
            held = np.where(np.isfinite(held), middles.view(np.float32), held)
        return held.astype(np.float64)


def _find_percentiles(magnitudes: F64, counts: I64, largest: float) -> Sequence[float]:
    """Return percentiles of magnitudes; none is larger than the largest magnitude."""
    order = np.argsort(magnitudes, kind="stable")
    sums = np.cumsum(counts[order])
    places = np.searchsorted(sums, [np.ceil(sums[-1] * each / 100) for each in PERCENTILES])
    return [min(float(magnitudes[order[place]]), largest) for place in places]

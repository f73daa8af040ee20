"""Distributions of the scales of a tensor's blocks, and those scales that no healthy tensor has."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.verify.checks.finite.scales import Codes, ScaleField

__all__ = ["Extremes", "ScaleSpread", "extract_powers", "magnitude_bits"]

# A scale so many powers of two from the next is not an outlier. In real models, in any encoding,
# there are at most 3 between neighbours above the median; a flipped bit of an exponent makes up to
# 16.
_TOO_FAR_ABOVE = 6
_TOO_FAR_BELOW = 8
# More of them are how the tensor is, not damage.
_FEW = 1 / 64
# A float16 as small as this has two bits left, and is off by up to an eighth.
_COARSE = 2.0**-22
# Of a run of blocks so many are looked at to know what is usual.
_SAMPLED = 64
_POWERS = 256
_BIAS = 127


class Extremes:
    """The greatest and the least scale of a field of blocks, and what is usual among them.

    This is quickly had; `are_usual` tells whether it is worth to look closer.
    """

    def __init__(self, field: ScaleField) -> None:
        self.field = field
        kind: np.dtype[Any] = np.dtype(field.form.kind)
        self._mask = kind.type(magnitude_bits(field))
        self._one = kind.type(1)
        self._greatest = 0
        self._least = _POWERS << 24
        self._has_negative = False
        self._samples: list[Codes] = []

    def add(self, codes: Codes) -> None:
        """Look at the field of some blocks."""
        magnitudes = codes & self._mask
        self._greatest = max(self._greatest, int(magnitudes.max()))
        step = len(codes) // _SAMPLED + 1
        # A copy: a view would keep all of them.
        self._samples.append(magnitudes[::step].reshape(-1).copy())
        if self.field.is_positive and int(codes.max()) > self.field.form.sign:
            self._has_negative = True  # a negative zero is none
        # Zeros wrap to the greatest there is.
        magnitudes -= self._one
        self._least = min(self._least, int(magnitudes.min()) + 1)

    def join(self, other: Extremes) -> None:
        """Look at what another has looked at."""
        self._greatest = max(self._greatest, other._greatest)
        self._least = min(self._least, other._least)
        self._has_negative |= other._has_negative
        self._samples += other._samples

    @property
    def are_finite(self) -> bool:
        """Whether all scales are, and so what they scale."""
        return self._greatest < self.field.form.limit

    @property
    def are_usual(self) -> bool:
        """Whether no scale is such that a problem could come of a closer look."""
        form = self.field.form
        if self._greatest >= form.limit or self._has_negative:
            return False
        if self._greatest == 0:
            return True
        codes = np.concatenate(self._samples)
        codes = codes[codes > 0]
        extremes = np.array([self._greatest, self._least], codes.dtype)
        greatest, least = np.log2(form.as_float32(extremes))
        if not codes.size:
            return bool(greatest - least < _TOO_FAR_ABOVE)
        # A list in order: a median of two middle codes may not be a code.
        usual = np.log2(form.as_float32(np.sort(codes)[codes.size // 2 :][:1]))[0]
        # One power less than what a look at all of them calls too far: this is a guess.
        is_small = bool(usual - least >= _TOO_FAR_BELOW - 1 or 2.0**usual < 2 * _COARSE)
        is_large = bool(greatest - usual >= _TOO_FAR_ABOVE - 1)
        return not is_large and (self.field.is_added or not is_small)


class ScaleSpread:
    """The counts of scales of each power of two, of a field of a tensor's blocks."""

    def __init__(self, field: ScaleField) -> None:
        self.field = field
        self._powers: NDArray[np.int64] = np.zeros(_POWERS, np.int64)
        self.nonfinite = 0
        self.negative = 0

    def add(self, codes: Codes) -> None:
        """Count the field of some blocks."""
        form = self.field.form
        magnitudes = codes & codes.dtype.type(magnitude_bits(self.field))
        finite = magnitudes[magnitudes < form.limit]
        self.nonfinite += magnitudes.size - finite.size
        self._powers += np.bincount(extract_powers(form.as_float32(finite)), minlength=_POWERS)
        if self.field.is_positive:
            self.negative += int(np.count_nonzero(codes > codes.dtype.type(form.sign)))

    @property
    def count(self) -> int:
        """How many scales there are that are finite and not zero."""
        return int(self._powers[1:].sum())

    @property
    def has_few_negative(self) -> bool:
        """Whether some are below zero, and so few that it is not how the tensor was encoded."""
        return 0 < self.negative <= max(1, self.count * _FEW)

    @property
    def greatest(self) -> float:
        """The power of two from which on scales are absurd: infinite where none is."""
        used, middle = self._used, self._middle
        for lower, upper in pairwise(used):
            if lower >= middle and upper - lower >= _TOO_FAR_ABOVE and self._are_few(upper, inf):
                return 2.0 ** (upper - _BIAS)
        return inf

    @property
    def least(self) -> float:
        """The power of two below which scales that stand alone are absurd: 0 where none is."""
        used, middle = self._used, self._middle
        if self.field.is_added:
            return 0.0
        for lower, upper in reversed(list(pairwise(used))):
            if upper <= middle and upper - lower >= _TOO_FAR_BELOW and self._are_few(0, lower):
                return 2.0 ** (upper - _BIAS)
        return 0.0

    @property
    def usual(self) -> float:
        """The power of two of the scale that is in the middle, 0 where there is none."""
        return 2.0 ** (self._middle - _BIAS) if self.count else 0.0

    @property
    def is_coarse(self) -> bool:
        """Whether most scales are float16 numbers so small that hardly a bit of them is left."""
        is_half = self.field.form.kind == "<u2" and not self.field.is_added
        return is_half and 0 < self.usual < _COARSE

    @property
    def _used(self) -> list[int]:
        return [int(power) + 1 for power in np.flatnonzero(self._powers[1:])]

    @property
    def _middle(self) -> int:
        below = np.cumsum(self._powers[1:])
        return int(np.searchsorted(below, (self.count + 1) // 2)) + 1

    def _are_few(self, first: int, last: float) -> bool:
        found = sum(int(self._powers[power]) for power in self._used if first <= power <= last)
        return found <= max(1, self.count * _FEW)


def magnitude_bits(field: ScaleField) -> int:
    """Return the bits of a field's codes that are not their signs."""
    return (1 << 8 * np.dtype(field.form.kind).itemsize) - 1 & ~field.form.sign


def extract_powers(scales: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the exponents of float32 numbers as they are stored: 127 for those from 1 to 2."""
    return scales.reshape(-1).view(np.uint32) >> np.uint32(23) & np.uint32(_POWERS - 1)

"""Reads the scales of quantized blocks, and finds those that a healthy tensor cannot have."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weightctl.codecs.narrow import widen

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype.types import BlockScale


# Unsigned integers of any width.
Codes = NDArray[Any]


class ScaleForm(NamedTuple):
    """The number format of a scale, whose bits are read as unsigned integers.

    `kind` is the NumPy dtype of the integers. Without the bits in the mask `sign`, they sort in the
    order of the magnitudes, and integers of at least `limit` are not finite. `as_float32` converts
    the integers to values.
    """

    kind: str
    sign: int
    limit: int
    as_float32: Callable[[Codes], F32]


def _read_half(codes: Codes) -> F32:
    return widen(codes.view(np.float16))


def _read_single(codes: Codes) -> F32:
    return codes.view(np.float32)


def _read_power_of_two(codes: Codes) -> F32:
    # The byte equals the exponent of a float32; 0 and 255 give zero and infinity.
    return (codes.astype(np.uint32) << np.uint32(23)).view(np.float32)


def _read_e4m3(codes: Codes) -> F32:
    exponent, mantissa = (codes >> 3).astype(np.int32), (codes & 7).astype(np.float32)
    normal: F32 = np.ldexp(mantissa + np.float32(8), exponent - 10)
    return np.where(exponent == 0, mantissa * np.float32(2.0**-9), normal)


# The keys are the names in the table of encodings.
_FORMS = {
    "f16": ScaleForm("<u2", 0x8000, 0x7C00, _read_half),
    "f32": ScaleForm("<u4", 0x8000_0000, 0x7F80_0000, _read_single),
    # 255 is NaN in the OCP Microscaling standard. With 253 or more, the largest value of a block
    # overflows float32.
    "e8m0": ScaleForm("u1", 0, 0xFD, _read_power_of_two),
    # Decoders ignore the highest bit: the format is unsigned.
    "ue4m3": ScaleForm("u1", 0x80, 0x7F, _read_e4m3),
}


def form_of(scale: BlockScale) -> ScaleForm:
    return _FORMS[scale.form]


def read_codes(scale: BlockScale, raw: U8, size: int) -> Codes:
    """Return one scale field of raw blocks of `size` bytes, as integers [blocks, width]."""
    words = 4 if scale.in_nibbles else scale.width
    kind: np.dtype[Any] = np.dtype({
        "names": ["field"], "formats": [(form_of(scale).kind, (words,))],
        "offsets": [scale.offset], "itemsize": size,
    })  # fmt: skip
    found: Codes = np.ascontiguousarray(raw.view(kind)["field"])
    if not scale.in_nibbles:
        return found
    highest = found >> np.uint16(12) << np.arange(0, 16, 4, dtype=np.uint16)
    return np.bitwise_or.reduce(highest, axis=1, keepdims=True)


# A scale is an outlier if it is this many powers of two from the next scale in order of size. In
# real models, in any encoding, the gaps above the median are at most 3; a flipped exponent bit
# moves a scale by up to 16.
_TOO_FAR_ABOVE = 6
_TOO_FAR_BELOW = 8
# More outliers than this are a property of the tensor, not damage.
_FEW = 1 / 64
# A float16 this small has two bits left, and a relative error of up to an eighth.
_COARSE = 2.0**-22
# The number of scales to sample from each group of blocks.
_SAMPLED = 64
_POWERS = 256
_BIAS = 127


class Extremes:
    """The largest and the smallest scale of a block field, and a sample of the scales.

    These are cheap to compute. If they are not `are_usual`, a `ScaleSpread` is needed.
    """

    def __init__(self, field: BlockScale) -> None:
        self.field = field
        self._form = form_of(field)
        self._greatest = 0
        self._least = _POWERS << 24
        self._has_negative = False
        self._samples: list[Codes] = []

    def add(self, codes: Codes) -> None:
        magnitudes = clear_signs(self.field, codes)
        self._greatest = max(self._greatest, int(magnitudes.max()))
        step = len(codes) // _SAMPLED + 1
        # The sample is copied, since a view would keep the whole array in memory.
        self._samples.append(magnitudes[::step].reshape(-1).copy())
        if self.field.is_positive and int(codes.max()) > self._form.sign:
            self._has_negative = True  # a negative zero does not count
        # Zeros wrap around to the largest integer.
        magnitudes -= magnitudes.dtype.type(1)
        self._least = min(self._least, int(magnitudes.min()) + 1)

    def join(self, other: Extremes) -> None:
        self._greatest = max(self._greatest, other._greatest)
        self._least = min(self._least, other._least)
        self._has_negative |= other._has_negative
        self._samples += other._samples

    @property
    def are_finite(self) -> bool:
        """Whether all scales are finite; if so, the values that they scale are finite too."""
        return self._greatest < self._form.limit

    @property
    def are_usual(self) -> bool:
        """Whether the scales are so ordinary that `ScaleSpread` cannot find a problem."""
        form = self._form
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
        # The median is taken from sorted codes, since a mean of two codes may not be a valid code.
        usual = np.log2(form.as_float32(np.sort(codes)[codes.size // 2 :][:1]))[0]
        # The sample only gives an estimate, so the margin is one power of two smaller.
        is_small = bool(usual - least >= _TOO_FAR_BELOW - 1 or 2.0**usual < 2 * _COARSE)
        is_large = bool(greatest - usual >= _TOO_FAR_ABOVE - 1)
        return not is_large and (self.field.is_added or not is_small)


class ScaleSpread:
    """A histogram, by power of two, of all scales that a tensor has in a block field."""

    def __init__(self, field: BlockScale) -> None:
        self.field = field
        self._powers: NDArray[np.int64] = np.zeros(_POWERS, np.int64)
        self.nonfinite = 0
        self.negative = 0

    def add(self, codes: Codes) -> None:
        form = form_of(self.field)
        magnitudes = clear_signs(self.field, codes)
        finite = magnitudes[magnitudes < form.limit]
        self.nonfinite += magnitudes.size - finite.size
        # The stored (biased) exponents of float32 values: 127 for values in [1, 2).
        bits = form.as_float32(finite).reshape(-1).view(np.uint32)
        powers = bits >> np.uint32(23) & np.uint32(_POWERS - 1)
        self._powers += np.bincount(powers, minlength=_POWERS)
        if self.field.is_positive:
            self.negative += int(np.count_nonzero(codes > codes.dtype.type(form.sign)))

    @property
    def count(self) -> int:
        """The number of scales that are finite and not zero."""
        return int(self._powers[1:].sum())

    @property
    def has_few_negative(self) -> bool:
        """Whether some scales are negative, but too few to be written so by an encoder."""
        return 0 < self.negative <= max(1, self.count * _FEW)

    @property
    def greatest(self) -> float:
        """The power of two from which on scales are implausibly large; infinite if none are."""
        used, middle = self._used, self._middle
        for lower, upper in pairwise(used):
            if lower >= middle and upper - lower >= _TOO_FAR_ABOVE and self._are_few(upper, inf):
                return 2.0 ** (upper - _BIAS)
        return inf

    @property
    def least(self) -> float:
        """The power of two below which isolated scales are implausibly small; 0 if none are."""
        used, middle = self._used, self._middle
        if self.field.is_added:
            return 0.0
        for lower, upper in reversed(list(pairwise(used))):
            if upper <= middle and upper - lower >= _TOO_FAR_BELOW and self._are_few(0, lower):
                return 2.0 ** (upper - _BIAS)
        return 0.0

    @property
    def usual(self) -> float:
        """The power of two of the median scale; 0 if there are no scales."""
        return 2.0 ** (self._middle - _BIAS) if self.count else 0.0

    @property
    def is_coarse(self) -> bool:
        """Whether the median scale is a float16 value so small that it has few significant bits."""
        is_half = form_of(self.field).kind == "<u2" and not self.field.is_added
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


def clear_signs(scale: BlockScale, codes: Codes) -> Codes:
    """Return the integers of a scale field without their sign bits."""
    magnitudes: Codes = codes & codes.dtype.type(
        ~form_of(scale).sign & ((1 << 8 * codes.itemsize) - 1)
    )
    return magnitudes

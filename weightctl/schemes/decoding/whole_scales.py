"""Scales of whole weights in NVFP4, and how the values of a weight follow from them.

compressed-tensors divides the scales of blocks by the scale of the weight, ModelOpt multiplies
them by it. llama.cpp multiplies the values of ggml's blocks (the products with these) by a tensor
`NAME.scale`. Each of these rounds in float32 at another place.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs.scalar import convert, unpack
from weightctl.dtype import DType
from weightctl.schemes.decoding.values import E2M1

if TYPE_CHECKING:
    from weightctl.codecs.base import F32

# All scales of blocks that are numbers, and the magnitudes of all codes.
_SCALES = np.arange(0x7F, dtype=np.uint8)
_MAGNITUDES = np.array(E2M1[:8], np.float32)


class ScaleUse(Enum):
    """What a scale of a whole weight does: to the scales of its blocks, or to its values."""

    DIVIDES = "divides the scales of blocks"
    MULTIPLIES = "multiplies the scales of blocks"
    MULTIPLIES_VALUES = "multiplies values"


class WholeScale(NamedTuple):
    """The scale of a whole weight, or of each of its matrices, shape (n,), and its use."""

    values: F32
    use: ScaleUse

    def is_usable(self) -> bool:
        """Whether all scales are positive numbers, whose inverses are too."""
        with np.errstate(all="ignore"):
            inverse = np.float32(1) / self.values
        return bool((np.isfinite(inverse) & (inverse > 0) & (self.values > 0)).all())

    def is_one(self) -> bool:
        return bool((self.values == 1).all())

    def put_to(self, use: ScaleUse) -> tuple[WholeScale, bool]:
        """Return the scale for another use, and whether all values stay the same, bit for bit."""
        values = self.values
        if use is self.use:
            return self, True
        if ScaleUse.DIVIDES in {use, self.use}:
            values = (np.float32(1) / values).astype(np.float32)
        made = WholeScale(values, use)
        return made, bool(np.array_equal(self._restore_all(), made._restore_all()))

    def _restore_all(self) -> F32:
        """Return the values of all codes at all scales of blocks, for each scale of a matrix."""
        scales: F32 = convert(unpack(_SCALES, DType.float8_e4m3fn), DType.float32)
        scales, whole = scales[None, :, None], self.values[:, None, None]
        with np.errstate(all="ignore"):
            if self.use is ScaleUse.MULTIPLIES_VALUES:
                return scales * _MAGNITUDES * whole
            made = scales / whole if self.use is ScaleUse.DIVIDES else scales * whole
            return made * _MAGNITUDES

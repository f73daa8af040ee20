"""Whether the bytes of each number of a tensor are in reverse."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.weights.derived import Tensor

__all__ = ["has_swapped_bytes"]

_F64 = ENCODINGS["F64"]
_PLAIN = {"F64", "F32", "BF16", "F16"}
# So many numbers show how their sizes are spread.
_SAMPLE, _LEAST = 1 << 14, 64
# The sizes of most weights are within so many powers of two; where bytes of a significand are taken
# for exponents they are further apart.
_USUAL, _WIDE = 8.0, 14.0
# What most numbers are between, in percent.
_MOST = (10, 90)


def has_swapped_bytes(tensor: Tensor) -> bool:
    """Whether plain numbers are weights of usual sizes with their bytes in reverse, and only so."""
    info = tensor.info
    encoding = info.encoding
    if encoding.name not in _PLAIN or info.size < _LEAST:
        return False
    raw = bytearray(min(info.size, _SAMPLE) * encoding.size)
    tensor.read_into(0, memoryview(raw))
    given = np.frombuffer(raw, np.uint8)
    swapped = np.ascontiguousarray(given.reshape(-1, encoding.size)[:, ::-1]).reshape(-1)
    return _spread(given, encoding) > _WIDE and _spread(swapped, encoding) < _USUAL


def _spread(raw: U8, encoding: Encoding) -> float:
    """Return within how many powers of two the sizes of most numbers are."""
    with np.errstate(all="ignore"):  # misread bits may be NaN
        numbers = transcode(raw.reshape(1, -1), encoding, _F64).raw.reshape(-1).view(np.float64)
    sizes = np.abs(numbers[np.isfinite(numbers) & (numbers != 0)])
    if sizes.size < _LEAST:
        return 0.0
    low, high = np.percentile(np.log2(sizes), _MOST)
    return float(high - low)

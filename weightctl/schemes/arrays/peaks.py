"""The largest magnitudes of whole weights, on which the scales of some schemes depend."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from weightctl.errors import ConversionError
from weightctl.kernels import block_rounder
from weightctl.schemes.arrays.search import find_ratio
from weightctl.weights.steps.numbers import read_blocks, read_floats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.arrays.rounding import Rounding
    from weightctl.schemes.arrays.search import ScaleSearch
    from weightctl.weights.derived import ReadableTensor

# The number of values that are rounded at a time.
TILE = 1 << 20


class SharedPeak:
    """The largest magnitude of all values of some weights, which is computed on first use.

    Without weights, it is 0: the scale of the whole weight is then 1. `searches` has a search for
    each weight, or is empty.
    """

    def __init__(
        self,
        tensors: Sequence[ReadableTensor],
        searches: Sequence[ScaleSearch] = (),
        *,
        zero_nonfinite: bool,
    ) -> None:
        self._tensors = tuple(tensors)
        self._searches = tuple(searches)
        self._zero_nonfinite = zero_nonfinite
        self._lock = Lock()
        self._found: np.float32 | None = None
        self._ratio: np.float32 | None = None

    def find(self) -> np.float32:
        """Return the largest magnitude; this reads all values once."""
        with self._lock:
            if self._found is None:
                self._found = max(map(self._find_peak, self._tensors), default=np.float32(0))
            return self._found

    def find_ratio(self, rounding: Rounding) -> np.float32:
        """Return the ratio of the largest magnitude that has the smallest error in all weights."""
        peak = self.find()
        with self._lock:
            if self._ratio is None:
                with np.errstate(all="ignore"):
                    self._ratio = find_ratio(rounding, self._read_weighted(), peak)
            return self._ratio

    def _read_weighted(self) -> Iterator[tuple[F32, F32 | None]]:
        for tensor, search in zip(self._tensors, self._searches, strict=True):
            for first, count in _list_tiles(tensor):
                tile = self._read(tensor, first, count).reshape(1, -1)
                yield tile, search.find_weights(first, (1, count))

    def _find_peak(self, tensor: ReadableTensor) -> np.float32:
        peak = np.float32(0)
        for first, count in _list_tiles(tensor):
            found = find_magnitude(read_blocks(tensor, first, count), tensor.info.encoding)
            if found is None:
                values = self._read(tensor, first, count)
                found = max(values.max(), -values.min())
            peak = max(peak, found)
        return peak

    def _read(self, tensor: ReadableTensor, first: int, count: int) -> F32:
        values = read_floats(tensor, first, count)
        return make_finite(values, tensor, first, zero_nonfinite=self._zero_nonfinite)[0]


def _list_tiles(tensor: ReadableTensor) -> Iterator[tuple[int, int]]:
    """Yield the first value of each tile of a tensor, and the number of its values."""
    size = tensor.info.size
    yield from ((first, min(TILE, size - first)) for first in range(0, size, TILE))


def make_finite(
    values: F32, tensor: ReadableTensor, first: int, *, zero_nonfinite: bool
) -> tuple[F32, int]:
    """Return values with 0 in place of those that are not finite, and the number of these.

    Raises `ConversionError` for them without `zero_nonfinite`.
    """
    if np.isfinite(values.max()) and np.isfinite(values.min()):
        return values, 0
    finite = np.isfinite(values)
    if not zero_nonfinite:
        index = int(np.argmin(finite))
        raise ConversionError(
            f"`{tensor.info.name}` has {values[index]:g} at element {first + index}, which "
            "quantized weights cannot hold",
            hint="the checkpoint is probably damaged; to store 0 instead, use --nonfinite zero "
            "(nonfinite in Python)",
        )
    return np.where(finite, values, np.float32(0)), values.size - int(np.count_nonzero(finite))


def find_magnitude(raw: U8, encoding: Encoding) -> np.float32 | None:
    """Return the largest magnitude of values, None without kernels or if one is not finite."""
    rounder = block_rounder(encoding.name)
    if rounder is None or not raw.size:
        return None
    count = raw.size // encoding.size * encoding.block
    made = np.empty(1, np.float32)
    rounder.reduce(raw, count, count, None, made)
    found: np.float32 = made[0]
    return found if np.isfinite(found) else None

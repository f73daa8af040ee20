"""Detects values that were clipped to a range."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.text.wording import number, percent
from weightctl.verify.compare.causes.proof import explains
from weightctl.verify.compare.measure import read_values
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import AsFloat32

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

__all__ = ["find_clipped"]

_PIECE = 1 << 20
# The number of values beyond a limit that is enough to measure the limit.
_MOST_KEPT = 1 << 16
# A single value that differs may be damage of any kind.
_LEAST_CLIPPED = 2
# A value is beyond all others if it exceeds them by this multiple of the usual encoding error.
_MARGIN = 4.0


def find_clipped(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that all values of the reference beyond a limit are at that limit."""
    if found.nonfinite or found.own_squares >= found.squares:
        return None
    limits = _find_limits(pair)
    if limits is None:
        return None
    count = sum(_count_beyond(reference, limits) for _, reference in _read_pieces(pair))
    made = pair._replace(reference=DerivedTensor(pair.module, limits, [pair.reference]))
    if not explains(made, pairing, found):
        return None
    size = pair.tensor.info.size
    return Explanation(
        "clipped",
        f"its values are clipped to {limits}: {count:,} of {size:,} "
        f"({percent(count / size)}) are outside this range in the reference",
    )


class _Limits(NamedTuple):
    """Clips values to a range, in float32."""

    low: float
    high: float

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape, and F32."""
        return AsFloat32().infer(inputs)

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Decode the values, and clip them."""
        AsFloat32().read_into(inputs, start, buffer)
        numbers = np.frombuffer(buffer, np.float32)
        np.clip(numbers, np.float32(self.low), np.float32(self.high), out=numbers)

    def __str__(self) -> str:
        low, high = number(self.low), number(self.high)
        if low == f"-{high}":
            return f"±{high}"
        if np.isinf(self.low):
            return f"at most {high}"
        return f"at least {low}" if np.isinf(self.high) else f"{low} to {high}"


def _read_pieces(pair: Pair) -> Iterator[tuple[F32, F32]]:
    """Yield values of both tensors, chunk by chunk."""
    block = max(pair.tensor.info.encoding.block, pair.reference.info.encoding.block)
    size = pair.tensor.info.size
    for start, stop in pairwise([*range(0, size, _PIECE // block * block), size]):
        own, reference = (
            read_values(each, start, stop - start) for each in (pair.tensor, pair.reference)
        )
        yield own, reference


def _find_limits(pair: Pair) -> _Limits | None:
    """Return the range of a tensor's values if the reference's exceed it; else None.

    Values of the reference that exceed all of the tensor's values, by more than an encoding
    explains, were clipped if any were. The limit is the value that the tensor has in their places.
    """
    low, high = np.inf, -np.inf
    for own, _ in _read_pieces(pair):
        low, high = min(low, float(own.min())), max(high, float(own.max()))
    at_low, at_high = _KeptSums(), _KeptSums()
    margin = _MARGIN * max(abs(low), abs(high)) * max(side.typical for side in pair.sides)
    for own, reference in _read_pieces(pair):
        at_low.add(own[reference < low - margin])
        at_high.add(own[reference > high + margin])
    if at_low.count + at_high.count < _LEAST_CLIPPED:
        return None
    return _Limits(at_low.median(-np.inf), at_high.median(np.inf))


class _KeptSums:
    """A sample of values: the first ones that were added."""

    def __init__(self) -> None:
        self._numbers: list[F32] = []
        self.count = 0

    def add(self, numbers: F32) -> None:
        kept = numbers[: _MOST_KEPT - self.count]
        if kept.size:
            self._numbers.append(kept)
            self.count += kept.size

    def median(self, default: float) -> float:
        return float(np.median(np.concatenate(self._numbers))) if self.count else default


def _count_beyond(reference: F32, limits: _Limits) -> int:
    return int(np.count_nonzero((reference < limits.low) | (reference > limits.high)))

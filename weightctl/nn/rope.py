"""Rotary position embedding: pairs of elements of each head are rotated by position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.families.rope_factors import RopeScaling, inverse_frequencies
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.module import Module
from weightctl.nn.precision import weight_as

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.graph.graph import Value


class RotaryEmbedding(Module):
    """The cosines and sines of the angles by which pairs of elements are rotated.

    `dimensions` is the number of rotated elements of a head. Without `scaling`, pair `i` is rotated
    by `base ** (-2 * i / dimensions)` radians per position. With longrope scaling, the largest
    position selects the short or the long factors for all positions.
    """

    def __init__(
        self, dimensions: int, base: float = 10000.0, scaling: RopeScaling | None = None
    ) -> None:
        self.dimensions = dimensions
        self.base = base
        self.scaling = scaling

    def __call__(self, positions: Value, factors: Value | None = None) -> tuple[Value, Value]:
        """Return cosines and sines, float32, `positions.shape + (dimensions / 2,)` each.

        `factors`, float32[dimensions / 2], divide the frequencies, as GGUF's `rope_freqs` do.
        """
        frequencies = self._frequencies(positions)
        if factors is not None:
            frequencies = frequencies / factors
        angles = ops.unsqueeze(positions.cast(DType.float32), -1) * frequencies
        cos, sin = ops.cos(angles), ops.sin(angles)
        if self.scaling is not None and self.scaling.amplitude != 1:
            cos, sin = cos * self.scaling.amplitude, sin * self.scaling.amplitude
        return cos, sin

    def _frequencies(self, positions: Value) -> Value:
        def of(length: int) -> Value:
            numbers = inverse_frequencies(self.dimensions, self.base, self.scaling, length)
            return ops.constant(numbers, DType.float32, positions.device)

        if self.scaling is None or not self.scaling.long_factors:
            return of(0)
        context = self.scaling.original_context
        return by_length(positions, context, of(context), of(context + 1))


class FrequencyFactors(Module):
    """The divisors of rotary frequencies that a checkpoint stores: GGUF's tensor `rope_freqs`."""

    def __init__(self, pairs: int, *, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.float32, (pairs,), device)

    def __call__(self) -> Value:
        """Return the factors, float32[pairs]."""
        return weight_as(self.weight, DType.float32)


def by_length(positions: Value, original_context: int, short: Value, long: Value) -> Value:
    """Return `long` if a position is at or beyond the original context, otherwise `short`."""
    return ops.where(ops.max(positions) >= original_context, long, short)

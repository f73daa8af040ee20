"""Costs of encodings: bits of each value, and errors of values that have been through them."""

from __future__ import annotations

from math import exp2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import can_encode, is_exact, transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo


__all__ = ["PairSide", "count_bits", "decode_values", "typical_error"]

_F32 = ENCODINGS["F32"]
# The root mean square of rounding errors that are spread evenly, in half units of the last place,
# of significands that are.
_EVENLY = 0.4
# What the codecs make of weights is about twice as far from them as no code of so many bits can
# help being, whatever the number of bits.
_ABOVE_BOUND = 2.0
_MOST = 0.6
# Of eight bits some are an exponent's, or one scale serves a whole channel.
_EIGHT_BITS = (7.0, 9.0)
_ABOVE_BLOCKS = 5.0


def count_bits(header: Header) -> Callable[[ReadableTensor], float]:
    """Return what tells the bits per number of a tensor of this header, or made of one.

    A weight that is stored in parts, of which scales are some, is counted with all of them.
    """
    apart: dict[tuple[TensorInfo, ...], float] = {
        origin.sources: sum(source.nbytes for source in origin.sources) * 8 / info.size
        for name, origin in header.origins.items()
        if (info := header.tensors.get(name)) is not None and info.size and origin.sources
    }

    def bits(tensor: ReadableTensor) -> float:
        sources = tensor.origin.sources
        encoding = sources[0].encoding if sources else tensor.info.encoding
        return apart.get(sources, encoding.size * 8 / encoding.block)

    return bits


def typical_error(encoding: Encoding, bits: float) -> float:
    """Return the relative RMSE that weights usually have in an encoding.

    `bits` are those per number in the file, fewer than those of the encoding where a weight is
    stored in parts.
    """
    is_apart = bits != encoding.size * 8 / encoding.block
    if encoding.significand is not None and not is_apart:
        return _EVENLY / (1 << encoding.significand)
    found = _ABOVE_BOUND / exp2(bits)
    if is_apart and _EIGHT_BITS[0] < bits < _EIGHT_BITS[1]:
        found *= _ABOVE_BLOCKS
    return min(found, _MOST)


class PairSide(NamedTuple):
    """The storage of one of two tensors: its encoding, and bits per number in the file."""

    encoding: Encoding
    bits: float

    @property
    def is_apart(self) -> bool:
        """Whether the weight is stored in parts that our encodings do not describe."""
        return self.bits != self.encoding.size * 8 / self.encoding.block

    @property
    def typical(self) -> float:
        """The relative RMSE that weights usually have so."""
        return typical_error(self.encoding, self.bits)

    @property
    def keeps_all(self) -> bool:
        """Whether float32 goes through it unchanged."""
        return not self.is_apart and is_exact(_F32, self.encoding)

    def through(self, numbers: F32) -> F32 | None:
        """Return what numbers, shape (n,), are once they have been stored so; whole blocks.

        None where that cannot be said: nothing encodes it, or what it cannot hold is among them.
        """
        if self.keeps_all:
            return numbers
        if self.is_apart or not can_encode(self.encoding):
            return None
        raw = numbers.view(np.uint8).reshape(1, -1)
        try:
            made = transcode(raw, _F32, self.encoding, zero_nonfinite=True).raw
        except NonFiniteError:
            return None
        return decode_values(made.reshape(-1), self.encoding)


def decode_values(raw: U8, encoding: Encoding) -> F32:
    """Return the numbers of whole blocks of an encoding, shape (n,)."""
    if encoding == _F32:
        return raw.view(np.float32)
    rows = transcode(raw.reshape(1, -1), encoding, _F32).raw
    return rows.reshape(-1).view(np.float32)

"""Storage costs of encodings: bits for each value, and errors of values."""

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
# The root mean square of evenly distributed rounding errors, in half units of the last place, for
# evenly distributed significands.
_EVENLY = 0.4
# The error of the codecs is about twice the theoretical bound for a code with this number of bits,
# whatever the number.
_ABOVE_BOUND = 2.0
_MOST = 0.6
# Eight-bit schemes use some bits for an exponent, or one scale for a whole channel.
_EIGHT_BITS = (7.0, 9.0)
_ABOVE_BLOCKS = 5.0


def count_bits(header: Header) -> Callable[[ReadableTensor], float]:
    """Return a function that gives the bits per value of a tensor with this header.

    It also accepts tensors made from these. A weight that is stored in several tensors counts with
    all of them, including scales.
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
    """Return the relative RMSE that weights typically have in an encoding.

    `bits` is the number of bits per value in the file. It differs from that of the encoding if a
    weight is stored in several tensors.
    """
    is_apart = bits != encoding.size * 8 / encoding.block
    if encoding.significand is not None and not is_apart:
        return _EVENLY / (1 << encoding.significand)
    found = _ABOVE_BOUND / exp2(bits)
    if is_apart and _EIGHT_BITS[0] < bits < _EIGHT_BITS[1]:
        found *= _ABOVE_BLOCKS
    return min(found, _MOST)


class PairSide(NamedTuple):
    """How one tensor of a pair is stored: its encoding, and the bits per value in the file."""

    encoding: Encoding
    bits: float

    @property
    def is_apart(self) -> bool:
        """Whether the weight is stored in several tensors, by a scheme."""
        return self.bits != self.encoding.size * 8 / self.encoding.block

    @property
    def typical(self) -> float:
        """The relative RMSE that weights typically have in this storage."""
        return typical_error(self.encoding, self.bits)

    @property
    def keeps_all(self) -> bool:
        """Whether float32 values are stored without loss."""
        return not self.is_apart and is_exact(_F32, self.encoding)

    def through(self, numbers: F32) -> F32 | None:
        """Encode and decode values, [n], in whole blocks.

        None if the encoding cannot be written, or cannot represent all of the values.
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
    """Decode whole blocks of an encoding into values, [n]."""
    if encoding == _F32:
        return raw.view(np.float32)
    rows = transcode(raw.reshape(1, -1), encoding, _F32).raw
    return rows.reshape(-1).view(np.float32)

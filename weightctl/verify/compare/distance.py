"""Distance of a tensor from its reference, and limits derived from the encodings' errors.

Values are compared in runs: `RUN` consecutive values. The measurements of chunks are added. The
limits allow, with some margin, for conversions with an importance matrix, and for two quantizations
of one model. Random values of the right size exceed them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import exp2, inf, nan, sqrt
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weightctl.codecs import can_encode, is_exact, transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import NonFiniteError
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.rows import RowOrder

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.verify.compare.pairs import Pair
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo


__all__ = [
    "MOST_KEPT",
    "RUN",
    "Measured",
    "PairSide",
    "allowed_error",
    "count_bits",
    "decode_values",
    "expected_error",
    "is_lone_change",
    "is_within",
    "relative_root",
    "rows_of_runs",
    "run_limit",
    "sample_limit",
    "stored_rows",
    "typical_error",
]


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

        None if the encoding cannot be written without an importance matrix, or cannot represent all
        of the values.
        """
        if self.keeps_all:
            return numbers
        kind = self.encoding
        if self.is_apart or not can_encode(kind) or kind.needs_importance:
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


# The number of values of a run: the smallest block with a scale of its own.
RUN = 32
# The number of wrong runs whose indices are kept.
MOST_KEPT = 4096
# The largest error of a run, as a multiple of the expected one. If a block has many runs, one with
# small values may have lost everything.
_RUN_LIMIT, _RUN_OF_MANY_LIMIT = 8.0, 12.0
_FACTOR = 3.0
# Values unrelated to the reference have a larger error than this in any encoding, and so do zeros.
_LOST = 0.75
_ABOVE_LOST = 1.5
_SHARE = 0.5
_IN_SAMPLE, _LEAST_IN_SAMPLE = 8.0, 1e-3
_ROUNDING = 2.0**-20
# The fraction of runs that may differ if tensors of one encoding count as equal except for damage.
_FEW = 0.05


def _keep_first_known(own: int, other: int) -> int:
    return own if own >= 0 else other


def _join_kept(own: list[int], other: list[int]) -> list[int]:
    return own + other[: MOST_KEPT - len(own)]


# The key in a field's metadata of the function that joins two measurements; the default is the sum.
_OF_BOTH = "of_both"


@dataclass(slots=True)
class Measured:
    """The distance of a tensor from its reference; measurements of chunks can be added.

    `squares` is the sum of squares of the reference, `own_squares` of the tensor, and `product`
    their inner product. `error` is the sum of squared differences, and `cost` is what the encodings
    are expected to make of it. `worst` is the largest ratio of a run's difference to the expected
    one. `runs_beyond` is the number of runs above the limit, and `beyond` has the indices of the
    first of them. `runs_unequal` and `unequal` are the same for runs that are not equal.

    `nonfinite` is the number of infinite and NaN values that the other side does not have in the
    same place, and `nonfinite_there` the number of those that are finite in the tensor.
    """

    count: int = 0
    squares: float = 0.0
    own_squares: float = 0.0
    product: float = 0.0
    error: float = 0.0
    cost: float = 0.0
    max_error: float = field(default=0.0, metadata={_OF_BOTH: max})
    worst: float = field(default=0.0, metadata={_OF_BOTH: max})
    runs_beyond: int = 0
    runs_unequal: int = 0
    nonfinite: int = 0
    nonfinite_there: int = 0
    first_nonfinite: int = field(default=-1, metadata={_OF_BOTH: _keep_first_known})
    beyond: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _join_kept})
    unequal: list[int] = field(default_factory=list[int], metadata={_OF_BOTH: _join_kept})

    def add(self, other: Measured) -> None:
        """Add the measurements of the chunk that follows."""
        for each in fields(self):
            of_both: Any = each.metadata.get(_OF_BOTH, add)
            setattr(self, each.name, of_both(getattr(self, each.name), getattr(other, each.name)))

    @property
    def runs(self) -> int:
        """The number of runs."""
        return -(-self.count // RUN)

    @property
    def relative_rmse(self) -> float:
        """The root of the squared error relative to the reference's squares."""
        if self.nonfinite:
            return inf
        return relative_root(self.error, self.squares)

    @property
    def expected(self) -> float:
        """The relative RMSE that the encodings are expected to cause."""
        return relative_root(self.cost, self.squares)

    @property
    def cosine(self) -> float:
        """The cosine between the tensors as vectors; 1 if both are zero, 0 if only one is.

        NaN if some values are finite on one side only.
        """
        if self.nonfinite:
            return nan
        if self.error == 0:
            return 1.0
        lengths = sqrt(self.squares) * sqrt(self.own_squares)
        if lengths == 0:
            return 0.0
        return max(-1.0, min(1.0, self.product / lengths))


def relative_root(squared: float, squares: float) -> float:
    """Return the square root of the ratio of two sums of squares; infinite if only one is zero."""
    if squared == 0:
        return 0.0
    return sqrt(squared / squares) if squares else inf


def run_limit(pair: Pair) -> float:
    """Return the largest error of a run, as a multiple of the error that the encodings cause."""
    block = max(pair.tensor.info.encoding.block, pair.reference.info.encoding.block)
    return _RUN_LIMIT if block <= RUN else _RUN_OF_MANY_LIMIT


def expected_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE that the encodings cause, or half the typical one if larger."""
    least = _SHARE * max(side.typical for side in pair.sides)
    return max(measured.expected, least, _ROUNDING)


def allowed_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE above which a tensor does not match its reference."""
    usual = expected_error(pair, measured)
    return min(_FACTOR * usual, max(_LOST, _ABOVE_LOST * usual))


def sample_limit(pair: Pair) -> float:
    """Return the relative RMSE of a sample above which measuring the whole tensor is pointless."""
    coarser = max(side.typical for side in pair.sides)
    return min(max(_IN_SAMPLE * coarser, _LEAST_IN_SAMPLE), 1.0)


def is_lone_change(pair: Pair, measured: Measured) -> bool:
    """Whether two tensors have the same encoding and are equal except for a few runs.

    That is damage, since equal encodings of one model have no small differences. False for full
    precision, where computations round values.
    """
    side, other = pair.sides
    if side != other or side.keeps_all:
        return False
    return 0 < measured.runs_unequal <= max(1, _FEW * measured.runs)


def is_within(pair: Pair, measured: Measured) -> bool:
    """Whether a tensor matches its reference within the errors of their encodings."""
    is_far = measured.relative_rmse > allowed_error(pair, measured)
    is_damaged = measured.runs_beyond or measured.nonfinite or is_lone_change(pair, measured)
    return not is_far and not is_damaged


def rows_of_runs(pair: Pair, runs: list[int]) -> list[int]:
    """Return the rows in which runs start; a row is one index of the first dimension.

    Rows are counted in the naming convention in which the pair is compared.
    """
    shape = pair.tensor.info.shape
    width = pair.tensor.info.size // shape[0] if shape and shape[0] else 1
    return list(dict.fromkeys(run * RUN // width for run in runs))


def stored_rows(pair: Pair, rows: list[int]) -> list[int]:
    """Return the rows as the tensor's file counts them, in ascending order."""
    step = pair.tensor.step if isinstance(pair.tensor, DerivedTensor) else None
    return sorted(step.order[row] for row in rows) if isinstance(step, RowOrder) else rows

"""Distance of a tensor from its reference, and limits derived from the encodings' errors.

Values are compared in runs of `RUN` consecutive values. Each chunk is measured, and the
measurements are added. The limits have a margin, so that quantizations with an importance matrix
are within them, and so are two quantizations of one model. Random values with the reference's root
mean square exceed them.
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
    from weightctl.verify.compare.pairing import Pair
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import Header, TensorInfo


_F32 = ENCODINGS["F32"]
# The root mean square of uniformly distributed rounding errors, in half units in the last place,
# for uniformly distributed significands.
_EVENLY = 0.4
# The codecs' error is about this multiple of 2**-bits, the theoretical bound for a code with that
# number of bits per value.
_ABOVE_BOUND = 2.0
_MOST = 0.6
# Eight-bit schemes use some bits for an exponent, or one scale for a whole channel.
_EIGHT_BITS = (7.0, 9.0)
_ABOVE_BLOCKS = 5.0


def count_bits(header: Header) -> Callable[[ReadableTensor], float]:
    """Return a function that computes the bits per value of a tensor of the checkpoint.

    The function also accepts tensors that are derived from the checkpoint's. If a scheme stores a
    weight in several tensors, the bits of all of them count, including scales.
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
    """Return the relative RMSE that storing weights in an encoding typically causes.

    `bits` is the number of bits per value in the file. It differs from the encoding's number if a
    scheme stores the weight in several tensors.
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
        """The relative RMSE that storing weights in this way typically causes."""
        return typical_error(self.encoding, self.bits)

    @property
    def keeps_all(self) -> bool:
        """Whether values are stored without loss: float32 values, or the integers of a table."""
        kind = self.encoding
        return not self.is_apart and (not kind.is_real or is_exact(_F32, kind))

    def through(self, numbers: F32) -> F32 | None:
        """Encode and decode float32 values, [n]; n is a multiple of the block size.

        Return None if a scheme stores the weight, if weightctl cannot write the encoding, or only
        with an importance matrix, or if the encoding cannot represent all of the values.
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


# The number of values in a run, which is that of the smallest block with its own scale.
RUN = 32
# The number of wrong runs whose indices are kept.
MOST_KEPT = 4096
# The largest error of a run, as a multiple of the expected error. If a block has many runs, a run
# with small values may lose all of them.
_RUN_LIMIT, _RUN_OF_MANY_LIMIT = 8.0, 12.0
_FACTOR = 3.0
# Zeros, and values unrelated to the reference, have a larger relative RMSE than this in any
# encoding.
_LOST = 0.75
_ABOVE_LOST = 1.5
_SHARE = 0.5
_IN_SAMPLE, _LEAST_IN_SAMPLE = 8.0, 1e-3
_ROUNDING = 2.0**-20
# If two tensors have one encoding and at most this fraction of their runs differ, these runs are
# damaged.
_FEW = 0.05


def _keep_first_known(own: int, other: int) -> int:
    return own if own >= 0 else other


def _join_kept(own: list[int], other: list[int]) -> list[int]:
    return own + other[: MOST_KEPT - len(own)]


# The key of a dataclass field's metadata for the function that joins two measurements; without it,
# they are added.
_OF_BOTH = "of_both"


@dataclass(slots=True)
class Measured:
    """The distance of a tensor from its reference; measurements of chunks can be added.

    `squares` is the sum of the reference's squares, `own_squares` that of the tensor, and `product`
    the inner product of both. `error` is the sum of squared differences, and `cost` the sum that
    the encodings are expected to cause. `worst` is the largest error of a run, as a multiple of the
    expected error. `runs_beyond` is the number of runs above the limit, and `beyond` has the
    indices of the first `MOST_KEPT` of them. `runs_unequal` and `unequal` are the same for runs
    that are not equal.

    `nonfinite` is the number of indices at which only one side is finite, or at which both sides
    have different infinite or NaN values. `nonfinite_there` counts those where only the tensor is
    finite. `first_nonfinite` is the first of these indices, -1 if there is none.
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
        """Add the measurements of the next chunk."""
        for each in fields(self):
            of_both: Any = each.metadata.get(_OF_BOTH, add)
            setattr(self, each.name, of_both(getattr(self, each.name), getattr(other, each.name)))

    @property
    def runs(self) -> int:
        """The number of runs."""
        return -(-self.count // RUN)

    @property
    def relative_rmse(self) -> float:
        """The root of the squared error divided by the reference's squares.

        It is infinite if `nonfinite` is not 0.
        """
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

        It is NaN if `nonfinite` is not 0.
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
    """Return the square root of `squared / squares`; 0 if `squared` is 0, infinite for n/0."""
    if squared == 0:
        return 0.0
    return sqrt(squared / squares) if squares else inf


def run_limit(pair: Pair) -> float:
    """Return the limit of a run's error, as a multiple of the error that the encodings cause."""
    block = max(pair.tensor.info.encoding.block, pair.reference.info.encoding.block)
    return _RUN_LIMIT if block <= RUN else _RUN_OF_MANY_LIMIT


def expected_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE that the encodings cause, at least half the typical one."""
    least = _SHARE * max(side.typical for side in pair.sides)
    return max(measured.expected, least, _ROUNDING)


def allowed_error(pair: Pair, measured: Measured) -> float:
    """Return the relative RMSE above which a tensor does not match its reference."""
    usual = expected_error(pair, measured)
    return min(_FACTOR * usual, max(_LOST, _ABOVE_LOST * usual))


def sample_limit(pair: Pair) -> float:
    """Return the relative RMSE of a sample above which the whole tensor cannot match."""
    coarser = max(side.typical for side in pair.sides)
    return min(max(_IN_SAMPLE * coarser, _LEAST_IN_SAMPLE), 1.0)


def is_lone_change(pair: Pair, measured: Measured) -> bool:
    """Whether two tensors have the same quantized encoding and are equal except for a few runs.

    Such runs are damaged, since two quantizations of one model do not differ in a few runs only.
    False for encodings in full precision, where the rounding of computations may cause this.
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

    The rows are those of the naming convention in which the pair is compared.
    """
    shape = pair.tensor.info.shape
    width = pair.tensor.info.size // shape[0] if shape and shape[0] else 1
    return list(dict.fromkeys(run * RUN // width for run in runs))


def stored_rows(pair: Pair, rows: list[int]) -> list[int]:
    """Return the rows of the stored tensor, ascending, that `rows` of the compared tensor are."""
    step = pair.tensor.step if isinstance(pair.tensor, DerivedTensor) else None
    return sorted(step.order[row] for row in rows) if isinstance(step, RowOrder) else rows

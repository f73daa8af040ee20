"""Detects damaged values: zeros, wrong scales or factors, clipped values, and misread bits."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import permutations
from math import isfinite, log2, sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError
from weightctl.text.wording import number, percent, say_more
from weightctl.verify.compare.distance import allowed_error, read_both, relative_root, stored_rows
from weightctl.verify.compare.explaining import explains, is_proven
from weightctl.verify.compare.pairing import RUN
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.numbers import OnFloat32, read_blocks, read_floats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32, U8
    from weightctl.dtype import Encoding
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo


# The error that may remain after dividing by a factor, as a multiple of the encoding's usual error.
_REST = 3.0
_NEAR_ONE = 0.02
# If a larger fraction of the squared difference remains after dividing by a factor, the factor is
# not the cause.
_MOST_LEFT = 0.5
# The relative error of float32 sums, which applies if the encoding's error is smaller.
_SUMS_APART = 1e-3
# If less than this fraction of the squared difference remains, the factor is the only cause.
_OF_FACTOR = 1e-4
# All values are read again only if one of this number of wrong runs is zero, or if at least this
# fraction of the reference's squares is missing.
_LOOKED_AT, _MISSING = 16, 0.1
_PIECE = 1 << 20
# Zeros in place of a run whose squares are at most this fraction of the mean are not damage.
_NOTHING = 1e-3
_MOST_NAMED = 5


def find_zeroed(_pair: Pair, _pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that all values of a tensor are 0, but not those of its reference."""
    if found.own_squares or not found.squares or found.nonfinite:
        return None
    return Explanation("zeroed", "all its values are 0: it was never written, or was erased")


def find_damaged_scale(pair: Pair, _pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that a single block scale of the checkpoint is wrong."""
    encoding = pair.tensor.info.encoding
    runs = max(encoding.block // RUN, 1)
    wrong = found.beyond or found.unequal
    if encoding.quantization is None or not wrong or len(wrong) > runs:
        return None
    if wrong[0] // runs != wrong[-1] // runs or found.runs_beyond > len(found.beyond):
        return None
    start = wrong[0] // runs * runs * RUN
    own, reference = (each.astype(np.float64) for each in read_both(pair, start, encoding.block))
    where = f"{_name_block(pair, start)} is damaged"
    if not np.isfinite(own).all():
        return Explanation("scale", f"the scale of {where}: it is infinite or NaN")
    squares = float(np.vdot(reference, reference))
    factor = float(np.vdot(own, reference)) / squares if squares else 0.0
    rest = float(np.sum((own - factor * reference) ** 2))
    error = float(np.sum((own - reference) ** 2))
    usual = _REST * pair.sides[0].typical
    size = max(float(np.vdot(own, own)), factor**2 * squares)
    if rest < _OF_FACTOR * error or (abs(factor - 1) > _NEAR_ONE and rest < usual**2 * size):
        return Explanation("scale", f"the scale of {where}: {_say_factor(factor)} the right one")
    # A block may also have scales for its parts. If nearly all of its runs are wrong, one of these
    # cannot be the cause.
    if runs > 1 and len(wrong) >= runs - 1:
        return Explanation("scale", f"a scale of {where}")
    return None


def _name_block(pair: Pair, start: int) -> str:
    width = pair.tensor.info.row
    first, last = start % width, start % width + pair.tensor.info.encoding.block - 1
    return f"the block of values {first} to {last} in row {start // width}"


def _say_factor(factor: float) -> str:
    power = log2(abs(factor)) if factor and isfinite(factor) else 0.5
    if abs(power - round(power)) < 0.1 and abs(power) > 1.5:
        return f"2^{round(power)} times"
    return f"{factor:.3g} times"


def find_scaled(pair: Pair, _pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that all values are those of the reference, multiplied by one factor.

    A single value always is.
    """
    if not found.squares or not found.own_squares or found.nonfinite:
        return None
    if pair.tensor.info.size < 2:
        return None
    if found.relative_rmse <= allowed_error(pair, found):
        return None
    factor = found.product / found.squares
    rest = found.own_squares - factor * found.product
    usual = max(*(side.typical for side in pair.sides), _SUMS_APART)
    if abs(factor - 1) < _NEAR_ONE or sqrt(max(rest, 0.0) / found.own_squares) > _REST * usual:
        return None
    if rest > _MOST_LEFT * found.error:
        return None
    return Explanation("scaled", f"all its values are {_say_factor(factor)} the right ones")


class _Wiped(NamedTuple):
    """Rows that were set to zero.

    `whole` are the rows that are entirely zero, `parts` the rows that contain a run of zeros, and
    `rest` is the squared error of the values that are not zero.
    """

    whole: list[int]
    parts: list[int]
    rest: float


def find_lost_rows(pair: Pair, _pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that rows of a tensor, or parts of rows, are zeros.

    Return None if the other values do not match the reference.
    """
    if len(pair.tensor.info.shape) < 2 or found.nonfinite or not _may_have_zeros(pair, found):
        return None
    wiped = _find_wiped(pair, found)
    if not (wiped.whole or wiped.parts):
        return None
    if relative_root(wiped.rest, found.squares) > allowed_error(pair, found):
        return None
    whole, parts = (stored_rows(pair, rows) for rows in (wiped.whole, wiped.parts))
    subject = _say_rows(whole, parts)
    are = "is" if len(whole) + len(parts) == 1 else "are"
    return Explanation("rows_lost", f"{subject} {are} zeros: never written, or erased")


def _may_have_zeros(pair: Pair, found: Measured) -> bool:
    if found.own_squares < (1 - _MISSING) * found.squares:
        return True
    wrong = found.beyond or found.unequal
    runs = wrong[:: -(-len(wrong) // _LOOKED_AT) or 1]
    size = pair.tensor.info.size
    return any(
        not read_floats(pair.tensor, run * RUN, min(RUN, size - run * RUN)).any() for run in runs
    )


def _find_wiped(pair: Pair, found: Measured) -> _Wiped:
    whole: list[int] = []
    parts: list[int] = []
    rest = 0.0
    least = _NOTHING * found.squares / found.runs
    # A row is one index of the first dimension, as in `rows_of_runs`.
    width = pair.tensor.info.size // pair.tensor.info.shape[0]
    for first, *both in _read_chunks(pair, width):
        own, wanted = (each.reshape(-1, width) for each in both)
        lost = wanted.astype(np.float64) - own
        rest += float(np.vdot(lost[own != 0], lost[own != 0]))
        is_whole = ~own.any(axis=1) & wanted.any(axis=1)
        is_part = _find_zeros(own, wanted, least) & ~is_whole
        whole += (np.flatnonzero(is_whole) + first).tolist()
        parts += (np.flatnonzero(is_part) + first).tolist()
    return _Wiped(whole, parts, rest)


def _read_chunks(pair: Pair, unit: int = 1) -> Iterator[tuple[int, F32, F32]]:
    """Yield the values of both tensors in chunks of whole units, preceded by the unit's number."""
    size, step = pair.tensor.info.size, max(_PIECE // unit, 1) * unit
    for start in range(0, size, step):
        yield start // unit, *read_both(pair, start, min(step, size - start))


def _find_zeros(own: F32, wanted: F32, least: float) -> NDArray[np.bool_]:
    """Return whether each row has a run of zeros in place of other values.

    `least` is the sum of squares that a run of the reference must exceed.
    """
    rows, width = own.shape
    runs = [each[:, : width // RUN * RUN].reshape(rows, -1, RUN) for each in (own, wanted)]
    squares = np.square(runs[1], dtype=np.float64).sum(axis=2)
    is_lost = ~runs[0].any(axis=2) & (squares > least)
    found: NDArray[np.bool_] = is_lost.any(axis=1)
    return found


def _say_rows(whole: Sequence[int], parts: Sequence[int]) -> str:
    texts = [_name_rows(whole)] if whole else []
    if parts:
        texts.append(f"part{'s' * (len(parts) > 1)} of {_name_rows(parts)}")
    return " and ".join(texts)


def _name_rows(rows: Sequence[int]) -> str:
    """Return the numbers of some rows as text, with ranges: `rows 3-5, 9`."""
    spans: list[list[int]] = []
    for row in sorted(rows):
        if spans and row == spans[-1][1] + 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]
    left = sum(last - first + 1 for first, last in spans[_MOST_NAMED:])
    named = f"row{'s' * (len(rows) > 1)} {', '.join(shown[:_MOST_NAMED])}"
    return f"{named} {say_more(left)}" if left else named


# The number of values beyond a limit from which the limit is measured.
_MOST_KEPT = 1 << 16
# At least this number of values must be clipped: a single one may be any kind of damage.
_LEAST_CLIPPED = 2
# A value is beyond the tensor's range if it exceeds it by this multiple of the typical error.
_MARGIN = 4.0


def find_clipped(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that all values of the reference beyond a limit are set to that limit."""
    if found.nonfinite or found.own_squares >= found.squares:
        return None
    limits = _find_limits(pair)
    if limits is None:
        return None
    count = sum(
        int(np.count_nonzero((reference < limits.low) | (reference > limits.high)))
        for *_, reference in _read_chunks(pair)
    )
    made = pair._replace(reference=DerivedTensor(pair.module, limits, [pair.reference]))
    if not explains(made, pairing, found):
        return None
    size = pair.tensor.info.size
    return Explanation(
        "clipped",
        f"its values are clipped to {limits}: {count:,} of {size:,} "
        f"({percent(count / size)}) are outside this range in the reference",
    )


@dataclass(frozen=True, slots=True)
class _Limits(OnFloat32):
    """A step that clips values to a range, in float32."""

    low: float
    high: float

    def _compute(self, values: F32) -> None:
        np.clip(values, np.float32(self.low), np.float32(self.high), out=values)

    def __str__(self) -> str:
        low, high = number(self.low), number(self.high)
        if low == f"-{high}":
            return f"±{high}"
        if np.isinf(self.low):
            return f"at most {high}"
        return f"at least {low}" if np.isinf(self.high) else f"{low} to {high}"


def _find_limits(pair: Pair) -> _Limits | None:
    """Return the range that a tensor's values seem to be clipped to; None if there is none.

    If the tensor was clipped, the values of the reference outside the tensor's range, by more than
    the encodings explain, are the clipped ones. Each limit is the median of the tensor's values in
    the places of these values.
    """
    low, high = np.inf, -np.inf
    for _, own, _ in _read_chunks(pair):
        low, high = min(low, float(own.min())), max(high, float(own.max()))
    at_low = at_high = np.empty(0, np.float32)
    margin = _MARGIN * max(abs(low), abs(high)) * max(side.typical for side in pair.sides)
    for _, own, reference in _read_chunks(pair):
        at_low = np.append(at_low, own[reference < low - margin])[:_MOST_KEPT]
        at_high = np.append(at_high, own[reference > high + margin])[:_MOST_KEPT]
    if at_low.size + at_high.size < _LEAST_CLIPPED:
        return None
    return _Limits(
        float(np.median(at_low)) if at_low.size else -np.inf,
        float(np.median(at_high)) if at_high.size else np.inf,
    )


# Bits that were read in the wrong byte order, or as the wrong dtype.


_F32, _F16, _BF16 = (ENCODINGS[name] for name in ("F32", "F16", "BF16"))
# The encodings of full-precision checkpoints.
_PLAIN = (_F32, _BF16, _F16)
_LEAST_DIFFERENT = 0.5


def find_misread(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that the bits of a tensor were read in the wrong byte order, or as the wrong dtype.

    If the tensor still has the bits, they are reinterpreted. If it was quantized afterwards, the
    same mistake is made with the reference's values.
    """
    if found.runs_unequal < _LEAST_DIFFERENT * found.runs and not found.nonfinite:
        return None
    own = pairing.checkpoint
    view = pair if own is None else pairing.seen_in(own.convention, pair)
    if view is None:
        return None
    for step in _READINGS:
        if any(is_proven(made, pairing) for made in _correct(view, step)):
            return _make_cause(step)
    return None


class _Reading(NamedTuple):
    """A step that reads the bits of `held` values as `meant` values.

    `is_swapped` says whether the bytes of each value are reversed.
    """

    held: Encoding
    meant: Encoding
    is_swapped: bool

    @property
    def undone(self) -> _Reading:
        return _Reading(self.meant, self.held, self.is_swapped)

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        (info,) = inputs
        if info.encoding not in _PLAIN or not info.encoding.size >= self.held.size:
            raise ConversionError(f"`{info.name}` is stored as {info.encoding}, not as {self.held}")
        return info.shape, self.meant

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        (tensor,) = inputs
        width = self.held.size
        raw = read_blocks(tensor, start // width, len(buffer) // width)
        bits = _encode(self.held, tensor.info.encoding, raw)
        if self.is_swapped:
            bits = bits.reshape(-1, width)[:, ::-1].reshape(-1)
        np.frombuffer(buffer, np.uint8)[:] = bits

    def __str__(self) -> str:
        return f"bits of {self.held} as {self.meant}"


def _list_readings() -> Iterator[_Reading]:
    for encoding in _PLAIN:
        yield _Reading(encoding, encoding, is_swapped=True)
    for held, meant in permutations((_F16, _BF16)):
        yield _Reading(held, meant, is_swapped=False)


# The readings to try. `held` is the wrong encoding, which the tensor was read as.
_READINGS = tuple(_list_readings())


def _correct(pair: Pair, step: _Reading) -> Iterator[Pair]:
    """Yield the pair with a reinterpreted tensor, and the pair with a reference misread likewise.

    The first is left out if the tensor does not hold the bits any more, and the second if the
    reference cannot be misread in this way.
    """
    own, reference = pair.tensor, pair.reference
    encoding = own.info.encoding
    if encoding == step.held or _may_hold(own, step.held):
        yield pair._replace(tensor=DerivedTensor(pair.module, step, [own]))
    elif encoding in _PLAIN and encoding.size < step.held.size:
        return
    with suppress(ConversionError):
        yield pair._replace(reference=DerivedTensor(pair.module, step.undone, [reference]))


def _may_hold(tensor: ReadableTensor, encoding: Encoding) -> bool:
    """Whether a float32 tensor's first values can be represented in a narrower encoding."""
    if tensor.info.encoding != _F32:
        return False
    numbers = read_blocks(tensor, 0, min(tensor.info.size, 1 << 10))
    recoded = _encode(_F32, encoding, _encode(encoding, _F32, numbers))
    is_number = np.isfinite(numbers.view(np.float32))
    bits, recoded_bits = (each.view(np.uint32)[is_number] for each in (numbers, recoded))
    return np.array_equal(bits, recoded_bits)


def _encode(encoding: Encoding, stored: Encoding, raw: U8) -> U8:
    """Convert raw values from one full-precision encoding to another."""
    with np.errstate(all="ignore"):  # misread bits may be NaN, and overflow
        return transcode(raw.reshape(1, -1), stored, encoding).raw.reshape(-1)


def _make_cause(step: _Reading) -> Explanation:
    if step.is_swapped:
        return Explanation(
            "byte_order",
            f"its byte order is swapped: the {step.held.size} bytes of each value are "
            "reversed, as when big-endian values are read as little-endian",
        )
    return Explanation(
        "wrong_dtype", f"its bits are those of {step.meant} values, but were read as {step.held}"
    )

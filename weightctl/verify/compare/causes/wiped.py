"""Rows that are zeros, in whole or in part, where the reference's are not and the rest is fine."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.verify.compare.causes.rows import stored_rows
from weightctl.verify.compare.distance import RUN, relative
from weightctl.verify.compare.measuring import numbers_from
from weightctl.verify.compare.tolerance import allowed
from weightctl.verify.problem import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair

__all__ = ["rows_lost"]

# Runs that are wrong of which one must be zeros before all numbers are read again, unless so much
# of the squares is missing.
_LOOKED_AT, _MISSING = 16, 0.1
_PIECE = 1 << 20
# Zeros in place of numbers this small, next to all others, are no damage.
_NOTHING = 1e-3
_MOST_NAMED = 5


class _Wiped(NamedTuple):
    """The rows that are zeros, those that are in part, and the squared error of the rest."""

    whole: list[int]
    parts: list[int]
    rest: float


def rows_lost(pair: Pair, found: Measured) -> Cause | None:
    """Return that rows of a tensor, or parts of some, are zeros; None where more is wrong."""
    if len(pair.tensor.info.shape) < 2 or found.nonfinite or not _may_be(pair, found):
        return None
    wiped = _wiped(pair, found)
    if not (wiped.whole or wiped.parts):
        return None
    if relative(wiped.rest, found.squares) > allowed(pair, found):
        return None
    whole, parts = (stored_rows(pair, rows) for rows in (wiped.whole, wiped.parts))
    said = _said(whole, parts)
    are = "is" if len(whole) + len(parts) == 1 else "are"
    return Cause("rows_lost", f"{said} {are} zeros: never written, or wiped")


def _may_be(pair: Pair, found: Measured) -> bool:
    if found.own_squares < (1 - _MISSING) * found.squares:
        return True
    wrong = found.beyond or found.unequal
    runs = wrong[:: -(-len(wrong) // _LOOKED_AT) or 1]
    return any(not numbers_from(pair.tensor, run * RUN, RUN).any() for run in runs)


def _wiped(pair: Pair, found: Measured) -> _Wiped:
    whole: list[int] = []
    parts: list[int] = []
    rest = 0.0
    least = _NOTHING * found.squares / found.runs
    for first, own, wanted in _rows(pair):
        lost = wanted.astype(np.float64) - own
        rest += float(np.vdot(lost[own != 0], lost[own != 0]))
        is_whole = ~own.any(axis=1) & wanted.any(axis=1)
        is_part = _has_zeros(own, wanted, least) & ~is_whole
        whole += (np.flatnonzero(is_whole) + first).tolist()
        parts += (np.flatnonzero(is_part) + first).tolist()
    return _Wiped(whole, parts, rest)


def _rows(pair: Pair) -> Iterator[tuple[int, F32, F32]]:
    """Yield some rows of both after others, shape (rows, numbers), behind the first one's number.

    Rows are counted as in `rows_of`.
    """
    count = pair.tensor.info.shape[0]
    width = pair.tensor.info.size // count
    step = max(_PIECE // width, 1)
    for first in range(0, count, step):
        rows = min(step, count - first)
        own, wanted = (
            numbers_from(tensor, first * width, rows * width).reshape(rows, width)
            for tensor in (pair.tensor, pair.reference)
        )
        yield first, own, wanted


def _has_zeros(own: F32, wanted: F32, least: float) -> NDArray[np.bool_]:
    """Return which rows have a run of zeros that should be other numbers."""
    rows, width = own.shape
    runs = [each[:, : width // RUN * RUN].reshape(rows, -1, RUN) for each in (own, wanted)]
    squares = np.square(runs[1], dtype=np.float64).sum(axis=2)
    is_lost = ~runs[0].any(axis=2) & (squares > least)
    found: NDArray[np.bool_] = is_lost.any(axis=1)
    return found


def _said(whole: Sequence[int], parts: Sequence[int]) -> str:
    told = [_named(whole)] if whole else []
    if parts:
        told.append(f"part{'s' * (len(parts) > 1)} of {_named(parts)}")
    return " and ".join(told)


def _named(rows: Sequence[int]) -> str:
    """Return what some rows are called, those that follow one another together: `rows 3-5, 9`."""
    spans: list[list[int]] = []
    for row in sorted(rows):
        if spans and row == spans[-1][1] + 1:
            spans[-1][1] = row
        else:
            spans.append([row, row])
    shown = [f"{first}-{last}" if last > first else f"{first}" for first, last in spans]
    left = sum(last - first + 1 for first, last in spans[_MOST_NAMED:])
    more = f" and {left} more" if left else ""
    return f"row{'s' * (len(rows) > 1)} {', '.join(shown[:_MOST_NAMED])}{more}"

"""Errors of a part's output, relative to what the part adds to its input."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

    F64 = NDArray[np.float64]

__all__ = ["FACTOR", "ROUNDING", "Share", "center", "is_beyond", "measure_share"]

# The largest error of a part, as a multiple of the error that its encodings explain. On real
# models, different encoders of one encoding stay within 1.5; small faults begin at 5.
FACTOR = 3.0
# Rounding of float32 sums in another order: relative to a position's length, and to what is added.
_OF_LENGTH, ROUNDING = 3e-6, 2e-5
_LEAST = 1e-30


class Share(NamedTuple):
    """The root mean square over positions of the difference, relative to what a part adds.

    All positions have the same weight, however large their values are. `beyond` is the same for the
    difference that float32 rounding does not explain.
    """

    all: float
    beyond: float


def measure_share(found: F32, wanted: F32, added: F32) -> Share:
    """Return the error of `found` against `wanted`, relative to `added`; all [positions, n].

    Positions where `wanted` or `added` is not finite are ignored. The error is infinite if `found`
    is not finite at another position.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        error, size, length = (
            _measure_lengths(found - wanted),
            _measure_lengths(added),
            _measure_lengths(wanted),
        )
        known = np.isfinite(size) & np.isfinite(length)
        error, size, length = error[known], size[known] + _LEAST, length[known]
        beyond = np.maximum(error - _OF_LENGTH * length, 0)
        return Share(_average(error / size), _average(beyond / size))


def is_beyond(found: Share, expected: Share) -> bool:
    """Whether a part differs by more than its encodings and rounding explain."""
    return found.beyond > FACTOR * expected.all + ROUNDING


def center(logits: F32) -> F32:
    """Return logits minus their mean, which has no effect on predictions."""
    with np.errstate(over="ignore", invalid="ignore"):
        made: F32 = logits - logits.mean(axis=-1, keepdims=True)
    return made


def _measure_lengths(rows: F32) -> F64:
    squares: F64 = np.einsum("pn,pn->p", rows, rows, dtype=np.float64)
    return np.sqrt(squares)


def _average(shares: F64) -> float:
    if not shares.size:
        return 0.0
    found = float(np.sqrt(np.mean(np.square(shares))))
    return found if np.isfinite(found) else float("inf")

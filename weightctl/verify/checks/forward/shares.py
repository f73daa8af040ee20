"""Errors of what a part of a model gives, as shares of what that part adds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weightctl.codecs.base import F32

    F64 = NDArray[np.float64]

__all__ = ["FACTOR", "ROUNDING", "Share", "center", "is_beyond", "measure_share"]

# So many times what its encodings cost a part may be off: other encoders of the same encoding stay
# within 1.5 of ours on real models, small faults begin at 5.
FACTOR = 3.0
# Float32's own, of sums in another order: of a position's whole length, and of what is added.
_OF_LENGTH, ROUNDING = 3e-6, 2e-5
_LEAST = 1e-30


class Share(NamedTuple):
    """The root mean square, over positions, of a difference as a share of what is added there.

    A position counts as much as another, however large its numbers are. `beyond` is the same of
    what rounding of float32 does not explain.
    """

    all: float
    beyond: float


def measure_share(found: F32, wanted: F32, added: F32) -> Share:
    """Return how far `found` is from `wanted`, which came of something by `added`; [positions, n].

    Positions where what is wanted is not finite say nothing; infinite where what is found is not.
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
    """Whether a part is further off than its encodings and rounding explain."""
    return found.beyond > FACTOR * expected.all + ROUNDING


def center(logits: F32) -> F32:
    """Return logits without their mean, which says nothing."""
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

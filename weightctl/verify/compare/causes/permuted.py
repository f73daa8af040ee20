"""Rows or columns of a tensor in another order, as its file has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.causes.orders import COLUMNS, ROWS, order_of, permuted_text
from weightctl.verify.problem import Cause

if TYPE_CHECKING:
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing

    Places = tuple[int, ...]

__all__ = ["permuted"]

_NOUNS = {ROWS: "rows", COLUMNS: "columns"}


def permuted(pair: Pair, pairing: Pairing, found: Measured) -> Cause | None:
    """Return that the rows or columns of a tensor are rolled, swapped or in another order."""
    del found
    own = pairing.checkpoint
    view = pair if own is None else pairing.seen_in(own.dialect, pair)
    if view is None:
        return None
    for axis, noun in _NOUNS.items():
        places = order_of(view, pairing, axis)
        if places is not None:
            return _cause(places, noun)
    return None


def _cause(places: Places, noun: str) -> Cause:
    size = len(places)
    by = places.index(0)
    if len(places) > 2 and all(
        number == (place - by) % size for place, number in enumerate(places)
    ):
        text = f"its {noun} are rolled by {by} of {size}: the first is number {by} here"
        return Cause("rolled", text)
    return Cause("permuted", permuted_text(places, noun))

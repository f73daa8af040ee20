"""Orders of rows: for each row of a tensor, which of another one it is (`new = old[order]`)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["alternate", "group_heads", "half_split_order", "interleaved_order", "invert"]


@lru_cache(maxsize=64)  # a model has two, in all of its layers
def interleaved_order(heads: int, head_dim: int, rotated: int | None = None) -> tuple[int, ...]:
    """Return which half-split row each row of an interleaved projection is.

    A rotary embedding turns numbers in pairs. In GGUF a pair's rows are neighbors; in Hugging
    Face's naming convention the first rows of all pairs of a head stand before all the second ones.
    Of each head the first `rotated` rows, all where not given, are in pairs; the others stay.
    """
    rotated = head_dim if rotated is None else rotated
    half = rotated // 2
    return tuple(
        head * head_dim + (row % 2 * half + row // 2 if row < rotated else row)
        for head in range(heads)
        for row in range(head_dim)
    )


@lru_cache(maxsize=64)
def half_split_order(heads: int, head_dim: int, rotated: int | None = None) -> tuple[int, ...]:
    """Return which interleaved row each row of a half-split projection is.

    The inverse of `interleaved_order`.
    """
    rotated = head_dim if rotated is None else rotated
    half = rotated // 2
    return tuple(
        head * head_dim + (row % half * 2 + row // half if row < rotated else row)
        for head in range(heads)
        for row in range(head_dim)
    )


@lru_cache(maxsize=64)
def alternate(rows: int, parts: int = 2) -> tuple[int, ...]:
    """Return the order in which the parts of a tensor, of as many `rows` each, take turns.

    The parts stand one after the other in the tensor whose rows are put into this order.
    """
    return tuple(part * rows + row for row in range(rows) for part in range(parts))


@lru_cache(maxsize=64)
def group_heads(groups: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order in which each group of heads has its rows of all parts together.

    The parts stand one after the other in the tensor whose rows are put into this order; a group
    has as many rows of each as `sizes` says: `(head_dim,) * 3` where each head has its queries,
    keys and values together.
    """
    starts = [groups * sum(sizes[:part]) for part in range(len(sizes))]
    return tuple(
        start + group * size + row
        for group in range(groups)
        for start, size in zip(starts, sizes, strict=True)
        for row in range(size)
    )


@lru_cache(maxsize=64)
def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    places = [0] * len(order)
    for place, row in enumerate(order):
        places[row] = place
    return tuple(places)


def invert(order: Sequence[int]) -> tuple[int, ...]:
    """Return the order that undoes another."""
    return _inverse(tuple(order))

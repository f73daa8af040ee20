"""Orders of rows: for each row of a new tensor, its number in the old one (`new = old[order]`)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@lru_cache(maxsize=64)  # a model uses two in all of its layers
def interleaved_order(heads: int, head_dim: int, rotated: int | None = None) -> tuple[int, ...]:
    """Return the order from the half-split to the interleaved rows of a projection.

    RoPE rotates elements in pairs. In GGUF the rows of a pair are neighbors; in Hugging Face's
    naming convention, the first rows of all pairs of a head precede the second ones. Only the first
    `rotated` rows of each head form pairs (default: all); the others keep their places.
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
    """Return the order from the interleaved to the half-split rows of a projection.

    This is the inverse of `interleaved_order`.
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
    """Return the order that interleaves `parts` parts of `rows` rows each, row by row.

    The old tensor has the parts one after the other.
    """
    return tuple(part * rows + row for row in range(rows) for part in range(parts))


@lru_cache(maxsize=64)
def group_heads(groups: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order that puts the rows of all parts together for each group of heads.

    The old tensor has the parts one after the other. `sizes` are the rows of each part in a group:
    `(head_dim,) * 3` if each head has its queries, keys and values together.
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
    """Return the inverse of an order."""
    return _inverse(tuple(order))

"""Sums of squares that a graph computes beside its outputs, for importance matrices.

A layer may compute the same result with other products than llama.cpp. It then also computes what
llama.cpp multiplies its weights with, but only within `collecting_squares`.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from weightctl.graph import ops

if TYPE_CHECKING:
    from collections.abc import Generator

    from weightctl.graph.graph import Value, Weight

_collected: ContextVar[dict[str, Value] | None] = ContextVar("collected_squares", default=None)


@contextmanager
def collecting_squares() -> Generator[None]:
    """Collect sums of squares within this context."""
    token = _collected.set({})
    try:
        yield
    finally:
        _collected.reset(token)


def collected_squares() -> dict[str, Value]:
    """Return the sums that were collected so far, by the names of the weights."""
    return _collected.get() or {}


def collects_squares() -> bool:
    """Whether sums of squares are collected."""
    return _collected.get() is not None


def collect_squares(weight: Weight, vectors: Value) -> None:
    """Collect the sums of squares of what llama.cpp multiplies each head's matrix of a weight with.

    `vectors` are [batch, heads, positions, size], and the sums [heads, size].
    """
    found = _collected.get()
    if found is not None:
        found[weight.name] = ops.sum(ops.sum(vectors * vectors, 2), 0)

"""Positions of the tokens of a graph's inputs, and the keys and values of tokens before them."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dim import Dim
from weightctl.dtype import DType
from weightctl.graph import ops

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from weightctl.device import DeviceRef
    from weightctl.graph.value import Value

__all__ = [
    "KeyValueCache",
    "Temperature",
    "list_all_positions",
    "list_positions",
    "use_cache",
    "with_past",
]


class KeyValueCache:
    """The keys and values that layers made of `past` earlier tokens, while a graph is built.

    `given` are inputs of the graph, [batch, heads, past, size] each, in the order in which layers
    use them. Without them, there are no earlier tokens. `made` are the keys and values of all
    tokens, in the same order; the next run of the graph takes them as its inputs.
    """

    def __init__(self, given: Sequence[Value] = (), past: Dim | None = None) -> None:
        self.past = Dim(0) if past is None else past
        self.made: list[Value] = []
        self._given = given

    def extend(self, x: Value) -> Value:
        """Return keys or values of the inputs behind those of earlier tokens."""
        if self._given:
            x = ops.concat([self._given[len(self.made)], x], axis=2)
        self.made.append(x)
        return x


_current: ContextVar[KeyValueCache | None] = ContextVar("key_value_cache", default=None)


@contextmanager
def use_cache(cache: KeyValueCache) -> Generator[None]:
    """Let the layers that are called within this context use a cache."""
    token = _current.set(cache)
    try:
        yield
    finally:
        _current.reset(token)


def with_past(x: Value) -> Value:
    """Return keys or values, [batch, heads, positions, size], behind those of earlier tokens.

    Without a cache there are no earlier tokens.
    """
    cache = _current.get()
    return x if cache is None else cache.extend(x)


def list_positions(count: Dim, device: DeviceRef) -> Value:
    """Return the positions of `count` tokens, int64[count]: they follow the earlier tokens."""
    cache = _current.get()
    past = Dim(0) if cache is None else cache.past
    return ops.range(past, past + count, device=device)


def list_all_positions(count: Dim, device: DeviceRef) -> Value:
    """Return the positions of the earlier tokens and of `count` tokens: int64[past + count]."""
    cache = _current.get()
    past = Dim(0) if cache is None else cache.past
    return ops.range(past + count, device=device)


class Temperature(NamedTuple):
    """What queries are multiplied by: 1 in the first `length` positions, more in the next ones.

    It is `1 + scale * log(1 + floor((position + offset) / length))`. Source: Nakanishi,
    "Scalable-Softmax" (2025), as Llama 4 has it.
    """

    scale: float
    length: int
    offset: int = 0

    def __call__(self, queries: Value) -> Value:
        """Return queries [batch, heads, positions, head_dim] multiplied."""
        places = list_positions(queries.shape[2], queries.device) + self.offset
        times = ops.floordiv(places, self.length).cast(DType.float32) + 1.0
        factors = ops.log(times) * self.scale + 1.0
        return queries * ops.unsqueeze(factors, 1).cast(queries.dtype)

"""Positions of the tokens of a graph's inputs, and what layers keep of the tokens before them."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

from weightctl.dim import Dim
from weightctl.dtype import DType
from weightctl.graph import ops

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from weightctl.device import DeviceRef
    from weightctl.graph.graph import Value


class KeyValueCache:
    """What layers keep of `past` earlier tokens, while a graph is built.

    These are keys and values, [batch, heads, past, size] each; states of recurrences; and, for
    convolutions, the last positions. `given` are the inputs of the graph with them, in the order in
    which layers use them. Without them, there are no earlier tokens. `made` is what layers keep of
    all tokens, in the same order; the next run of the graph takes it as its inputs.
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

    def advance(self, compute: Callable[[Value | None], tuple[Value, Value]]) -> Value:
        """Return what is computed from the states after earlier tokens; keep the new states."""
        result, states = compute(self._given[len(self.made)] if self._given else None)
        self.made.append(states)
        return result

    def extend_tail(self, x: Value, count: int) -> Value:
        """Return `count` positions before the inputs, and the inputs; keep the last positions."""
        if self._given:
            before = self._given[len(self.made)]
        else:
            zero = ops.constant(0.0, x.dtype, x.device)
            before = ops.broadcast_to(zero, (x.shape[0], count, *x.shape[2:]))
        x = ops.concat([before, x], axis=1)
        self.made.append(ops.split(x, [x.shape[1] - count, count], axis=1)[1])
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


def with_states(compute: Callable[[Value | None], tuple[Value, Value]]) -> Value:
    """Return the result of a recurrence: `compute` takes its states, and returns the new ones too.

    The states are None before the first token.
    """
    cache = _current.get()
    return compute(None)[0] if cache is None else cache.advance(compute)


def with_tail(x: Value, count: int, compute: Callable[[Value], Value]) -> Value:
    """Return `compute(x)`, in which a position reads up to `count` positions before it.

    `x` is [batch, positions, ...], and the result has the same positions.
    """
    cache = _current.get()
    if cache is None:
        return compute(x)
    positions = x.shape[1]
    return ops.split(compute(cache.extend_tail(x, count)), [count, positions], axis=1)[1]


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


def mask_positions(positions: Dim, device: DeviceRef, window: int | None = None) -> Value:
    """Return bool[positions, keys]: which of the keys up to its own position each one sees."""
    places = ops.unsqueeze(list_positions(positions, device), 1)
    back = places - ops.unsqueeze(list_all_positions(positions, device), 0)
    seen = back >= 0
    return seen if window is None else ops.logical_and(seen, back < window)

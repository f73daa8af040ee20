"""For the delta rules: what goes in, what comes out, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from op_example import Example, Inferred, Refused
from op_values import BF16, f32, floats
from weightctl.graph import TensorType

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

__all__ = ["EXAMPLES", "INFERRED", "REFUSED"]

RULE, GENERAL = "gated_delta_rule", "general_delta_rule"


def _rule(
    query: Array, key: Array, value: Array, decay: Array, beta: Array, before: Array | None = None
) -> tuple[Array, Array]:
    """Return what position after position gives, and the states after the last, in float64."""
    group = value.shape[2] // key.shape[2]
    query, key = (np.repeat(each, group, 2).astype(np.float64) for each in (query, key))
    decay = decay.reshape((*value.shape[:3], -1))[..., None]
    zeros = np.zeros((*value.shape[::2], key.shape[-1], value.shape[-1]))
    state = zeros if before is None else before.astype(np.float64)
    made = np.zeros(value.shape)
    for place in range(value.shape[1]):
        k, q = key[:, place, :, None], query[:, place, :, None]
        state = state * np.exp(decay[:, place])
        wrong = value[:, place, :, None] - k @ state
        state = state + beta[:, place, :, None, None] * k.swapaxes(-1, -2) @ wrong
        made[:, place] = (q @ state)[:, :, 0]
    return made.astype(np.float32), state.astype(np.float32)


def _example(positions: int, *, by_element: bool = False, has_states: bool = False) -> Example:
    batch, key_heads, heads, size, width = 2, 2, 4, 3, 5
    keys = (batch, positions, key_heads, size)
    shape = (batch, positions, heads)
    given: tuple[Array, ...] = (
        floats(*keys),
        floats(*keys) * np.float32(0.5),
        floats(*shape, width),
        -np.abs(floats(*shape, size) if by_element else floats(*shape)),
        np.abs(np.tanh(floats(*shape))),
    )
    if has_states:
        given = (*given, floats(batch, heads, size, width))
    return Example(RULE, given, _rule(*given), {}, 2e-5)


def _general(positions: int, *, has_states: bool = False) -> Example:
    """Return what position after position gives, in float64, of heads of other sizes."""
    query, key, decay, read, write = (floats(2, positions, 3, 4) for _ in range(5))
    decay, value = -np.abs(decay), floats(2, positions, 3, 5)
    read, write = read * np.float32(0.3), write * np.float32(0.3)
    before = [floats(2, 3, 4, 5)] if has_states else []
    state, made = sum(before, start=np.zeros((2, 3, 4, 5))), np.zeros(value.shape)
    for place in range(positions):
        was = np.einsum("bhk,bhkv->bhv", read[:, place], state)
        state = state * np.exp(decay[:, place, ..., None])
        state = state + np.einsum("bhk,bhv->bhkv", write[:, place], was)
        state = state + np.einsum("bhk,bhv->bhkv", key[:, place], value[:, place])
        made[:, place] = np.einsum("bhk,bhkv->bhv", query[:, place], state)
    given = (query, key, value, decay, read, write, *before)
    results = (made.astype(np.float32), state.astype(np.float32))
    return Example(GENERAL, given, results, {}, 2e-5)


# A chunk is 64 positions, or 16 with a decay for each element.
EXAMPLES = [
    _example(1),
    _example(150),
    _example(40, by_element=True),
    _example(70, has_states=True),
    _general(1),
    _general(20),
    _general(3, has_states=True),
    Example(
        RULE,
        (floats(1, 0, 1, 2),) * 3 + (floats(1, 0, 1),) * 2,
        (floats(1, 0, 1, 2), np.zeros((1, 1, 2, 2), np.float32)),
    ),
]

QUERY, VALUE, NUMBERS = f32("b", "n", 2, 3), f32("b", "n", 4, 5), f32("b", "n", 4)
KEYS, STATES = f32("b", "n", 4, 3), f32("b", 4, 3, 5)
INFERRED = [
    Inferred(RULE, (QUERY, QUERY, VALUE, NUMBERS, NUMBERS), (VALUE, STATES)),
    Inferred(RULE, (QUERY, QUERY, VALUE, f32("b", "n", 4, 3), NUMBERS, STATES), (VALUE, STATES)),
    Inferred(GENERAL, (KEYS, KEYS, VALUE, KEYS, KEYS, KEYS), (VALUE, STATES)),
]

REFUSED = [
    Refused(RULE, (NUMBERS, QUERY, VALUE, NUMBERS, NUMBERS), "must have four dimensions"),
    Refused(RULE, (QUERY, VALUE, VALUE, NUMBERS, NUMBERS), "query, key and value do not match"),
    Refused(
        RULE,
        (f32("b", "n", 3, 3), f32("b", "n", 3, 3), VALUE, NUMBERS, NUMBERS),
        "4 heads cannot be divided among 3 key heads",
    ),
    Refused(RULE, (QUERY, QUERY, VALUE, NUMBERS, NUMBERS, VALUE), "the states must be"),
    Refused(GENERAL, (KEYS, KEYS, VALUE, KEYS, KEYS, KEYS, VALUE), "the states must be"),
    Refused(RULE, (QUERY, QUERY, VALUE, VALUE, NUMBERS), "decay and beta must be [b, n, 4]"),
    Refused(RULE, (QUERY, QUERY, VALUE, NUMBERS, VALUE), "decay and beta must be [b, n, 4]"),
    Refused(
        RULE,
        (QUERY, QUERY, TensorType(BF16, ("b", "n", 4, 5)), NUMBERS, NUMBERS),
        "float32 and bfloat16 cannot be combined",
    ),
    Refused(
        GENERAL, (QUERY, QUERY, VALUE, QUERY, QUERY, QUERY), "and the first three must be equal"
    ),
    Refused(GENERAL, (KEYS, KEYS, VALUE, KEYS, VALUE, KEYS), "key, decay, read and write must be"),
    Refused(
        GENERAL,
        (KEYS, KEYS, TensorType(BF16, ("b", "n", 4, 5)), KEYS, KEYS, KEYS),
        "float32 and bfloat16 cannot be combined",
    ),
]

"""For the gated delta rule: what goes in, what comes out, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from op_example import Example, Inferred, Refused
from op_values import BF16, f32, floats
from weightctl.graph import TensorType

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

__all__ = ["EXAMPLES", "INFERRED", "REFUSED"]

RULE = "gated_delta_rule"


def _rule(query: Array, key: Array, value: Array, decay: Array, beta: Array) -> Array:
    """Return what position after position gives, in float64."""
    group = value.shape[2] // key.shape[2]
    query, key = (np.repeat(each, group, 2).astype(np.float64) for each in (query, key))
    decay = decay.reshape((*value.shape[:3], -1))[..., None]
    state = np.zeros((*value.shape[::2], key.shape[-1], value.shape[-1]))
    made = np.zeros(value.shape)
    for place in range(value.shape[1]):
        k, q = key[:, place, :, None], query[:, place, :, None]
        state = state * np.exp(decay[:, place])
        wrong = value[:, place, :, None] - k @ state
        state = state + beta[:, place, :, None, None] * k.swapaxes(-1, -2) @ wrong
        made[:, place] = (q @ state)[:, :, 0]
    return made


def _example(positions: int, *, by_element: bool = False) -> Example:
    batch, key_heads, heads, size, width = 2, 2, 4, 3, 5
    keys = (batch, positions, key_heads, size)
    shape = (batch, positions, heads)
    given = (
        floats(*keys),
        floats(*keys) * np.float32(0.5),
        floats(*shape, width),
        -np.abs(floats(*shape, size) if by_element else floats(*shape)),
        np.abs(np.tanh(floats(*shape))),
    )
    return Example(RULE, given, _rule(*given).astype(np.float32), {}, 2e-5)


# A chunk is 64 positions, or 16 with a decay for each element.
EXAMPLES = [
    _example(1),
    _example(150),
    _example(40, by_element=True),
    Example(RULE, (floats(1, 0, 1, 2),) * 3 + (floats(1, 0, 1),) * 2, floats(1, 0, 1, 2)),
]

QUERY, VALUE, NUMBERS = f32("b", "n", 2, 3), f32("b", "n", 4, 5), f32("b", "n", 4)
INFERRED = [
    Inferred(RULE, (QUERY, QUERY, VALUE, NUMBERS, NUMBERS), VALUE),
    Inferred(RULE, (QUERY, QUERY, VALUE, f32("b", "n", 4, 3), NUMBERS), VALUE),
]

REFUSED = [
    Refused(RULE, (NUMBERS, QUERY, VALUE, NUMBERS, NUMBERS), "must have four dimensions"),
    Refused(RULE, (QUERY, VALUE, VALUE, NUMBERS, NUMBERS), "query, key and value do not match"),
    Refused(
        RULE,
        (f32("b", "n", 3, 3), f32("b", "n", 3, 3), VALUE, NUMBERS, NUMBERS),
        "4 heads cannot be divided among 3 key heads",
    ),
    Refused(RULE, (QUERY, QUERY, VALUE, VALUE, NUMBERS), "decay and beta must be [b, n, 4]"),
    Refused(RULE, (QUERY, QUERY, VALUE, NUMBERS, VALUE), "decay and beta must be [b, n, 4]"),
    Refused(
        RULE,
        (QUERY, QUERY, TensorType(BF16, ("b", "n", 4, 5)), NUMBERS, NUMBERS),
        "float32 and bfloat16 cannot be combined",
    ),
]

"""What comes out of the recurrence of state space models, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from op_example import Example, Inferred, Refused
from op_values import f32, floats

Array = np.ndarray[Any, Any]


def _scanned(
    x: Array,
    steps: Array,
    rates: Array,
    read_in: Array,
    read_out: Array,
    before: Array | None = None,
) -> tuple[Array, Array]:
    batch, positions, heads, size = x.shape
    made = np.zeros_like(x)
    after = np.zeros((batch, heads, size, read_in.shape[3]), np.float32)
    after = after if before is None else before.copy()
    for text, head, channel in np.ndindex(batch, heads, size):
        group = head * read_in.shape[2] // heads
        states = after[text, head, channel].astype(np.float64)
        for place in range(positions):
            step = steps[text, place, head]
            added = step * x[text, place, head, channel] * read_in[text, place, group]
            states = states * np.exp(step * rates[head]) + added
            made[text, place, head, channel] = states @ read_out[text, place, group]
        after[text, head, channel] = states
    return made, after


# Four heads in two groups.
SCANNED = (
    floats(2, 3, 4, 2), np.abs(floats(2, 3, 4)), -np.abs(floats(4, 5)), floats(2, 3, 2, 5),
    floats(2, 3, 2, 5),
)  # fmt: skip
STATES = floats(2, 4, 2, 5)
EXAMPLES = [
    *(
        Example("selective_scan", inputs, _scanned(*inputs), {}, 1e-5)
        for inputs in (SCANNED, (*SCANNED[:2], SCANNED[2][:, :1], *SCANNED[3:]), (*SCANNED, STATES))
    ),
]
INFERRED = [
    Inferred(
        "selective_scan",
        (
            f32("batch", "seq", 4, 2),
            f32("batch", "seq", 4),
            f32(4, 1),
            f32("batch", "seq", 2, 5),
            f32("batch", "seq", 2, 5),
        ),
        (f32("batch", "seq", 4, 2), f32("batch", 4, 2, 5)),
    ),
]
REFUSED = [
    Refused(
        "selective_scan",
        (f32(2, 4), f32(2), f32(4, 1), f32(1, 2, 2, 5), f32(1, 2, 2, 5)),
        "must have four dimensions",
    ),
    *(
        Refused("selective_scan", (f32(1, 3, 4, 2), *others), says)
        for others, says in (
            ((f32(1, 3, 5), f32(4, 1), f32(1, 3, 2, 5), f32(1, 3, 2, 5)), "the steps must be"),
            ((f32(1, 3, 4), f32(4, 2), f32(1, 3, 2, 5), f32(1, 3, 2, 5)), "the rates must be"),
            ((f32(1, 3, 4), f32(4, 1), f32(1, 3, 2, 5), f32(1, 3, 1, 5)), "B and C must be equal"),
            ((f32(1, 3, 4), f32(4, 1), f32(1, 3, 3, 5), f32(1, 3, 3, 5)), "cannot be divided"),
            (
                (f32(1, 3, 4), f32(4, 1), f32(1, 3, 2, 5), f32(1, 3, 2, 5), f32(1, 4, 5, 2)),
                "states must be float32[1, 4, 2, 5], not float32[1, 4, 5, 2]",
            ),
        )
    ),
]

"""What comes out of the recurrence of state space models, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np

from op_example import Example, Inferred, Refused
from op_values import f32, floats

Array = np.ndarray[Any, Any]


def _scanned(x: Array, steps: Array, rates: Array, read_in: Array, read_out: Array) -> Array:
    batch, positions, heads, size = x.shape
    made = np.zeros_like(x)
    for text, head, channel in np.ndindex(batch, heads, size):
        group = head * read_in.shape[2] // heads
        states = np.zeros(read_in.shape[3])
        for place in range(positions):
            step = steps[text, place, head]
            added = step * x[text, place, head, channel] * read_in[text, place, group]
            states = states * np.exp(step * rates[head]) + added
            made[text, place, head, channel] = states @ read_out[text, place, group]
    return made


# Four heads in two groups.
SCANNED = (
    floats(2, 3, 4, 2), np.abs(floats(2, 3, 4)), -np.abs(floats(4, 5)), floats(2, 3, 2, 5),
    floats(2, 3, 2, 5),
)  # fmt: skip
EXAMPLES = [
    *(
        Example("selective_scan", inputs, _scanned(*inputs), {}, 1e-5)
        for inputs in (SCANNED, (*SCANNED[:2], SCANNED[2][:, :1], *SCANNED[3:]))
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
        f32("batch", "seq", 4, 2),
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
        )
    ),
]

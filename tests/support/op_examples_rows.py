"""What comes out of the operations on chosen rows, and what they refuse."""

from __future__ import annotations

import numpy as np

from op_example import Example, Inferred, Refused
from op_values import f32, floats, i64
from weightctl.shape import Dim

SHARES = np.array([[0, 1, 0.5], [0, 0, 0.25], [0, -2, 0]], np.float32)
NAMES = {"names": ("none", "some", "most")}
ROWS, NUMBERS = floats(4, 2), np.array([2, 0, 2, 2])
SUMS = np.stack([ROWS[1], 0 * ROWS[0], ROWS[0] + ROWS[2] + ROWS[3]])

EXAMPLES = [
    Example(
        "chosen_rows",
        (SHARES,),
        tuple(np.array(numbers, np.int64) for numbers in ([], [0, 2], [0, 1])),
        NAMES,
    ),
    Example("sum_rows", (ROWS, NUMBERS), SUMS, {"count": Dim(3)}, 1e-6),
    Example(
        "sum_rows",
        (ROWS[:1], NUMBERS[:1], ROWS[:0], NUMBERS[:0], ROWS[1:], NUMBERS[1:]),
        SUMS,
        {"count": Dim(3)},
        1e-6,
    ),
    Example("sum_rows", (ROWS[:0], NUMBERS[:0]), 0 * SUMS, {"count": Dim(3)}),
    Example(
        "sum_weighted_rows",
        (SHARES, ROWS[:1], NUMBERS[2:3], ROWS[:0], NUMBERS[:0]),
        np.stack([0 * ROWS[0], 0 * ROWS[0], -2 * ROWS[0]]),
        {"first": 1},
        1e-6,
    ),
    Example(
        "sum_weighted_rows",
        (SHARES[:1], ROWS[1:2], 0 * NUMBERS[:1], ROWS[:1], 0 * NUMBERS[:1]),
        0.5 * ROWS[:1] + ROWS[1:2],
        {"first": 1},
        1e-6,
    ),
]
INFERRED = [
    Inferred("chosen_rows", (f32("n", 3),), (i64("none"), i64("some"), i64("most")), NAMES),
    Inferred("sum_rows", (f32("m", 2), i64("m")), f32("n", 2), {"count": Dim("n")}),
    Inferred("sum_weighted_rows", (f32("n", 3), f32("m", 2), i64("m")), f32("n", 2), {"first": 2}),
]
REFUSED = [
    Refused("chosen_rows", (i64("n", 3),), "needs a float dtype", NAMES),
    Refused("sum_rows", (f32("m", 2), i64("n")), "one number for each row", {"count": Dim(3)}),
    Refused("sum_rows", (f32("m", 2),), "rows and their numbers", {"count": Dim(3)}),
    Refused(
        "sum_rows",
        (f32("m", 2), i64("m"), f32("n", 3), i64("n")),
        "cannot be added to rows",
        {"count": Dim(3)},
    ),
    Refused("sum_rows", (f32("m", 2), f32("m")), "needs an integer dtype", {"count": Dim(3)}),
    Refused(
        "sum_weighted_rows",
        (f32("n", 3), f32("m", 2), i64("m")),
        "columns 3 to 3 are not among the 3 columns",
        {"first": 3},
    ),
    Refused("sum_weighted_rows", (f32(3), f32("m", 2), i64("m")), "fixed number", {"first": 0}),
]

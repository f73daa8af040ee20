"""How alike the states of two encoders are."""

from __future__ import annotations

import numpy as np

from weightctl.verify.checks.forward.divergence import find_least_cosine


def test_states_that_are_equal_have_a_cosine_of_one() -> None:
    states = np.zeros((2, 4), np.float32)
    assert find_least_cosine(states, states) == 1


def test_the_least_cosine_is_that_of_the_position_that_is_furthest_off() -> None:
    one = np.array([[1, 0], [1, 0]], np.float32)
    other = np.array([[2, 0], [0, 1]], np.float32)
    assert find_least_cosine(one, other) == 0

"""Predictions of two models: divergence by position, its distribution, and cosines of states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weightctl.verify.checks.forward.predictions import (
    Agreement,
    count_by_bound,
    find_least_cosine,
    summarize,
)

LOGITS = arrays.arrays(np.float32, (3, 7), elements=st.floats(-50, 50, width=32))


def _divergences(reference: object, logits: object) -> list[float]:
    agreement = Agreement()
    agreement.add(np.array(reference, np.float32), np.array(logits, np.float32))
    return agreement.divergences.tolist()


def test_the_divergence_of_two_coins_is_the_textbooks() -> None:
    even, uneven = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    expected = 0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1)
    assert _divergences(even, uneven) == pytest.approx([expected], rel=1e-6)


def test_equal_logits_do_not_diverge() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 100)) * 10
    assert _divergences(logits, logits) == [0.0] * 5


def test_what_is_added_to_all_logits_changes_nothing() -> None:
    logits = np.random.default_rng(1).standard_normal((5, 100))
    assert max(_divergences(logits, logits + 3)) < 1e-10


def test_a_token_that_one_rules_out_alone_diverges_without_end() -> None:
    assert _divergences([[0, 0]], [[0, -np.inf]]) == [np.inf]


def test_a_token_that_both_rule_out_does_not_count() -> None:
    assert _divergences([[0, 1, -np.inf]], [[0, 1, -np.inf]]) == [0.0]


def test_a_token_that_the_reference_alone_rules_out_does_not_count() -> None:
    assert _divergences([[0, -np.inf]], [[0, -50]]) == pytest.approx([0.0], abs=1e-12)


def test_what_is_not_a_number_diverges_without_end() -> None:
    assert _divergences([[0, 1]], [[np.nan, 1]]) == [np.inf]


@given(LOGITS, LOGITS)
def test_no_divergence_is_below_zero(reference: object, logits: object) -> None:
    assert min(_divergences(reference, logits)) >= 0


def test_positions_agree_where_the_same_token_is_the_likeliest() -> None:
    agreement = Agreement()
    agreement.add(np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)[[0, 1, 1]])
    assert agreement.agreed == 2


def test_a_spread_has_the_mean_the_percentile_and_the_greatest() -> None:
    found = summarize(np.arange(101.0))
    figures = (found.mean, found.percentile_99, found.greatest)
    assert figures == pytest.approx((50, 99, 100))


def test_a_spread_of_nothing_has_no_figures() -> None:
    found = summarize(np.empty(0))
    assert (found.mean, found.percentile_99, found.greatest) == (None, None, None)


def test_an_infinite_divergence_makes_the_mean_infinite_and_nothing_nan() -> None:
    found = summarize(np.array([0.0, np.inf]))
    assert (found.mean, found.percentile_99, found.greatest) == (np.inf, np.inf, np.inf)


def test_a_histogram_counts_every_position_once() -> None:
    numbers = np.array([0, 1e-9, 0.05, 3, 1e9, np.inf])
    assert sum(count for _, count in count_by_bound(numbers)) == len(numbers)


def test_a_number_on_a_bound_is_counted_above_it() -> None:
    assert count_by_bound(np.array([1.0, 0.5]), [1, 2]) == ((1, 1), (2, 1))


def test_states_that_are_equal_have_a_cosine_of_one() -> None:
    states = np.zeros((2, 4), np.float32)
    assert find_least_cosine(states, states) == 1


def test_the_least_cosine_is_that_of_the_position_that_is_furthest_off() -> None:
    one = np.array([[1, 0], [1, 0]], np.float32)
    other = np.array([[2, 0], [0, 1]], np.float32)
    assert find_least_cosine(one, other) == 0

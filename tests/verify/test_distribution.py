"""How the divergences of many positions are told in a few numbers."""

from __future__ import annotations

import numpy as np
import pytest

from weightctl.verify.checks.forward.divergence import count_by_bound, summarize


def test_a_spread_has_the_mean_the_percentile_and_the_greatest() -> None:
    found = summarize(np.arange(101.0))
    assert found is not None
    assert found == pytest.approx((50, 99, 100))


def test_a_spread_of_nothing_is_none() -> None:
    assert summarize(np.empty(0)) is None


def test_an_infinite_divergence_makes_the_mean_infinite_and_nothing_nan() -> None:
    found = summarize(np.array([0.0, np.inf]))
    assert found is not None
    assert not np.isnan(found).any()
    assert np.isinf(found.mean)


def test_a_histogram_counts_every_position_once() -> None:
    numbers = np.array([0, 1e-9, 0.05, 3, 1e9, np.inf])
    assert sum(count for _, count in count_by_bound(numbers)) == len(numbers)


def test_a_number_on_a_bound_is_counted_above_it() -> None:
    assert count_by_bound(np.array([1.0, 0.5]), [1, 2]) == ((1, 1), (2, 1))

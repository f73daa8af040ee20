"""Kullback-Leibler divergence by position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from weightctl.verify.checks.forward.divergence import Agreement

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

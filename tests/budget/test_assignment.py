"""The choice of types within a size: the optimum where sizes are few, and never above the limit."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from weightctl.budget.assignment import TypeChoice, choose_types, sum_bytes


def make_groups(seed: int, count: int, unit: int = 1) -> list[list[TypeChoice]]:
    """Return groups of choices in which a larger type costs less."""
    drawn = np.random.default_rng(seed)
    groups: list[list[TypeChoice]] = []
    for _ in range(count):
        size, sensitivity = int(drawn.integers(1, 9)) * unit, float(drawn.lognormal(sigma=2))
        groups.append(
            [TypeChoice(f"{bits}", size * bits, sensitivity * 4.0**-bits) for bits in (2, 3, 4, 6)]
        )
    return groups


def cost(groups: list[list[TypeChoice]], chosen: list[int]) -> float:
    return sum(group[at].cost for group, at in zip(groups, chosen, strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_few_sizes_give_the_optimum(seed: int) -> None:
    groups = make_groups(seed, 6)
    every = [list(each) for each in product(range(4), repeat=6)]
    for bits in (2.5, 3.5, 5.0):
        limit = int(bits * sum(group[0].nbytes for group in groups) / 2)
        least = min(cost(groups, each) for each in every if sum_bytes(groups, each) <= limit)
        chosen = choose_types(groups, limit)
        assert chosen is not None
        assert sum_bytes(groups, chosen) <= limit
        assert cost(groups, chosen) == pytest.approx(least)


def test_many_sizes_use_the_limit_up_to_a_half_percent() -> None:
    groups = make_groups(5, 300, unit=1_000_003)
    limit = int(3.7 * sum(group[0].nbytes for group in groups) / 2)
    chosen = choose_types(groups, limit)
    assert chosen is not None
    assert 0.995 * limit <= sum_bytes(groups, chosen) <= limit


def test_no_choices_are_made_if_the_smallest_do_not_fit() -> None:
    groups = make_groups(6, 3)
    least = sum(group[0].nbytes for group in groups)
    assert choose_types(groups, least - 1) is None
    assert choose_types(groups, least) == [0, 0, 0]


def test_the_cheapest_choices_are_made_if_they_fit() -> None:
    groups = make_groups(7, 3)
    assert choose_types(groups, 1000) == [3, 3, 3]

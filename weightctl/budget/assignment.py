"""Choice of one type for each group of tensors, so that the cost is least within a size."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

# The largest number of sizes between the smallest one and the limit that are told apart.
_CELLS = 1 << 15


class TypeChoice(NamedTuple):
    """One type that a group of tensors can have: its name, its bytes, and what it costs."""

    type: str
    nbytes: int
    cost: float


def choose_types(groups: Sequence[Sequence[TypeChoice]], limit: int) -> list[int] | None:
    """Return the number of the choice for each group; None if no choices fit into `limit` bytes.

    This is a multiple-choice knapsack problem. It is solved by dynamic programming over sizes,
    which are multiples of a unit: the exact optimum if there are few sizes, else sizes are rounded
    up. The bytes that rounding leaves are then spent: a group takes another choice, or two groups
    exchange bytes, as long as the cost falls. Equal cases are decided by order.
    """
    least = [min(each.nbytes for each in group) for group in groups]
    room = limit - sum(least)
    if room < 0:
        return None
    cheapest = [*map(find_cheapest, groups)]
    if sum_bytes(groups, cheapest) <= limit:
        return cheapest
    chosen = _solve(groups, least, room)
    while _improve_one(groups, chosen, limit) or _improve_two(groups, chosen, limit):
        pass
    return chosen


def sum_bytes(groups: Sequence[Sequence[TypeChoice]], chosen: Sequence[int]) -> int:
    """Return the bytes of the choices with these numbers."""
    return sum(group[at].nbytes for group, at in zip(groups, chosen, strict=True))


def find_cheapest(group: Sequence[TypeChoice]) -> int:
    """Return the number of the choice with the least cost; the smallest of several."""
    return min(range(len(group)), key=lambda at: (group[at].cost, group[at].nbytes))


def _solve(groups: Sequence[Sequence[TypeChoice]], least: Sequence[int], room: int) -> list[int]:
    """Return the choices with the least cost that use at most `room` bytes above the smallest."""
    extras = [
        [each.nbytes - low for each in group] for group, low in zip(groups, least, strict=True)
    ]
    unit = max(1, gcd(*(extra for group in extras for extra in group)), -(-room // _CELLS))
    cells = room // unit
    # The least cost with at most so many units, and the choice of each group for it.
    best = np.zeros(cells + 1)
    taken = np.zeros((len(groups), cells + 1), np.uint8)
    for number, group in enumerate(groups):
        made = np.full(cells + 1, np.inf)
        for _, at in sorted((each.nbytes, at) for at, each in enumerate(group)):
            units = -(-extras[number][at] // unit)
            if units > cells:
                continue
            costs = best[: cells + 1 - units] + group[at].cost
            is_less = costs < made[units:]
            made[units:][is_less] = costs[is_less]
            taken[number, units:][is_less] = at
        best = made
    chosen: list[int] = []
    left = cells
    for number in reversed(range(len(groups))):
        at = int(taken[number, left])
        chosen.append(at)
        left -= -(-extras[number][at] // unit)
    return chosen[::-1]


def _improve_one(groups: Sequence[Sequence[TypeChoice]], chosen: list[int], limit: int) -> bool:
    """Make the change of one group that lowers the cost most for each byte; False if none does."""
    room = limit - sum_bytes(groups, chosen)
    best: tuple[float, int, int] | None = None
    for number, group in enumerate(groups):
        now = group[chosen[number]]
        for at, each in enumerate(group):
            gain, more = now.cost - each.cost, each.nbytes - now.nbytes
            rate = gain / max(more, 1)
            if gain > 0 and more <= room and (best is None or rate > best[0]):
                best = (rate, number, at)
    if best is None:
        return False
    chosen[best[1]] = best[2]
    return True


class _Move(NamedTuple):
    """Another choice for a group: how much the cost falls, and how many bytes are added."""

    group: int
    choice: int
    gain: float
    more: int


def _improve_two(groups: Sequence[Sequence[TypeChoice]], chosen: list[int], limit: int) -> bool:
    """Change two groups at once if the cost falls most that way; False if no pair lowers it."""
    room = limit - sum_bytes(groups, chosen)
    moves = [
        _Move(number, at, now.cost - each.cost, each.nbytes - now.nbytes)
        for number, (group, now) in enumerate(
            (group, group[at]) for group, at in zip(groups, chosen, strict=True)
        )
        for at, each in enumerate(group)
        if at != chosen[number]
    ]
    gains = sorted((move for move in moves if move.gain > 0), key=lambda move: -move.gain)
    losses = sorted((move for move in moves if move.more < 0), key=lambda move: -move.gain)
    best: tuple[float, _Move, _Move] | None = None
    for one in gains:
        for other in losses:
            total = one.gain + other.gain
            if total <= (best[0] if best else 0.0):
                break  # further moves lose more
            if other.group != one.group and one.more + other.more <= room:
                best = (total, one, other)
                break
    if best is None:
        return False
    for move in best[1:]:
        chosen[move.group] = move.choice
    return True

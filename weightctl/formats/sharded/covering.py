"""Checks that shards cover a whole tensor, and joining of the parts of one rank."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.split import Cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.split import Part, Range

# The limit of steps for each range of a part. No plan comes near it, but a file can require any
# number of steps.
_MOST_STEPS = 64


def first_gap(shape: Sequence[int], parts: Iterable[Part]) -> tuple[int, ...] | None:
    """Return the first element of a tensor that no part has; None if there is no gap.

    Raises `ValueError` if the parts are too many and too irregular.
    """
    if not prod(shape):
        return None
    different = list(dict.fromkeys(parts))
    if () in different:
        return None
    ranges: list[dict[int, tuple[Range, ...]]] = [dict(part) for part in different]
    axes = sorted({axis for each in ranges for axis in each})
    gap = _Search(shape, ranges, axes).gap(0, tuple(range(len(ranges))))
    if gap is None:
        return None
    found = dict(zip(axes, gap, strict=False))
    return tuple(found.get(axis, 0) for axis in range(len(shape)))


class _Search:
    """A recursive search for gaps along the split axes."""

    def __init__(
        self,
        shape: Sequence[int],
        parts: Sequence[dict[int, tuple[Range, ...]]],
        axes: Sequence[int],
    ) -> None:
        self._shape = shape
        self._parts = parts
        self._axes = axes
        self._known: dict[tuple[int, tuple[int, ...]], tuple[int, ...] | None] = {}
        ranges = sum(len(each) for part in parts for each in part.values())
        self._left = _MOST_STEPS * (ranges + 1)

    def gap(self, place: int, active: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the indices of a gap along the remaining axes; None if there is no gap.

        `place` is the number of axes that are done, and `active` are the parts that remain.
        """
        if not active:
            return (0,) * (len(self._axes) - place)
        if place == len(self._axes):
            return None
        key = (place, active)
        if key not in self._known:
            self._known[key] = self._gap(place, active)
        return self._known[key]

    def _gap(self, place: int, active: tuple[int, ...]) -> tuple[int, ...] | None:
        axis = self._axes[place]
        whole = ((0, self._shape[axis]),)
        events: list[tuple[int, bool, int]] = []
        for part in active:
            for start, stop in self._parts[part].get(axis, whole):
                events += ((start, True, part), (stop, False, part))
        events.sort()
        there: set[int] = set()
        at = passed = 0
        while at < self._shape[axis]:
            # Parts that end here are removed before others begin.
            while passed < len(events) and events[passed][0] <= at:
                _, begins, part = events[passed]
                there.add(part) if begins else there.discard(part)
                passed += 1
            self._left -= 1 + len(there)
            if self._left < 0:
                raise ValueError(
                    "its shards have too many or too irregular ranges; no sharding produces them"
                )
            inner = self.gap(place + 1, tuple(sorted(there)))
            if inner is not None:
                return (at, *inner)
            at = events[passed][0] if passed < len(events) else self._shape[axis]
        return None


def join_parts(parts: Sequence[Part]) -> Part | None:
    """Return one part that consists of several parts; None if that is not possible.

    The parts can differ in one axis, and must not overlap there.
    """
    first, *others = parts
    axes = [cut.axis for cut in first]
    if not others:
        return first
    if any([cut.axis for cut in part] != axes for part in others):
        return None
    columns = list(zip(*parts, strict=True))
    different = [place for place, cuts in enumerate(columns) if len(set(cuts)) > 1]
    if len(different) != 1:
        return None
    (place,) = different
    ranges = sorted(each for cut in columns[place] for each in cut.ranges)
    made: list[Range] = []
    for start, stop in ranges:
        if made and start < made[-1][1]:
            return None
        if made and start == made[-1][1]:
            made[-1] = (made[-1][0], stop)
        else:
            made.append((start, stop))
    return (*first[:place], Cut(axes[place], tuple(made)), *first[place + 1 :])

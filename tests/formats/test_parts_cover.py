"""Whether the parts of a tensor cover all of it."""

from __future__ import annotations

from itertools import product

import pytest

from weightctl.formats.sharded.manifest_json import first_gap, join_parts
from weightctl.split import Cut


def test_what_parts_do_not_cover_is_found_in_any_number_of_axes() -> None:
    def part(*ranges: tuple[int, int]) -> tuple[Cut, ...]:
        return tuple(Cut(axis, (each,)) for axis, each in enumerate(ranges))

    halves = [(0, 2), (2, 4)]
    cubes = [part(*each) for each in product(halves, repeat=3)]
    assert first_gap((4, 4, 4), cubes) is None
    assert first_gap((4, 4, 4), cubes[:-1]) == (2, 2, 2)
    assert first_gap((4, 4, 4), cubes[1:]) == (0, 0, 0)
    assert first_gap((4, 4, 4), [*cubes[1:], ()]) is None
    assert first_gap((4, 4), [part((0, 3)), part((1, 4), (0, 3)), part((3, 4), (2, 4))]) is None
    assert first_gap((4, 0), []) is None


def test_parts_that_are_entangled_are_refused_before_they_take_long() -> None:
    # Each part has different bounds along every axis.
    parts = [
        tuple(Cut(axis, ((number, 4000 - number),)) for axis in range(3)) for number in range(1000)
    ]
    with pytest.raises(
        ValueError,
        match="its shards have too many or too irregular ranges; no sharding produces them",
    ):
        first_gap((4000, 4000, 4000), parts)


def test_pieces_that_differ_in_one_axis_are_one_part() -> None:
    first, second = (Cut(0, ((0, 1),)), Cut(1, ((2, 3),))), (Cut(0, ((0, 1),)), Cut(1, ((0, 1),)))
    assert join_parts([first, second]) == (Cut(0, ((0, 1),)), Cut(1, ((0, 1), (2, 3))))
    assert join_parts([(Cut(0, ((0, 1),)),), (Cut(0, ((1, 2),)),)]) == (Cut(0, ((0, 2),)),)
    assert join_parts([first, (Cut(0, ((0, 1),)),)]) is None
    assert join_parts([first, (Cut(0, ((1, 2),)), Cut(1, ((3, 4),)))]) is None
    assert join_parts([first, first]) is None

from __future__ import annotations

from itertools import count, islice
from threading import Event
from typing import TYPE_CHECKING

import pytest

from weightctl.system.threads import map_in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator


def squared(number: int, _: Event) -> int:
    return number * number


def test_what_is_made_comes_in_the_order_of_the_items() -> None:
    with map_in_threads(squared, range(1000), threads=3) as made:
        assert list(made) == [number * number for number in range(1000)]


def test_nothing_is_made_of_nothing() -> None:
    with map_in_threads(squared, [], threads=3) as made:
        assert list(made) == []


def test_items_are_taken_as_the_work_goes_on() -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in count():
            taken.append(number)
            yield number

    with map_in_threads(squared, items(), threads=2) as made:
        assert list(islice(made, 10)) == [number * number for number in range(10)]
        assert 10 <= len(taken) < 1000


def test_what_runs_learns_that_nobody_waits_for_it() -> None:
    begun, ended = Event(), Event()

    def wait(number: int, is_over: Event) -> int:
        if number:
            begun.set()
            if is_over.wait(60):
                ended.set()
        else:
            assert begun.wait(60)
        return number

    with map_in_threads(wait, range(2), threads=2) as made:
        assert next(made) == 0
    assert ended.is_set()


def test_an_error_is_raised_where_its_outcome_is_taken() -> None:
    def make(number: int, _: Event) -> int:
        if number == 2:
            raise ValueError("two")
        return number

    with map_in_threads(make, range(1000), threads=2) as made:
        assert [next(made), next(made)] == [0, 1]
        with pytest.raises(ValueError, match="two"):
            next(made)

from __future__ import annotations

from itertools import count, islice
from threading import Event, active_count
from time import sleep
from typing import TYPE_CHECKING

import pytest

from weightctl.system.threads import map_in_threads
from weightctl.write.threads import run_in_order

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


@pytest.mark.parametrize("results", [1, 4])
def test_a_thread_makes_as_many_results_as_it_has_room_for_before_one_is_taken(
    results: int,
) -> None:
    made: list[int] = []
    is_full = Event()

    def make(item: int) -> Iterator[int]:
        for number in range(item, item + 8):
            made.append(number)
            if len(made) == results:
                is_full.set()
            yield number

    taken = run_in_order(make, [0, 8], threads=1, results=results)
    assert next(taken) == 0
    assert is_full.wait(60)
    # Another one would be started at once if there were room for it.
    sleep(0.05)
    assert made == list(range(results))
    assert [0, *taken] == list(range(16))


def test_results_that_nobody_takes_hold_no_thread() -> None:
    before = active_count()
    taken = run_in_order(lambda item: range(item, item + 9), range(9), threads=3, results=4)
    assert next(taken) == 0
    taken.close()
    assert active_count() == before

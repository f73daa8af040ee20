"""How values of a config look in messages."""

from __future__ import annotations

import pytest

from weightctl.families.kinds import show_value, show_values_apart


@pytest.mark.parametrize(
    ("value", "look"),
    [
        ((True, False), "a list of 2 (`True, False`)"),
        (["a", 1, None], "a list of 3 (`'a', 1, None`)"),
        ([0] * 100, "a list of 100 (`0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, …`)"),
        ([[1]], "a list"),
        ([], "a list"),
        ({"a": 1}, "a dict"),
    ],
)
def test_a_list_shows_what_it_begins_with(value: object, look: str) -> None:
    assert show_value(value) == look


def test_lists_that_look_alike_are_told_apart_by_the_first_element_that_differs() -> None:
    one, other = [False] * 50, [False] * 50
    other[33] = True
    assert show_values_apart(one, other) == (
        "a list of 50 with element 33 = `False`",
        "a list with element 33 = `True`",
    )


def test_values_that_look_different_are_shown_as_they_are() -> None:
    assert show_values_apart([1], None) == ("a list of 1 (`1`)", "`None`")

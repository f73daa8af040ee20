from __future__ import annotations

from weightctl.text.wording import join_names, list_first, say_more

_LETTERS = ["a", "b", "c", "d"]


def test_names_beyond_the_first_are_counted() -> None:
    assert join_names(_LETTERS, 2) == "a, b and 2 more"


def test_names_that_all_fit_are_only_joined() -> None:
    assert join_names(_LETTERS, 4) == "a, b, c, d"


def test_names_are_joined_with_another_separator() -> None:
    assert join_names(_LETTERS, 3, " ") == "a b c and 1 more"


def test_lines_beyond_the_first_are_counted_in_a_line() -> None:
    assert list_first(_LETTERS, 3, "letters") == ["a", "b", "c", "... and 1 more letters"]


def test_lines_that_all_fit_stay() -> None:
    assert list_first(_LETTERS, 4) == _LETTERS


def test_nothing_is_reported_where_nothing_is_left() -> None:
    assert [say_more(0), say_more(-3, "files")] == ["", ""]

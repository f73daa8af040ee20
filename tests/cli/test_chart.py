"""Charts and wrapped sentences, for any numbers, text and width of a terminal."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weightctl.cli.chart import Bar, chart
from weightctl.cli.render import Cell
from weightctl.cli.wrapping import hung
from weightctl.text.columns import width, wrap_text
from weightctl.text.wording import printable

NUMBERS = st.floats() | st.floats(0, 10)


def drawn(bars: list[Bar], room: int, *, plain: bool = False) -> list[str]:
    return ["".join(cell.text for cell in line) for line in chart(bars, room, plain=plain)]


def of(*values: float) -> list[Bar]:
    return [Bar(str(number), value) for number, value in enumerate(values)]


def heights(lines: list[str]) -> list[int]:
    """Return how many eighths each column of a chart has."""
    rows = [line.partition("│")[2] for line in lines if "│" in line]
    wide = max(map(len, rows))
    return [
        sum(" ▁▂▃▄▅▆▇█".index(row.ljust(wide)[column]) for row in rows) for column in range(wide)
    ]


@given(st.lists(NUMBERS, max_size=300), st.integers(30, 250), st.booleans())
@example([], 30, False)
@example([0.0], 30, True)
@example([math.nan, math.inf], 30, False)
@example([5e-324, 1.7e308], 30, False)
@example([5e-324], 30, False)
def test_a_chart_of_any_numbers_fits(values: list[float], room: int, plain: bool) -> None:
    lines = drawn(of(*values), room, plain=plain)
    assert all(width(line.rstrip()) <= room + 6 for line in lines)
    assert all(width(line.rstrip()) <= room for line in lines[:6])
    if plain:
        assert all(line.isascii() for line in lines)


@given(st.lists(st.floats(1e-6, 1e6), min_size=2, max_size=40))
def test_a_greater_number_has_no_lower_bar(values: list[float]) -> None:
    found = heights(drawn(of(*sorted(values)), 120))
    shown = [each for each in found if each]
    assert shown == sorted(shown)
    assert min(shown) >= 1
    assert max(shown) == 48


def test_numbers_that_are_alike_are_drawn_alike() -> None:
    assert set(heights(drawn(of(2.0, 2.0, 2.0), 80))) - {0} == {48}
    low, high = (found for found in sorted({*heights(drawn(of(1.0, 1.05), 80))}) if found)
    assert high - low <= 2


def test_nothing_at_all_has_no_bar() -> None:
    assert {*heights(drawn(of(0.0, 0.0), 80))} <= {0}


def test_a_bar_that_is_not_finite_is_not_a_bar() -> None:
    lines = drawn(of(1.0, math.nan), 80)
    assert lines[0].count("!") == lines[5].count("!") == 3


@pytest.mark.parametrize("count", [3, 30, 126, 500])
def test_labels_stand_below_their_bars(count: int) -> None:
    bars = [Bar("in", 1.0), *of(*[1.0] * count), Bar("out", 1.0)]
    labels = drawn(bars, 80)[-1].split()
    numbers = [int(label) for label in labels if label.isdecimal()]
    steps = {later - earlier for earlier, later in pairwise(numbers)}
    assert len(steps) == 1
    assert labels[0] == "in"
    assert width(drawn(bars, 80)[-1]) <= 80


def test_neighbors_that_share_a_column_show_the_highest_and_what_is_bad() -> None:
    bars = of(*[1.0] * 1000)
    bars[500] = Bar("500", 100.0, is_bad=True)
    lines = drawn(bars, 80)
    assert heights(lines).count(48) == 1
    assert lines[-2].count("▲") == 1


@given(st.text(), st.integers(1, 100))
@example("a" * 300, 7)
@example("\u4e2d\u6587" * 50, 2)
def test_wrapped_text_breaks_between_words_and_loses_nothing(text: str, room: int) -> None:
    text = printable(text)
    lines = wrap_text(text, room)
    assert " ".join(lines).split() == text.split()
    for line in lines:
        assert line
        assert width(line) <= room or " " not in line or re.search(r"\d? (%|nats|[kMGT]|B)", line)


@given(st.text(), st.integers(1, 100))
@example("a" * 300, 7)
@example("\u4e2d\u6587" * 50, 2)
def test_text_that_is_cut_fits_and_loses_nothing(text: str, room: int) -> None:
    text = printable(text)
    lines = wrap_text(text, room, cuts_words=True)
    assert all(line and width(line) <= max(room, 2) for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_a_line_of_wrapped_text_ends_where_the_next_word_does_not_fit() -> None:
    lines = wrap_text(
        "one sentence of several words /a/path/that/is/longer/than/a/line and more", 20
    )
    assert lines == [
        "one sentence of", "several words", "/a/path/that/is/longer/than/a/line", "and more",
    ]  # fmt: skip


@given(st.text(max_size=60), st.text(), st.integers(20, 200))
def test_a_text_hangs_behind_its_head_within_the_terminal(head: str, text: str, room: int) -> None:
    head = printable(head)
    lines = hung([Cell(head)], text, room)
    for line in lines[1:]:
        assert width("".join(cell.text for cell in line)) <= max(room, 20 + 64)
    whole = "".join(cell.text for line in hung([Cell(head)], text, None) for cell in line)
    assert whole == head + printable(text)

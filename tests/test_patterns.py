"""The meaning of patterns that users give."""

from __future__ import annotations

import pytest

from weightctl.errors import ConversionError, WeightctlError
from weightctl.text.patterns import regular_expression, select_names

LAYERS = [f"layers.{number}.w" for number in range(130)]


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("layers.*", range(130)),
        ("layers.?.w", range(10)),
        ("*.[1-3].w", [1, 2, 3]),
        ("*.1[1-3].w", [11, 12, 13]),
        ("*.[10].w", [0, 1]),
        ("*.[0-2,4].w", [0, 1, 2, 4]),
        ("*.[0-27].w", range(28)),
        ("*[8-12].w", range(8, 13)),
        ("*.[0-2,12,100-102].*", [0, 1, 2, 12, 100, 101, 102]),
        ("layers.1", []),
        ("Layers.1.w", []),
        ("*.[27-20].w", []),
    ],
)
def test_a_pattern_is_a_glob_with_the_numbers_of_listings(pattern: str, layers: list[int]) -> None:
    assert select_names(LAYERS, [pattern]) == [f"layers.{number}.w" for number in layers]


def test_what_is_excluded_stays_out_whatever_includes_it() -> None:
    assert select_names(["a", "b", "c"], ["a", "b"], ["b", "c"]) == ["a"]
    assert select_names(["a", "b", "c"], (), ["b"]) == ["a", "c"]
    assert select_names(["a", "b", "c"]) == ["a", "b", "c"]


def test_names_with_brackets_and_line_ends_can_be_matched() -> None:
    assert select_names(["x[1].b", "x1.b", "a\nb"], ["x[[]1].b"]) == ["x[1].b"]
    assert select_names(["a\nb", "a"], ["a*"]) == ["a\nb", "a"]


def test_too_many_numbers_are_refused() -> None:
    with pytest.raises(WeightctlError, match="too many numbers"):
        select_names(["a"], ["*.[0-999999999].*"])


@pytest.mark.parametrize("text", ["(", "a{99999999999999999999}", "(" * 6000 + ")" * 6000])
def test_what_is_not_a_regular_expression_is_refused(text: str) -> None:
    with pytest.raises(ConversionError, match="is not a valid regular expression") as caught:
        regular_expression(text)
    assert len(caught.value.message) < 200
    assert len(caught.value.message.split("`")[1]) <= 80


def test_what_python_may_read_otherwise_one_day_is_a_regular_expression() -> None:
    assert regular_expression("[[a]ttn").search("blk.0.attn_v")

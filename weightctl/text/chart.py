"""Draws a bar chart for terminals with block characters, in steps of an eighth of a cell."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NamedTuple

from weightctl.text.columns import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

_ROWS = 6
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PLAIN = "  ..::###"
_DRAWN = "▁█▲│"
_WIDEST = 4
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)


class Bar(NamedTuple):
    """A value with its label; `is_bad` marks a value that is a problem.

    A value that is not finite is drawn as exclamation marks, and a value of 0 has no bar.
    """

    label: str
    value: float
    is_bad: bool = False


def chart(bars: Sequence[Bar], room: int, *, plain: bool = False) -> list[list[Cell]]:
    """Return the lines of a logarithmic chart: bars side by side, with labels below.

    If there are more bars than columns in `room`, neighbors share one bar, which has the highest of
    their values. If `plain` is set, the chart is in ASCII.
    """
    high, low = _bounds([bar.value for bar in bars])
    has_axis = any(math.isfinite(bar.value) and bar.value > 0 for bar in bars)
    names = (f"{math.exp(high):.3g}", f"{math.exp(low):.3g}") if has_axis else ("", "")
    margin = max(map(len, names)) + 2
    share = max(math.ceil(len(bars) / max(room - margin - 1, 1)), 1)
    groups = [bars[start : start + share] for start in range(0, len(bars), share)]
    shown = [_tallest(group) for group in groups]
    wide = min(max((room - margin - 1) // max(len(shown), 1), 1), _WIDEST)
    heights = [_eighths(bar.value, low, high) for bar in shown]
    axis = "|" if plain else "│"
    lines: list[list[Cell]] = []
    for row in reversed(range(_ROWS)):
        name = {_ROWS - 1: names[0], 0: names[1]}.get(row, "")
        cells = [Cell(f"{name:>{margin - 1}} {axis}", "dim")]
        cells += [
            _cell(bar, height - 8 * row, wide, plain=plain)
            for bar, height in zip(shown, heights, strict=True)
        ]
        lines.append(cells)
    if any(bar.is_bad for bar in shown):
        mark = ("^" if plain else "▲") * max(wide - 1, 1)
        marks = "".join((mark if bar.is_bad else "").ljust(wide) for bar in shown)
        lines.append([Cell(" " * (margin + 1)), Cell(marks, "red")])
    lines.append([Cell(" " * (margin + 1) + _labels(groups, wide), "dim")])
    return lines


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the logarithms of the highest and lowest value, at least a factor of 10 apart."""
    known = [math.log(value) for value in values if math.isfinite(value) and value > 0]
    high = max(known, default=0.0)
    return high, min([*known, high - math.log(10)])


def _eighths(value: float, low: float, high: float) -> int:
    """Return the height of a bar in eighths of a row; -1 if the value is not finite.

    The lowest value has the height 1, and the highest fills all rows.
    """
    if not math.isfinite(value):
        return -1
    if value <= 0:
        return 0
    return 1 + round((8 * _ROWS - 1) * (math.log(value) - low) / (high - low))


def _tallest(bars: Sequence[Bar]) -> Bar:
    highest = max(bars, key=lambda bar: (not math.isfinite(bar.value), bar.value))
    is_bad = any(bar.is_bad for bar in bars)
    return Bar(bars[0].label, highest.value, is_bad)


def _cell(bar: Bar, eighths: int, wide: int, *, plain: bool) -> Cell:
    style = "red" if bar.is_bad else "cyan"
    if not math.isfinite(bar.value):
        return Cell(_repeat_sign("!", wide), "red")
    signs = _PLAIN if plain else _EIGHTHS
    return Cell(_repeat_sign(signs[min(max(eighths, 0), 8)], wide), style)


def _repeat_sign(sign: str, wide: int) -> str:
    return sign * wide if wide < 3 else sign * (wide - 1) + " "


def _labels(groups: Sequence[Sequence[Bar]], wide: int) -> str:
    """Return the line of labels: numbers at regular steps, and words where there is room."""
    numbers = [len(bar.label) for group in groups for bar in group if bar.label.isdecimal()]
    room = (max(numbers, default=1) + 2) * len(groups[0]) if groups else 1
    step = next((step for step in _STEPS if step * wide >= room), _STEPS[-1])
    line = ""
    for place, group in enumerate(groups):
        text = next((bar.label for bar in group if _is_labeled(bar.label, step)), None)
        if text is not None and (not line or place * wide > len(line)):
            line = line.ljust(place * wide) + text
    return line


def _is_labeled(label: str, step: int) -> bool:
    return not label.isdecimal() or int(label) % step == 0


def draw_counts(counts: Sequence[int], *, plain: bool = False) -> str:
    """Return bars of one cell each, as high as the counts; a count that is not 0 has a bar.

    If `plain` is set, the bars are in ASCII.
    """
    signs, most = _PLAIN if plain else _EIGHTHS, max(counts, default=0)
    heights = [math.ceil(8 * count / most) if most else 0 for count in counts]
    if plain:
        return "".join("." if 0 < height < 3 else signs[height] for height in heights)
    return "".join(signs[height] for height in heights)


def can_draw() -> bool:
    """Whether the encoding of stdout has the characters of charts."""
    try:
        _DRAWN.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True

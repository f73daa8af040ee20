"""Makes pages, and elements of HTML and SVG, in which text from files is always escaped.

A page loads no resources, and runs only its own script.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import ceil, floor, isfinite, isnan, log10
from typing import TYPE_CHECKING

from weightctl.text.wording import number, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


# With this policy, a browser does not load resources, whatever the page contains.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
# Characters that look like a hyphen and a letter, so they are written as escapes.
DASH, TIMES = "\u2013", "\u00d7"
# Tables with more rows have a field that searches them.
_MOST_UNSEARCHED = 20
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Markup(str):
    """Text that is already markup; a plain `str` is escaped when it is put in an element."""

    __slots__ = ()


def element(tag: str, *children: str, **attributes: str | float | None) -> Markup:
    """Return an element with its children and attributes.

    In the names of attributes, a final underscore is removed, and other underscores become hyphens.
    Attributes with the value None are left out. Numbers are written with up to two decimals.
    """
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_show_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if not children and tag in {"rect", "line", "path", "circle", "meta", "input"}:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{join(children)}</{tag}>")


def join(children: Sequence[str]) -> Markup:
    """Concatenate elements and texts; texts are escaped."""
    return Markup("".join(map(_escape_child, children)))


def mark_code(text: str) -> Markup:
    """Return a text as markup, with text between backticks as code, and with line breaks."""
    lines = [_mark_code_in_line(line) for line in text.split("\n")]
    return Markup("<br/>".join(line for line in lines if line))


def _mark_code_in_line(line: str) -> Markup:
    pieces = line.split("`")
    if len(pieces) % 2 == 0:
        return join([line])
    return join(
        [element("code", piece) if place % 2 else piece for place, piece in enumerate(pieces)]
    )


def show_decimal(value: float) -> str:
    """Return a finite number with up to two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") if value % 1 else f"{value:.0f}"


def _show_attribute(value: str | float) -> str:
    return _escape_child(value) if isinstance(value, str) else show_decimal(value)


def _escape_child(text: str) -> str:
    return text if isinstance(text, Markup) else escape(printable(text))


def render_document(title: str, main: Markup) -> str:
    """Return a page with its style, and with the script that sorts and searches tables.

    A browser runs no other script on the page.
    """
    script = read_asset("table.js")
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = f"{_POLICY}; script-src 'sha256-{digest}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        # In the style, the class of problems comes last, so that its color overrides others.
        element("style", Markup(read_asset("style.css"))),
    )
    page = element(
        "html", head, element("body", main, element("script", Markup(script))), lang="en"
    )
    return f"<!DOCTYPE html>\n{page}\n"


def make_searchable(table: Markup, rows: int) -> Markup:
    """Return a table in a container; a table of many rows has a field that searches them."""
    field = element(
        "input", type="search", placeholder=f"search {rows:,} rows", aria_label="search rows"
    )
    fields = [field] if rows > _MOST_UNSEARCHED else []
    return element("div", *fields, element("div", table, class_="scroll", tabindex="0"))


def read_asset(name: str) -> str:
    """Return the style or a script of pages, a file of this package, without line breaks."""
    return files("weightctl.text.page").joinpath(name).read_text("utf-8").replace("\n", "")


# Short texts for figures and names.


def show_tick(value: float) -> str:
    """Return a short label for an axis: `0.02`, `3.2·10⁻⁵`."""
    if value == 0 or not isfinite(value) or 1e-4 < abs(value) < 1e5:
        return number(value + 0.0, 2) if isfinite(value) else number(value)
    digits, _, power = f"{value:.1e}".partition("e")
    raised = str(int(power)).translate(_RAISED)
    digits = digits.removesuffix(".0")
    return f"10{raised}" if digits == "1" else f"{digits}·10{raised}"


def show_times(value: float) -> str:
    """Return a factor with a multiplication sign."""
    return f"{number(value, 2)} {TIMES}"


def shorten(text: str, length: int) -> str:
    """Return a printable text of at most `length` characters, with an ellipsis in its middle."""
    text = printable(text)
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


# Pictures.

# The usual size of a picture in its own units; on a narrower page, it can be scrolled.
WIDTH, HEIGHT = 960.0, 260.0
# The smallest and the largest value on an axis, and the largest number of decades. Values outside
# the axis are drawn at its end.
_LEAST, _GREATEST, _DECADES = 1e-30, 1e30, 10


def draw_picture(
    title: str, parts: list[Markup], height: float = HEIGHT, width: float = WIDTH
) -> Markup:
    """Return an SVG picture with an accessible title, in a container that scrolls."""
    drawn = element(
        "svg", *parts, viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", aria_label=title,
        style=f"min-width:{0.72 * width:.0f}px",
    )  # fmt: skip
    return element("div", drawn, class_="scroll", tabindex="0")


def draw_label(
    text: str, x: float, y: float, *, anchor: str = "middle", class_: str = "tick"
) -> Markup:
    """Return a text with its baseline at `y`; `anchor` is `start`, `middle` or `end`."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def draw_line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def draw_legend(entries: list[tuple[str, str]], x: float, y: float) -> Markup:
    """Return a legend in one row; each entry has the CSS class of a color, and a text."""
    parts: list[Markup] = []
    for class_, words in entries:
        parts += [
            element("rect", x=x, y=y - 9, width=11, height=11, rx=2, class_=class_),
            draw_label(words, x + 16, y, anchor="start"),
        ]
        x += 32 + 6.6 * len(words)
    return element("g", *parts)


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis between two exponents of 10, drawn from `start` to `end`."""

    low: float
    high: float
    start: float = 0.0
    end: float = 1.0

    def at(self, value: float) -> float:
        """Return the position of a value; values outside the axis are placed at its end."""
        if isnan(value):  # placed like infinity
            return self.end
        exponent = log10(min(max(value, _LEAST), _GREATEST))
        share = (min(max(exponent, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return the values to label, between three and eight."""
        decades = range(ceil(self.low - 1e-9), floor(self.high + 1e-9) + 1)
        if len(decades) > 3:
            return [10.0**power for power in decades[:: ceil(len(decades) / 7)]]
        lowest, highest = floor(self.low), ceil(self.high)
        steps = [digit * 10.0**power for power in range(lowest, highest + 1) for digit in (1, 2, 5)]
        return [step for step in steps if self.low - 1e-9 <= log10(step) <= self.high + 1e-9]


def make_axis(
    values: Iterable[float], start: float = 0.0, end: float = 1.0, decades: float = 1.0
) -> Axis:
    """Return an axis for the positive finite values, which spans at least `decades` decades.

    If the values span more than ten decades, the axis covers the largest ones.
    """
    found = [
        log10(min(max(value, _LEAST), _GREATEST))
        for value in values
        if isfinite(value) and value > 0
    ]
    high = max(found, default=0.0)
    low = max(min(found, default=-1.0), high - _DECADES)
    low, high = _round_down(low), _round_up(high)
    if high - low < decades - 1e-9:
        low = _round_down(high - decades)
    return Axis(low, high, start, end)


def _round_down(exponent: float) -> float:
    """Round the logarithm of a value down to that of 1, 2 or 5 times a power of ten."""
    return max(step for step in _list_steps(exponent) if step <= exponent + 1e-9)


def _round_up(exponent: float) -> float:
    """Round the logarithm of a value up to that of 1, 2 or 5 times a power of ten."""
    return min(step for step in _list_steps(exponent) if step >= exponent - 1e-9)


def _list_steps(exponent: float) -> list[float]:
    return [floor(exponent) + log10(digit) for digit in (1, 2, 5, 10)]

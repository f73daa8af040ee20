"""Pictures as SVG, whose colours are those of the page: light or dark."""

from __future__ import annotations

from weightctl.verify.report.markup import Markup, element

__all__ = ["HEIGHT", "WIDTH", "label", "legend", "line", "picture"]

# Of a picture, in its own units; a page that is narrower has it scrolled.
WIDTH, HEIGHT = 960.0, 260.0


def picture(
    title: str, parts: list[Markup], height: float = HEIGHT, width: float = WIDTH
) -> Markup:
    """Return a picture that says what it shows to those who cannot see it."""
    drawn = element(
        "svg", *parts, viewBox=f"0 0 {width:.0f} {height:.0f}", role="img", aria_label=title,
        style=f"min-width:{0.72 * width:.0f}px",
    )  # fmt: skip
    return element("div", drawn, class_="scroll", tabindex="0")


def label(text: str, x: float, y: float, *, anchor: str = "middle", class_: str = "tick") -> Markup:
    """Return a text with its base line at `y`; `anchor` is `start`, `middle` or `end`."""
    return element("text", text, x=x, y=y, text_anchor=anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str = "grid") -> Markup:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def legend(entries: list[tuple[str, str]], x: float, y: float) -> Markup:
    """Return what colours mean, side by side: class and words of each."""
    parts: list[Markup] = []
    for class_, words in entries:
        parts += [
            element("rect", x=x, y=y - 9, width=11, height=11, rx=2, class_=class_),
            label(words, x + 16, y, anchor="start"),
        ]
        x += 32 + 6.6 * len(words)
    return element("g", *parts)

"""How many positions diverge by how much, in a picture."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

from weightctl.verify.report.drawing import HEIGHT, WIDTH, label, line, picture
from weightctl.verify.report.markup import Markup, element
from weightctl.verify.report.phrases import tick
from weightctl.wording import counted, number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.figures import Divergence

__all__ = ["histogram_chart"]

_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 20.0, 40.0, 46.0


def histogram_chart(divergence: Divergence) -> Markup:
    """Return a picture of how many positions have which divergence, empty ends left out."""
    bars = _trimmed(divergence.histogram)
    bounds = [below for below, _ in bars]
    most = max((count for _, count in bars), default=0) or 1
    total = sum(count for _, count in divergence.histogram) or 1
    bottom, inner = HEIGHT - _BOTTOM, WIDTH - _LEFT - _RIGHT
    step = min(inner / max(len(bars), 1), 90)
    every = -(-len(bars) // 16) or 1
    parts: list[Markup] = []
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * (bottom - _TOP)
        told = f"{100 * share * most / total:.0f} %"
        parts += [
            line(_LEFT, y, _LEFT + step * len(bars), y),
            label(told, _LEFT - 8, y + 4, anchor="end"),
        ]
    for place, (below, count) in enumerate(bars):
        x, height = _LEFT + step * place, count / most * (bottom - _TOP)
        parts.append(
            element(
                "rect",
                element("title", f"{counted(count, 'position')} below {number(below)} nats"),
                x=x + 1, y=bottom - height, width=max(step - 2, 1), height=max(height, 0.0),
                class_="first",
            )
        )  # fmt: skip
        if place % every == 0:
            parts.append(label(tick(below), x + step, bottom + 18))
    for value, words, y in (
        (divergence.mean, "mean", 14.0),
        (divergence.percentile_99, "99th percentile", 30.0),
    ):
        within = _within(value, bounds)
        if within is not None:
            x = _LEFT + step * within
            anchor, shift = ("start", 5) if x < WIDTH - 110 else ("end", -5)
            parts += [line(x, y - 10, x, bottom, "mark"), label(words, x + shift, y, anchor=anchor)]
    parts.append(
        label("Kullback-Leibler divergence of a position, up to so many nats", _LEFT, HEIGHT - 6,
              anchor="start")
    )  # fmt: skip
    return picture("Histogram of the Kullback-Leibler divergence of each position", parts)


def _trimmed(histogram: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    held = [place for place, (_, count) in enumerate(histogram) if count]
    if not held:
        return list(histogram)
    return list(histogram[max(held[0] - 1, 0) : held[-1] + 2])


def _within(value: float | None, bounds: Sequence[float]) -> float | None:
    """Return in which bar a value is, and how far in it; None where it is in none."""
    if value is None or not isfinite(value) or value < 0:
        return None
    for place, below in enumerate(bounds):
        if value < below:
            low = bounds[place - 1] if place else 0.0
            within = (value - low) / (below - low) if isfinite(below) else 0.5
            return place + within
    return None

"""Nesting of places by their names: `a.b.c` is in `a.b`, and both are in `a`.

Names are from files, and may have thousands of dots: all of this is linear in their letters, but
for the sorting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["in_order", "innermost", "leave"]

# No letter of a name comes before a dot, so that nothing is between a place and what is in it.
_KEYS = str.maketrans({".": "\0", "\0": "\1\0", "\1": "\1\1"})


def in_order(places: Iterable[str]) -> list[str]:
    """Return places sorted, so that right behind each is all that is in it."""
    return sorted(places, key=lambda place: place.translate(_KEYS))


def leave(above: list[str], place: str) -> None:
    """Take from the end of `above`, where each is in the one before, what a place is not in."""
    while above and not place.startswith(f"{above[-1]}."):
        above.pop()


def innermost(places: Iterable[str], containers: Collection[str]) -> dict[str, str]:
    """Return the innermost container that each place is in; the outermost of all is nameless."""
    found: dict[str, str] = {}
    above: list[str] = []
    for place in in_order(set(places)):
        leave(above, place)
        found[place] = above[-1] if above else ""
        if place and place in containers:
            above.append(place)
    return found

"""The memo of a pickle, as far as a scan remembers it."""

from __future__ import annotations

from typing import Any

from weightctl.formats.pickles.abstract import UNKNOWN
from weightctl.formats.pickles.limits import LimitError

__all__ = ["Memo"]

_MOST_KEPT = 1 << 20


class Memo:
    """What the memo has at which index: of objects that are not remembered nothing is kept.

    `count` is the number of indices in use, which MEMOIZE takes for the next one. Writers use one
    index after another; others are kept one by one.
    """

    __slots__ = ("_apart", "_first", "_kept", "_next")

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._first = self._next = 0
        self._apart: set[int] = set()

    @property
    def count(self) -> int:
        """How many indices are in use."""
        return self._next - self._first + len(self._apart)

    def put(self, index: int, value: Any) -> None:
        """Keep an object; raises `ValueError` for an index below zero."""
        if index < 0:
            raise ValueError("a memo index is negative")
        if value is not UNKNOWN and (len(self._kept) < _MOST_KEPT or index in self._kept):
            self._kept[index] = value
        else:
            self._kept.pop(index, None)
        if not self.count:
            self._first = self._next = index
        if index == self._next:
            self._next += 1
            while self._next in self._apart:
                self._apart.remove(self._next)
                self._next += 1
        elif not self._first <= index < self._next:
            if len(self._apart) >= _MOST_KEPT:
                raise LimitError(f"it uses more than {_MOST_KEPT} memo indices out of order")
            self._apart.add(index)

    def memoize(self, value: Any) -> None:
        """Keep an object at the next index, as MEMOIZE does."""
        if self._first or self._apart or value is not UNKNOWN:
            self.put(self.count, value)
        else:
            self._next += 1

    def get(self, index: int) -> Any:
        """Return what is known of an object."""
        return self._kept.get(index, UNKNOWN)

"""The kinds of values that only the keys of towers have."""

from __future__ import annotations

from typing import Any, NamedTuple

from weightctl.families.configs import shortest
from weightctl.families.kinds import FLAG, Real, Reals, show_value
from weightctl.families.layers import Layered

CHANNELS = 3
_MOST = 64


class _Shortest(NamedTuple):
    """A list of numbers, each as the shortest decimal with the same float32 value."""

    kind: Reals

    def read(self, content: object) -> tuple[float, ...]:
        """Return the numbers."""
        return tuple(map(shortest, self.kind.read(content)))

    @property
    def gguf_type(self) -> str:
        """The type of an array of numbers."""
        return self.kind.gguf_type

    def write(self, value: Any) -> list[float]:
        """Return the numbers."""
        return self.kind.write(value)


class _OneOver(NamedTuple):
    """An integer that is stored as its reciprocal."""

    def read(self, content: object) -> int:
        """Return the integer."""
        if isinstance(content, int | float) and 1 / _MOST <= content <= 1:
            number = round(1 / content)
            if abs(number * content - 1) < 1e-6:
                return number
        raise ValueError(f"is {show_value(content)}; it must be 1 / an integer of at most {_MOST}")

    @property
    def gguf_type(self) -> str:
        """`f32`."""
        return "f32"

    def write(self, value: int) -> float:
        """Return the reciprocal."""
        return 1 / value


BY_CHANNEL = _Shortest(Reals(Real(-1e6, 1e6), CHANNELS))
FLAGS = Layered(FLAG)
ONE_OVER = _OneOver()

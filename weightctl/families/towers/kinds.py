"""The kinds of values that only the keys of towers have."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from weightctl.families.configs import shortest
from weightctl.families.kinds import FLAG, LAYERS, Real, Reals, WholeNumber, show_value
from weightctl.families.layers import Layered
from weightctl.text.untyped import is_sequence

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


class _LayerNumbers(NamedTuple):
    """A list of layer numbers, in order."""

    def read(self, content: object) -> tuple[int, ...]:
        """Return the numbers."""
        if not is_sequence(content) or len(content) > LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must be a list of layer numbers")
        found = tuple(WholeNumber(0, LAYERS.most).read(each) for each in content)
        if any(left >= right for left, right in pairwise(found)):
            raise ValueError(f"is {show_value(content)}; the numbers must increase")
        return found

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[i32]"

    def write(self, value: tuple[int, ...]) -> list[int]:
        """Return the numbers as a list."""
        return list(value)


BY_CHANNEL = _Shortest(Reals(Real(-1e6, 1e6), CHANNELS))
FLAGS = Layered(FLAG)
INCREASING_LAYERS = _LayerNumbers()
ONE_OVER = _OneOver()

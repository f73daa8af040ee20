"""What the values of a model's config may be, and within which bounds."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ACTIVATION",
    "EPSILON",
    "FLAG",
    "HEADS",
    "LAYERS",
    "SIZE",
    "Choice",
    "Exactly",
    "Flag",
    "Kind",
    "Real",
    "Whole",
    "shown",
]

_LONGEST = 40


class Kind(Protocol):
    """What values of a key are allowed."""

    def read(self, content: object) -> Any:
        """Return what a value means; `ValueError` says what should stand there instead."""
        ...


class Whole(NamedTuple):
    """Whole numbers from `least` to `most`."""

    least: int
    most: int

    def read(self, content: object) -> int:
        """Return the number."""
        if type(content) is int and self.least <= content <= self.most:
            return content
        expected = f"no whole number from {self.least} to {self.most}"
        raise ValueError(f"is {shown(content)}, {expected}")


class Real(NamedTuple):
    """Numbers above `least`, or equal to it where `is_closed`, up to `most`."""

    least: float
    most: float
    is_closed: bool = False

    def read(self, content: object) -> float:
        """Return the number as a float."""
        if isinstance(content, int | float) and self._holds(content):
            return float(content)
        bound = "of at least" if self.is_closed else "above"
        expected = f"no number {bound} {self.least:g} and up to {self.most:g}"
        raise ValueError(f"is {shown(content)}, {expected}")

    def _holds(self, content: float) -> bool:
        # A whole number may be too large for a float, and compares all the same.
        if isinstance(content, bool) or (isinstance(content, float) and not isfinite(content)):
            return False
        return self.least < content <= self.most or (self.is_closed and content == self.least)


class Flag(NamedTuple):
    """True or false."""

    def read(self, content: object) -> bool:
        """Return the flag."""
        if isinstance(content, bool):
            return content
        raise ValueError(f"is {shown(content)}, neither true nor false")


class Choice(NamedTuple):
    """One of some words; `meanings` says what each means to us."""

    meanings: Mapping[str, Any]

    def read(self, content: object) -> Any:
        """Return what the word means."""
        if isinstance(content, str) and content in self.meanings:
            return self.meanings[content]
        known = ", ".join(f"`{word}`" for word in self.meanings)
        raise ValueError(f"is {shown(content)}, none of {known}")


class Exactly(NamedTuple):
    """One value; any other is a kind of model that `reason` says is not built."""

    value: object
    reason: str

    def read(self, content: object) -> object:
        """Return the value."""
        if type(content) is type(self.value) and content == self.value:
            return content
        raise ValueError(f"is {shown(content)}: {self.reason}")


FLAG = Flag()
# No model comes near these; what is beyond them is a mistake or an attack.
SIZE = Whole(1, (1 << 31) - 1)
HEADS = Whole(1, 1 << 16)
LAYERS = Whole(1, 10_000)
EPSILON = Real(0, 1, is_closed=True)
# What transformers calls the functions between layers (`ACT2FN`), and what we do.
ACTIVATION = Choice({
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "relu": "relu",
})  # fmt: skip


def shown(content: object) -> str:
    """Return how a value looks in a message, whatever it is."""
    if isinstance(content, int) and content.bit_length() > 200:
        return "a number of hundreds of digits"
    # What nests deeply or holds much is not worth a look.
    if not isinstance(content, str | int | float | None):
        return f"a {type(content).__name__}"
    text = repr(content)
    return f"`{text if len(text) <= _LONGEST else text[: _LONGEST - 1] + '…'}`"

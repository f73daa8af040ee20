"""Kinds of values of a model's config: their bounds, and how they are written."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ACTIVATION",
    "CAUSAL",
    "EPSILON",
    "FACTORS",
    "FLAG",
    "HEADS",
    "LAYERS",
    "SIZE",
    "Choice",
    "Exactly",
    "Flag",
    "Kind",
    "OrNone",
    "Real",
    "Reals",
    "ScaledReal",
    "WholeNumber",
    "WholeReal",
    "show_value",
    "show_values_apart",
]

_LONGEST = 40


class Kind(Protocol):
    """What values of a key are allowed."""

    @property
    def gguf_type(self) -> str:
        """The type that the value of such a key has in GGUF's metadata."""
        ...

    def read(self, content: object) -> Any:
        """Return what a value means; `ValueError` says what should stand there instead."""
        ...

    def write(self, value: Any) -> Any:
        """Return the content that is read as `value`; raises `ValueError` if there is none."""
        ...


class WholeNumber(NamedTuple):
    """Whole numbers from `least` to `most`."""

    least: int
    most: int

    def read(self, content: object) -> int:
        """Return the number."""
        if type(content) is int and self.least <= content <= self.most:
            return content
        expected = f"an integer from {self.least} to {self.most}"
        raise ValueError(f"is {show_value(content)}; it must be {expected}")

    @property
    def gguf_type(self) -> str:
        """`u32`."""
        return "u32"

    def write(self, value: Any) -> int:
        """Return the number."""
        return self.read(value)


class Real(NamedTuple):
    """Numbers above `least`, or equal to it where `is_closed`, up to `most`."""

    least: float
    most: float
    is_closed: bool = False

    def read(self, content: object) -> float:
        """Return the number as a float."""
        if isinstance(content, int | float) and self._holds(content):
            return float(content)
        bound = "at least" if self.is_closed else "above"
        expected = f"a number {bound} {self.least:g} and at most {self.most:g}"
        raise ValueError(f"is {show_value(content)}; it must be {expected}")

    @property
    def gguf_type(self) -> str:
        """`f32`."""
        return "f32"

    def write(self, value: Any) -> float:
        """Return the number as a float."""
        return self.read(value)

    def _holds(self, content: float) -> bool:
        # A whole number may be too large for a float, and compares all the same.
        if isinstance(content, bool) or (isinstance(content, float) and not isfinite(content)):
            return False
        return self.least < content <= self.most or (self.is_closed and content == self.least)


class WholeReal(NamedTuple):
    """Whole numbers from `least` to `most`, which GGUF has as floats."""

    least: int
    most: int

    def read(self, content: object) -> int:
        """Return the number."""
        if isinstance(content, float) and content.is_integer():
            content = int(content)
        return WholeNumber(*self).read(content)

    @property
    def gguf_type(self) -> str:
        """`f32`."""
        return "f32"

    def write(self, value: Any) -> int:
        """Return the number."""
        return self.read(value)


class Reals(NamedTuple):
    """Some numbers of a kind, up to `most`."""

    kind: Real
    most: int

    def read(self, content: object) -> tuple[float, ...]:
        """Return the numbers."""
        if not is_sequence(content) or not 0 < len(content) <= self.most:
            raise ValueError(
                f"is {show_value(content)}; it must be a list of 1 to {self.most} numbers"
            )
        return tuple(self.kind.read(each) for each in content)

    @property
    def gguf_type(self) -> str:
        """`array[f32]`."""
        return "array[f32]"

    def write(self, value: Any) -> list[float]:
        """Return the numbers as a list."""
        return list(self.read(value))


class ScaledReal(NamedTuple):
    """Numbers of another kind, which stand multiplied by a factor; 0 is none."""

    kind: Real
    factor: float

    def read(self, content: object) -> float | None:
        """Return the number without the factor."""
        number = self.kind.read(content) / self.factor
        return float(f"{number:.6g}") or None

    @property
    def gguf_type(self) -> str:
        """That of the numbers."""
        return self.kind.gguf_type

    def write(self, value: Any) -> float:
        """Return the number multiplied."""
        return self.kind.write(value * self.factor)


class Flag(NamedTuple):
    """True or false."""

    def read(self, content: object) -> bool:
        """Return the flag."""
        if isinstance(content, bool):
            return content
        raise ValueError(f"is {show_value(content)}; it must be true or false")

    @property
    def gguf_type(self) -> str:
        """`bool`."""
        return "bool"

    def write(self, value: Any) -> bool:
        """Return the flag."""
        return self.read(value)


class Choice(NamedTuple):
    """One of some words; `meanings` says what each means to us.

    Of several words of one meaning the first is written.
    """

    meanings: Mapping[str, Any]

    def read(self, content: object) -> Any:
        """Return what the word means."""
        if isinstance(content, str) and content in self.meanings:
            return self.meanings[content]
        known = ", ".join(f"`{word}`" for word in self.meanings)
        raise ValueError(f"is {show_value(content)}; it must be one of {known}")

    @property
    def gguf_type(self) -> str:
        """`string`."""
        return "string"

    def write(self, value: Any) -> str:
        """Return the first word that means the value."""
        for word, meaning in self.meanings.items():
            if type(meaning) is type(value) and meaning == value:
                return word
        raise ValueError(f"is {show_value(value)}, a value that the key does not support")

    def preferring(self, *words: str) -> Choice:
        """Return the same choice, in which these words are written before others."""
        return Choice({word: self.meanings[word] for word in words} | dict(self.meanings))


class Exactly(NamedTuple):
    """One value; any other is a kind of model that `reason` says is not supported."""

    value: object
    reason: str

    def read(self, content: object) -> object:
        """Return the value."""
        if type(content) is type(self.value) and content == self.value:
            return content
        raise ValueError(f"is {show_value(content)}: {self.reason}")

    @property
    def gguf_type(self) -> str:
        """That of the value."""
        return _GGUF_TYPES[type(self.value)]

    def write(self, value: Any) -> object:
        """Return the value."""
        return self.read(value)


class OrNone(NamedTuple):
    """What another kind allows, or a value that represents none."""

    kind: Kind
    none: object = 0

    def read(self, content: object) -> Any:
        """Return what the value means, None if it represents none."""
        if type(content) is type(self.none) and content == self.none:
            return None
        return self.kind.read(content)

    @property
    def gguf_type(self) -> str:
        """That of the other kind."""
        return self.kind.gguf_type

    def write(self, value: Any) -> Any:
        """Return the value as the other kind writes it, or what represents none."""
        return self.none if value is None else self.kind.write(value)


_GGUF_TYPES: dict[type, str] = {bool: "bool", int: "u32", float: "f32", str: "string"}


FLAG = Flag()
# No model comes near these; what is beyond them is a mistake or an attack.
SIZE = WholeNumber(1, (1 << 31) - 1)
HEADS = WholeNumber(1, 1 << 16)
LAYERS = WholeNumber(1, 10_000)
EPSILON = Real(0, 1, is_closed=True)
# What the speeds of rotations are divided by, for each pair of a head's numbers.
FACTORS = Reals(Real(1e-6, 1e12, is_closed=True), 1 << 16)
# Whether a position sees those before it alone, as GGUF may say of any family.
CAUSAL = Exactly(True, "attention to later tokens is not supported")
# What transformers calls the functions between layers (`ACT2FN`), and what we do.
ACTIVATION = Choice({
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "relu": "relu", "relu2": "relu2",
})  # fmt: skip


def show_value(content: object) -> str:
    """Return how a value looks in a message, whatever it is."""
    if isinstance(content, int) and content.bit_length() > 200:
        return "an integer of hundreds of digits"
    if is_sequence(content) and not isinstance(content, bytes):
        return _show_list(content)
    if not isinstance(content, str | int | float | None):
        return f"a {type(content).__name__}"
    return f"`{_cut(repr(content))}`"


def show_values_apart(content: object, other: object) -> tuple[str, str]:
    """Return how two different values look in a message, so that the difference is seen."""
    pair = show_value(content), show_value(other)
    if not is_sequence(content) or not is_sequence(other) or pair[0] != pair[1]:
        return pair
    for place, (own, theirs) in enumerate(zip(content, other, strict=False)):
        if own != theirs:
            begin = f"a list of {len(content)} with element {place} ="
            return (
                f"{begin} {show_value(own)}",
                f"a list with element {place} = {show_value(theirs)}",
            )
    return pair


def _show_list(content: Sequence[Any]) -> str:
    # What nests deeply or holds much is not worth a look.
    first = content[:_LONGEST]
    if not first or not all(isinstance(each, str | int | float | None) for each in first):
        return "a list"
    text = _cut(", ".join(map(_element, first)) + ", …" * (len(content) > _LONGEST))
    return f"a list of {len(content)} (`{text}`)"


def _element(content: object) -> str:
    return show_value(content).strip("`")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

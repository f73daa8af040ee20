"""Kinds of config values: which values are allowed, and how they are read and written."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_LONGEST = 40


class Kind(Protocol):
    """Which values a key may have, and how they are read and written."""

    @property
    def gguf_type(self) -> str:
        """The usual type of the value in GGUF's metadata."""
        ...

    def read(self, content: object) -> Any:
        """Return the value that the content of a file means.

        Raises `ValueError` with a message that says what is expected.
        """
        ...

    def write(self, value: Any) -> Any:
        """Return the content that is read as `value`.

        Raises `ValueError` if the kind does not allow the value.
        """
        ...


class WholeNumber(NamedTuple):
    """Integers from `least` to `most`."""

    least: int
    most: int

    def read(self, content: object) -> int:
        if type(content) is int and self.least <= content <= self.most:
            return content
        expected = f"an integer from {self.least} to {self.most}"
        raise ValueError(f"is {show_value(content)}; it must be {expected}")

    @property
    def gguf_type(self) -> str:
        return "u32"

    def write(self, value: Any) -> int:
        return self.read(value)


class Real(NamedTuple):
    """Numbers above `least`, or equal to it if `is_closed`, up to `most`."""

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
        return "f32"

    def write(self, value: Any) -> float:
        """Return the number as a float."""
        return self.read(value)

    def _holds(self, content: float) -> bool:
        # An integer can be too large for a float, but can be compared anyway.
        if isinstance(content, bool) or (isinstance(content, float) and not isfinite(content)):
            return False
        return self.least < content <= self.most or (self.is_closed and content == self.least)


class WholeReal(NamedTuple):
    """Integers from `least` to `most`, which GGUF stores as floats."""

    least: int
    most: int

    def read(self, content: object) -> int:
        if isinstance(content, float) and content.is_integer():
            content = int(content)
        return WholeNumber(*self).read(content)

    @property
    def gguf_type(self) -> str:
        return "f32"

    def write(self, value: Any) -> int:
        return self.read(value)


class Reals(NamedTuple):
    """A list of 1 to `most` numbers of `kind`."""

    kind: Real
    most: int

    def read(self, content: object) -> tuple[float, ...]:
        if not is_sequence(content) or not 0 < len(content) <= self.most:
            raise ValueError(
                f"is {show_value(content)}; it must be a list of 1 to {self.most} numbers"
            )
        return tuple(self.kind.read(each) for each in content)

    @property
    def gguf_type(self) -> str:
        return "array[f32]"

    def write(self, value: Any) -> list[float]:
        """Return the numbers as a list."""
        return list(self.read(value))


class ScaledReal(NamedTuple):
    """Numbers of `kind` that are stored multiplied by a factor; 0 means None."""

    kind: Real
    factor: float

    def read(self, content: object) -> float | None:
        """Return the number divided by the factor, rounded to 6 digits; None for 0."""
        number = self.kind.read(content) / self.factor
        return float(f"{number:.6g}") or None

    @property
    def gguf_type(self) -> str:
        return self.kind.gguf_type

    def write(self, value: Any) -> float:
        """Return the number multiplied by the factor."""
        return self.kind.write(value * self.factor)


class Flag(NamedTuple):
    def read(self, content: object) -> bool:
        if isinstance(content, bool):
            return content
        raise ValueError(f"is {show_value(content)}; it must be true or false")

    @property
    def gguf_type(self) -> str:
        return "bool"

    def write(self, value: Any) -> bool:
        return self.read(value)


class Choice(NamedTuple):
    """One of several words, which `meanings` maps to values of the config.

    If several words have the same meaning, the first one is written.
    """

    meanings: Mapping[str, Any]

    def read(self, content: object) -> Any:
        """Return the meaning of the word."""
        if isinstance(content, str) and content in self.meanings:
            return self.meanings[content]
        known = ", ".join(f"`{word}`" for word in self.meanings)
        raise ValueError(f"is {show_value(content)}; it must be one of {known}")

    @property
    def gguf_type(self) -> str:
        return "string"

    def write(self, value: Any) -> str:
        """Return the first word with this meaning."""
        for word, meaning in self.meanings.items():
            if type(meaning) is type(value) and meaning == value:
                return word
        raise ValueError(f"is {show_value(value)}, a value that the key does not support")

    def preferring(self, *words: str) -> Choice:
        """Return the same choice, in which these words are written rather than others."""
        return Choice({word: self.meanings[word] for word in words} | dict(self.meanings))


class Exactly(NamedTuple):
    """One value; models with another value are not supported, for the given `reason`."""

    value: object
    reason: str

    def read(self, content: object) -> object:
        if type(content) is type(self.value) and content == self.value:
            return content
        raise ValueError(f"is {show_value(content)}: {self.reason}")

    @property
    def gguf_type(self) -> str:
        return _GGUF_TYPES[type(self.value)]

    def write(self, value: Any) -> object:
        return self.read(value)


class OrNone(NamedTuple):
    """A value of `kind`, or the value `none`, which means None."""

    kind: Kind
    none: object = 0

    def read(self, content: object) -> Any:
        """Return the value, None for `none`."""
        if type(content) is type(self.none) and content == self.none:
            return None
        return self.kind.read(content)

    @property
    def gguf_type(self) -> str:
        return self.kind.gguf_type

    def write(self, value: Any) -> Any:
        """Return the value as `kind` writes it, `none` for None."""
        return self.none if value is None else self.kind.write(value)


_GGUF_TYPES: dict[type, str] = {bool: "bool", int: "u32", float: "f32", str: "string"}


FLAG = Flag()
# Limits that no published model comes near; larger values are errors or attacks.
SIZE = WholeNumber(1, (1 << 31) - 1)
HEADS = WholeNumber(1, 1 << 16)
LAYERS = WholeNumber(1, 10_000)
EPSILON = Real(0, 1, is_closed=True)
FACTOR = Real(0, 1e9)
# The divisors of the RoPE frequencies, one for each pair of rotary dimensions.
FACTORS = Reals(Real(1e-6, 1e12, is_closed=True), 1 << 16)
# Whether a position only sees those before it, which GGUF can state in any family.
CAUSAL = Exactly(True, "attention to later tokens is not supported")
# The names of activations in transformers (`ACT2FN`), and ours.
ACTIVATION = Choice({
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_python": "gelu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh", "relu": "relu", "relu2": "relu2",
})  # fmt: skip


def show_value(content: object) -> str:
    """Return a value as messages show it."""
    if isinstance(content, int) and content.bit_length() > 200:
        return "an integer of hundreds of digits"
    if is_sequence(content) and not isinstance(content, bytes):
        return _show_list(content)
    if not isinstance(content, str | int | float | None):
        return f"a {type(content).__name__}"
    return f"`{_cut(repr(content))}`"


def show_values_apart(content: object, other: object) -> tuple[str, str]:
    """Return two different values as messages show them, so that the difference is visible."""
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
    # Nested lists are not shown, and long ones only in part.
    first = content[:_LONGEST]
    if not first or not all(isinstance(each, str | int | float | None) for each in first):
        return "a list"
    text = _cut(", ".join(map(_element, first)) + ", …" * (len(content) > _LONGEST))
    return f"a list of {len(content)} (`{text}`)"


def _element(content: object) -> str:
    return show_value(content).strip("`")


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"

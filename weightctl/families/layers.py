"""Kinds of config values that have a value for each layer, in both naming conventions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.keys import GLOBAL, Key
from weightctl.families.kinds import FLAG, LAYERS, SIZE, OrNone, show_value
from weightctl.families.windowed_layers import FLAGS, WORDS, pattern_keys
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.families.keys import Fields
    from weightctl.families.kinds import Kind


class Layered(NamedTuple):
    """A list with a value of `kind` for each layer."""

    kind: Kind

    def read(self, content: object) -> Any:
        """Return a tuple of the values."""
        if not is_sequence(content) or not 0 < len(content) <= LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must have a value for each layer")
        return tuple(self.kind.read(each) for each in content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of values."""
        return f"array[{self.kind.gguf_type}]"

    def write(self, value: Any) -> Any:
        """Return the list of values."""
        return [self.kind.write(each) for each in value]


class Uniform(NamedTuple):
    """A value of `kind`, or a list that has the same value for each layer."""

    kind: Kind

    def read(self, content: object) -> Any:
        """Return the value; raises `ValueError` if it differs between layers."""
        if not is_sequence(content):
            return self.kind.read(content)
        found = Layered(self.kind).read(content)
        if len(set(found)) > 1:
            raise ValueError(
                f"is {show_value(content)}; values that differ between layers are not supported"
            )
        return found[0]

    @property
    def gguf_type(self) -> str:
        """The type of the value."""
        return self.kind.gguf_type

    def write(self, value: Any) -> Any:
        """Return the value."""
        return self.kind.write(value)


class LayerValues(NamedTuple):
    """A list with a value of `kind` for each layer, or one value for all layers."""

    kind: Kind

    def read(self, content: object) -> Any:
        """Return a tuple of the values, or the one value."""
        if not is_sequence(content):
            return self.kind.read(content)
        if not 0 < len(content) <= LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must have a value for each layer")
        return tuple(self.kind.read(each) for each in content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of values."""
        return f"array[{self.kind.gguf_type}]"

    def write(self, value: Any) -> Any:
        """Return the list of values, or the one value."""
        if not is_sequence(value):
            return self.kind.write(value)
        return [self.kind.write(each) for each in value]


class LayerOnes(NamedTuple):
    """A list with 1 for each layer that has a property, and 0 for the others."""

    def read(self, content: object) -> tuple[bool, ...]:
        """Return for each layer whether it has the property."""
        if not is_sequence(content) or not 0 < len(content) <= LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must be a list with 0 or 1 per layer")
        if not all(each in (0, 1) for each in content):
            raise ValueError("has an element that is neither 0 nor 1")
        return tuple(map(bool, content))

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[u32]"

    def write(self, value: Sequence[bool]) -> list[int]:
        """Return the ones and zeros."""
        return list(map(int, value))


class LayersAlike(NamedTuple):
    """A list of layer types that must all be one of `words`; `reason` says why."""

    reason: str
    words: tuple[str, ...] = (GLOBAL,)

    def read(self, content: object) -> None:
        """Return None, because no layer differs."""
        if not is_sequence(content) or any(word not in self.words for word in content):
            raise ValueError(f"is {show_value(content)}: {self.reason}")

    @property
    def gguf_type(self) -> str:
        """The type of an array of strings."""
        return "array[string]"

    def write(self, value: Any) -> list[str]:
        """Raise `ValueError`: values of this kind are not written."""
        raise ValueError(f"is {show_value(value)}: {self.reason}")


class LayerChoice(NamedTuple):
    """A list of words: `word` for each layer that has a property, and `other` for the others."""

    word: str
    other: str

    def read(self, content: object) -> tuple[bool, ...]:
        """Return for each layer whether it has the property."""
        if not is_sequence(content) or not 0 < len(content) <= LAYERS.most:
            expected = f"a list with `{self.word}` or `{self.other}` for each layer"
            raise ValueError(f"is {show_value(content)}; it must be {expected}")
        for each in content:
            if each not in self:
                expected = f"`{self.word}` or `{self.other}`"
                raise ValueError(f"has {show_value(each)}; each layer must be {expected}")
        return tuple(each == self.word for each in content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of strings."""
        return "array[string]"

    def write(self, value: Sequence[bool]) -> list[str]:
        """Return the words."""
        return [self.word if has else self.other for has in value]


class LayerIndices(NamedTuple):
    """A list of the numbers of layers, which may have to be in order."""

    is_increasing: bool = False

    def read(self, content: object) -> tuple[int, ...]:
        """Return the numbers in order."""
        if not is_sequence(content) or len(content) > LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must be a list of layer numbers")
        if not all(type(each) is int and 0 <= each < LAYERS.most for each in content):
            raise ValueError(f"is {show_value(content)}; it must be a list of layer numbers")
        found = tuple(sorted(content))
        if self.is_increasing and (found != tuple(content) or len(set(found)) != len(found)):
            raise ValueError(f"is {show_value(content)}; the numbers must increase")
        return found

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[u32]"

    def write(self, value: Any) -> list[int]:
        """Return the numbers."""
        return list(value)


class FlagMeaning(NamedTuple):
    """A flag: true means the value `meaning`, and false means None."""

    meaning: object

    def read(self, content: object) -> object:
        """Return the meaning or None. A value found in the tensors may be the meaning itself."""
        if content == self.meaning:
            return content
        return self.meaning if FLAG.read(content) else None

    @property
    def gguf_type(self) -> str:
        """The type of a flag."""
        return FLAG.gguf_type

    def write(self, value: Any) -> bool:
        """Return whether the value is not None."""
        return value is not None


ONES = LayerOnes()
NUMBERS = LayerIndices()
INCREASING = LayerIndices(is_increasing=True)


def no_windows(family: str) -> Key:
    """Return the key of layer types for a family without sliding windows in llama.cpp."""
    reason = f"llama.cpp has no sliding windows for {family}"
    return Key(
        field="windowed_layers",
        kind=LayersAlike(reason),
        default=None,
        gguf_default=None,
        hugging_face="layer_types",
        written=False,
    )


def window_keys(
    period: int, window: int | None = None, *, pattern: bool = False
) -> tuple[Key, ...]:
    """Return the keys of sliding windows in all layers except the last of each `period`.

    `window` is the default size. With `pattern`, GGUF has a flag for each layer; otherwise it has
    flags only if llama.cpp would assume other ones.
    """
    usual = every_but(period)
    flags = Key(field="windowed_layers", kind=FLAGS, gguf_default=usual,
                gguf="{arch}.attention.sliding_window_pattern")  # fmt: skip
    of_gguf = (flags,) if pattern else pattern_keys(period, is_stated=False)
    return (
        Key(field="sliding_window", kind=OrNone(SIZE), default=window, gguf_default=None,
            gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
        *of_gguf,
        Key(field="windowed_layers", kind=WORDS, default=usual, hugging_face="layer_types",
            written=True),
    )  # fmt: skip


def window_flags(period: int) -> tuple[Key, ...]:
    """Return the keys of `window_keys` in which GGUF has flags, without the size of windows."""
    return window_keys(period, pattern=True)[1:]


def every_but(period: int | str, *, first: bool = False) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a default that marks all layers except the last, or the first, of each period.

    `period` is a number of layers, or the field that has it.
    """

    def mark(fields: Fields) -> tuple[bool, ...]:
        length = fields[period] if isinstance(period, str) else period
        return tuple((layer + (not first)) % length != 0 for layer in range(fields["layers"]))

    return mark


def from_layer(first: int | str) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a default that marks the layers from a number on, which a field can have."""

    def mark(fields: Fields) -> tuple[bool, ...]:
        begin = fields[first] if isinstance(first, str) else first
        return tuple(layer >= begin for layer in range(fields["layers"]))

    return mark

"""Values that a config has for each layer, and how either convention writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG, LAYERS, SIZE, OrNone, show_value
from weightctl.families.windowed_layers import FLAGS, GLOBAL, WORDS, pattern_keys
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.families.keys import Fields
    from weightctl.families.kinds import Kind

__all__ = [
    "ONES",
    "FlagMeaning",
    "LayerChoice",
    "LayerOnes",
    "LayerValues",
    "Layered",
    "LayersAlike",
    "Uniform",
    "every_but",
    "from_layer",
    "no_windows",
    "window_keys",
]


class Layered(NamedTuple):
    """A list with a value of another kind for each layer."""

    kind: Kind

    def read(self, content: object) -> Any:
        """Return a tuple of the values."""
        if not is_sequence(content) or not 0 < len(content) <= LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must have a value for each layer")
        return tuple(self.kind.read(each) for each in content)

    @property
    def gguf_type(self) -> str:
        """That of an array of values."""
        return f"array[{self.kind.gguf_type}]"

    def write(self, value: Any) -> Any:
        """Return the list of values."""
        return [self.kind.write(each) for each in value]


class Uniform(NamedTuple):
    """A value of another kind, or a list that has it for each layer."""

    kind: Kind

    def read(self, content: object) -> Any:
        """Return the value; `ValueError` if layers have different ones."""
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
        """That of the value."""
        return self.kind.gguf_type

    def write(self, value: Any) -> Any:
        """Return the value."""
        return self.kind.write(value)


class LayerValues(NamedTuple):
    """A list with a value of another kind for each layer, or one value for all."""

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
        """That of a list of values."""
        return f"array[{self.kind.gguf_type}]"

    def write(self, value: Any) -> list[Any]:
        """Return the list of values."""
        return [self.kind.write(each) for each in value]


class LayerOnes(NamedTuple):
    """1 for each layer that has something, and 0 for the others."""

    def read(self, content: object) -> tuple[bool, ...]:
        """Return whether each layer has it."""
        if not is_sequence(content) or not 0 < len(content) <= LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must be a list with 0 or 1 per layer")
        if not all(each in (0, 1) for each in content):
            raise ValueError("has an element that is neither 0 nor 1")
        return tuple(map(bool, content))

    @property
    def gguf_type(self) -> str:
        """That of a list of numbers."""
        return "array[u32]"

    def write(self, value: Sequence[bool]) -> list[int]:
        """Return the ones and zeros."""
        return list(map(int, value))


class LayersAlike(NamedTuple):
    """A word for each layer, which must be that of attention to all positions."""

    reason: str

    def read(self, content: object) -> None:
        """Return None: there is nothing that differs between layers."""
        if not is_sequence(content) or any(word != GLOBAL for word in content):
            raise ValueError(f"is {show_value(content)}: {self.reason}")

    @property
    def gguf_type(self) -> str:
        """That of a list of words."""
        return "array[string]"

    def write(self, value: Any) -> list[str]:
        """Raise `ValueError`: nothing is written of it."""
        raise ValueError(f"is {show_value(value)}: {self.reason}")


class LayerChoice(NamedTuple):
    """One of two words for each layer: one if it has something, and another if not."""

    word: str
    other: str

    def read(self, content: object) -> tuple[bool, ...]:
        """Return whether each layer has it."""
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
        """That of a list of words."""
        return "array[string]"

    def write(self, value: Sequence[bool]) -> list[str]:
        """Return the words."""
        return [self.word if has else self.other for has in value]


class FlagMeaning(NamedTuple):
    """True for a meaning, and false for None."""

    meaning: object

    def read(self, content: object) -> object:
        """Return the meaning, or None; what is seen of tensors is the meaning itself."""
        if content == self.meaning:
            return content
        return self.meaning if FLAG.read(content) else None

    @property
    def gguf_type(self) -> str:
        """That of a flag."""
        return FLAG.gguf_type

    def write(self, value: Any) -> bool:
        """Return whether there is a value."""
        return value is not None


ONES = LayerOnes()


def no_windows(family: str) -> Key:
    """Return the key of layers that may have a window, for a family that has none in GGUF."""
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
    period: int, *, window: int | None = None, pattern: bool = False
) -> tuple[Key, ...]:
    """Return the keys of windows in all layers but the last of each `period`.

    `window` is the default of its size. With `pattern` GGUF has a flag for each layer; without, it
    has them only where llama.cpp would take others for granted.
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


def every_but(period: int) -> Callable[[Fields], tuple[bool, ...]]:
    """Return what marks all layers but the last of each `period`."""
    return lambda fields: tuple((layer + 1) % period != 0 for layer in range(fields["layers"]))


def from_layer(first: str) -> Callable[[Fields], tuple[bool, ...]]:
    """Return what marks the layers from the one on that a field names."""
    return lambda fields: tuple(layer >= fields[first] for layer in range(fields["layers"]))

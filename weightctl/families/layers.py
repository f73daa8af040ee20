"""Config values for each layer, in both naming conventions: their kinds, and sliding windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import GLOBAL, LOCAL, Key
from weightctl.families.config_values import FLAG, HEADS, LAYERS, SIZE, OrNone, Real, show_value
from weightctl.families.configs import shortest
from weightctl.families.decoder_keys import check_decoder
from weightctl.families.rope import standard
from weightctl.text.untyped import is_list, is_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.config_keys import Fields
    from weightctl.families.config_values import Kind


_LIMIT = Real(0, 1e9, is_closed=True)


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
        return self.kind.gguf_type

    def write(self, value: Any) -> Any:
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


class LayerLimits(NamedTuple):
    """A list with a limit for each layer; 0 means none."""

    def read(self, content: object) -> tuple[float, ...]:
        """Return the limits as GGUF can have them."""
        return tuple(map(shortest, Layered(_LIMIT).read(content)))

    @property
    def gguf_type(self) -> str:
        """The type of an array of numbers."""
        return "array[f32]"

    def write(self, value: Sequence[float]) -> list[float]:
        return list(value)


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
        return [self.word if has else self.other for has in value]


class LayerIndices(NamedTuple):
    """A list of the numbers of layers, which may have to be in order."""

    is_increasing: bool = False

    def read(self, content: object) -> tuple[int, ...]:
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
        return FLAG.gguf_type

    def write(self, value: Any) -> bool:
        """Return whether the value is not None."""
        return value is not None


class LayerWords(NamedTuple):
    """A word for each layer: whether it has a sliding window or full attention."""

    def read(self, content: object) -> tuple[bool, ...]:
        """Return for each layer whether it has a sliding window."""
        if not is_list(content) or not 0 < len(content) <= LAYERS.most:
            raise ValueError(
                f"is {show_value(content)}; it must be a list with a layer type for each layer"
            )
        for word in content:
            if word not in (GLOBAL, LOCAL):
                raise ValueError(
                    f"has {show_value(word)}; each layer type must be `{GLOBAL}` or `{LOCAL}`"
                )
        return tuple(word == LOCAL for word in content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of strings."""
        return "array[string]"

    def write(self, value: Sequence[bool]) -> list[str]:
        return [LOCAL if is_windowed else GLOBAL for is_windowed in value]


class LayerFlags(NamedTuple):
    """A list with true for each layer with a sliding window, and false for the others."""

    def read(self, content: object) -> tuple[bool, ...]:
        if not is_sequence(content) or not 0 < len(content) <= LAYERS.most:
            raise ValueError(
                f"is {show_value(content)}; it must be a list with true or false for each layer"
            )
        if not all(isinstance(flag, bool) for flag in content):
            raise ValueError("has an element that is not true or false")
        return tuple(content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of flags."""
        return "array[bool]"

    def write(self, value: Sequence[bool]) -> list[bool]:
        return list(value)


class LayerPattern(NamedTuple):
    """The period of layers with full attention, or a flag for each layer."""

    def read(self, content: object) -> int | tuple[bool, ...]:
        """Return the period or the flags."""
        return FLAGS.read(content) if is_sequence(content) else SIZE.read(content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of flags."""
        return "array[bool]"

    def write(self, value: int | Sequence[bool]) -> int | list[bool]:
        """Return the period or the list of flags."""
        return value if isinstance(value, int) else list(value)


ONES = LayerOnes()
HEADS_BY_LAYER = Layered(HEADS)
LIMITS_BY_LAYER = LayerLimits()
SIZES_BY_LAYER = LayerValues(SIZE)
# For sliding windows: a word for each layer in transformers' `layer_types`, and a flag in GGUF.
WORDS = LayerWords()
FLAGS = LayerFlags()
_PATTERN = LayerPattern()
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


def mark_windowed_layers(
    layers: int, period: int, *, is_first_global: bool = False
) -> tuple[bool, ...]:
    """Return for each layer whether it has a window: all except the last of each `period`.

    With `is_first_global`, the first layer of each period has full attention instead.
    """
    place = 0 if is_first_global else period - 1
    return tuple(number % period != place for number in range(layers))


def every_but(period: int | str, *, first: bool = False) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a default that marks all layers except the last, or the first, of each period.

    `period` is a number of layers, or the field that has it.
    """

    def mark(fields: Fields) -> tuple[bool, ...]:
        length = fields[period] if isinstance(period, str) else period
        return mark_windowed_layers(fields["layers"], length, is_first_global=first)

    return mark


def from_layer(first: int | str) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a default that marks the layers from a number on, which a field can have."""

    def mark(fields: Fields) -> tuple[bool, ...]:
        begin = fields[first] if isinstance(first, str) else first
        return tuple(layer >= begin for layer in range(fields["layers"]))

    return mark


# Keys and forms of config.json that state which layers have a sliding window.


def _uses_window(fields: Fields) -> bool:
    return fields["sliding_window"] is not None


# The keys of Qwen2 and Qwen3, whose GGUF files have a flag for each layer.
WINDOW_KEYS = (
    Key(field="sliding_window", kind=OrNone(SIZE), default=None, gguf_default=None,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
    Key(field="uses_window", kind=FLAG, default=_uses_window, hugging_face="use_sliding_window",
        written=True),
    Key(field="windowed_layers", kind=WORDS, default=None, hugging_face="layer_types"),
    Key(field="windowed_layers", kind=FLAGS, gguf_default=None,
        gguf="{arch}.attention.sliding_window_pattern"),
)  # fmt: skip


def standard_windows(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json of Qwen2 or Qwen3 in the form of current versions of transformers."""
    return with_layer_types(standard(document), window=4096, first=28, layers=32)


def check_windows(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them.

    Raises `ValueError` if they contradict each other.
    """
    made = check_decoder(fields)
    if any(fields["windowed_layers"] or ()) and fields["sliding_window"] is None:
        raise ValueError(
            "the config states layers with a sliding window, but not the size of the window"
        )
    return made


def pattern_keys(
    usual: int, *, is_first_global: bool = False, is_stated: bool = True
) -> tuple[Key, Key]:
    """Return GGUF's keys of the layers with a window, if llama.cpp reads a period or flags.

    `usual` is the period that llama.cpp assumes without a key; it is written only if `is_stated`.
    Other periods are written as numbers, and other patterns as flags. These keys precede the one of
    config.json.
    """

    def mark(layers: int, period: int) -> tuple[bool, ...]:
        return mark_windowed_layers(layers, period, is_first_global=is_first_global)

    def find(fields: Fields) -> int | tuple[bool, ...] | None:
        flags = fields.get("windowed_layers")
        layers = fields["layers"]
        if flags is None or flags == mark(layers, usual):
            return usual if is_stated else None
        seeing_all = [number for number, flag in enumerate(flags) if not flag]
        seeing_all = [*seeing_all[is_first_global:], layers]
        period = seeing_all[0] + (not is_first_global)
        return period if mark(layers, period) == flags else flags

    def spread(fields: Fields) -> tuple[bool, ...]:
        pattern = fields["window_pattern"]
        if is_sequence(pattern):
            return tuple(pattern)
        return mark(fields["layers"], usual if pattern is None else pattern)

    return (
        Key(field="window_pattern", kind=_PATTERN, gguf_default=find,
            gguf="{arch}.attention.sliding_window_pattern"),
        Key(field="windowed_layers", kind=FLAGS, gguf_default=spread),
    )  # fmt: skip


def pattern_of_first(usual: int) -> tuple[Key, Key]:
    """Return the keys of `pattern_keys` if the first layer of each period has full attention."""
    return pattern_keys(usual, is_first_global=True)


def without_unused_window(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with 0 as the size of windows if no layer is stated to have one."""
    types = document.get("layer_types")
    has_window = is_list(types) and LOCAL in types
    return document if has_window else {**document, "sliding_window": 0}


def with_layer_types(
    document: Mapping[str, Any], *, window: int, first: int, layers: int
) -> Mapping[str, Any]:
    """Return a config.json that states for each layer whether it has a sliding window.

    Config files such as Qwen2's state only `max_window_layers`, the number of the first layer with
    a window, and `use_sliding_window`. `window`, `first` and `layers` are transformers' defaults.
    Raises `ValueError` if `max_window_layers` is not an integer. Source: `Qwen2Config` in
    transformers' `configuration_qwen2.py`.
    """
    size = document.get("sliding_window", window) if document.get("use_sliding_window") else None
    types = document.get("layer_types")
    count = document.get("num_hidden_layers", layers)
    first = document.get("max_window_layers", first)
    if types is None and size is not None:
        if type(first) is not int:
            raise ValueError(f"`max_window_layers` is {show_value(first)}; it must be an integer")
        # An invalid count is reported when the key is read.
        if type(count) is int and count <= LAYERS.most:
            types = [LOCAL if layer >= first else GLOBAL for layer in range(count)]
    if size is None and is_list(types) and all(word == GLOBAL for word in types):
        # Newer versions of transformers write this for models without a window.
        types = None
    return {**document, "sliding_window": size, "layer_types": types}


def standard_period(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a type for each layer, where older files state a period."""
    found = standard(document)
    period = document.get("sliding_window_pattern")
    if document.get("layer_types") is not None or not period:
        return found
    layers = LAYERS.read(document.get("num_hidden_layers", 32))
    if isinstance(period, str):  # a letter for each layer of a period, `L` for a window
        windowed = tuple(period[layer % len(period)] == "L" for layer in range(layers))
    else:
        windowed = mark_windowed_layers(layers, SIZE.read(period))
    if document.get("sliding_window", 4096) is None:
        windowed = (False,) * layers
    return {**found, "layer_types": WORDS.write(windowed)}

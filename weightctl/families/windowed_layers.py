"""Kinds and keys that state which layers have a sliding window.

Transformers' `layer_types` has a word for each layer, and GGUF a flag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.decoder_keys import check_decoder
from weightctl.families.keys import GLOBAL, LOCAL, Key
from weightctl.families.kinds import FLAG, LAYERS, SIZE, OrNone, show_value
from weightctl.families.rope import standard
from weightctl.text.untyped import is_list, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.keys import Fields


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
        """Return the words."""
        return [LOCAL if is_windowed else GLOBAL for is_windowed in value]


class LayerFlags(NamedTuple):
    """A list with true for each layer with a sliding window, and false for the others."""

    def read(self, content: object) -> tuple[bool, ...]:
        """Return the flags."""
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
        """Return the flags."""
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


WORDS = LayerWords()
FLAGS = LayerFlags()
PATTERN = LayerPattern()


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


def mark_windowed_layers(
    layers: int, period: int, *, is_first_global: bool = False
) -> tuple[bool, ...]:
    """Return for each layer whether it has a window: all except the last of each `period`.

    With `is_first_global`, the first layer of each period has full attention instead.
    """
    place = 0 if is_first_global else period - 1
    return tuple(number % period != place for number in range(layers))


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
        Key(field="window_pattern", kind=PATTERN, gguf_default=find,
            gguf="{arch}.attention.sliding_window_pattern"),
        Key(field="windowed_layers", kind=FLAGS, gguf_default=spread),
    )  # fmt: skip


def pattern_of_first(usual: int) -> tuple[Key, Key]:
    """Return the keys of `pattern_keys` if the first layer of each period has full attention."""
    return pattern_keys(usual, is_first_global=True)


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

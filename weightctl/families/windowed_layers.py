"""Flags of the layers that attend to a sliding window of positions.

Transformers' `layer_types` names what each does. GGUF has a flag for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.kinds import LAYERS, show_value
from weightctl.text.untyped import is_list, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["FLAGS", "GLOBAL", "LOCAL", "WORDS", "LayerFlags", "LayerWords", "with_layer_types"]

GLOBAL, LOCAL = "full_attention", "sliding_attention"


class LayerWords(NamedTuple):
    """A word for each layer, which says whether it sees only a window or all positions."""

    def read(self, content: object) -> tuple[bool, ...]:
        """Return of each layer whether it sees only a window."""
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
        """That of a list of words."""
        return "array[string]"

    def write(self, value: Sequence[bool]) -> list[str]:
        """Return the words."""
        return [LOCAL if is_windowed else GLOBAL for is_windowed in value]


class LayerFlags(NamedTuple):
    """True for each layer that sees only a window, and false for the others."""

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
        """That of a list of flags."""
        return "array[bool]"

    def write(self, value: Sequence[bool]) -> list[bool]:
        """Return the flags."""
        return list(value)


WORDS = LayerWords()
FLAGS = LayerFlags()


def with_layer_types(
    document: Mapping[str, Any], *, window: int, first: int, layers: int
) -> Mapping[str, Any]:
    """Return a config.json that says of every layer whether it sees only a window.

    Such as Qwen2's leave it to `max_window_layers`, the number of the first layer that does, and to
    `use_sliding_window`. `window`, `first` and `layers` are what transformers takes where
    config.json has none. Raises `ValueError` if the first is not a number. Source: `Qwen2Config` in
    transformers' `configuration_qwen2.py`.
    """
    size = document.get("sliding_window", window) if document.get("use_sliding_window") else None
    types = document.get("layer_types")
    count = document.get("num_hidden_layers", layers)
    first = document.get("max_window_layers", first)
    if types is None and size is not None:
        if type(first) is not int:
            raise ValueError(f"`max_window_layers` is {show_value(first)}; it must be an integer")
        # Another count is refused where it is read.
        if type(count) is int and count <= LAYERS.most:
            types = [LOCAL if layer >= first else GLOBAL for layer in range(count)]
    if size is None and is_list(types) and all(word == GLOBAL for word in types):
        # What newer versions of transformers write of models without a window.
        types = None
    return {**document, "sliding_window": size, "layer_types": types}

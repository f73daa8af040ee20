"""The quantization settings of a config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Settings"]

_KEYS = ("quantization_config", "quantization", "compression_config")


class Settings:
    """The quantization settings of a config.json, which may be anybody's; empty where it has none.

    Models of text and images may have them with those of the text.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._found: Mapping[str, Any] = {}
        text = config.get("text_config")
        for document in (config, text if is_object(text) else {}):
            for key in _KEYS:
                found = document.get(key)
                if is_object(found) and not self._found:
                    self._found = found

    def of(self, layer: str) -> Settings:
        """Return those of a layer, which may have some of its own."""
        own = self._found.get(layer)
        made = Settings({})
        made._found = {**self._found, **own} if is_object(own) else self._found  # of this class
        return made

    def text(self, key: str) -> str:
        """Return a setting that is text, in lower case; empty where there is none."""
        found = self._found.get(key)
        return found.lower() if isinstance(found, str) else ""

    def sizes(self, axis: int) -> tuple[int, ...]:
        """Return the sizes of blocks that are named, along an axis counted from the end: -1, -2."""
        return tuple(size for size in self._sizes(axis) if type(size) is int and size > 0)

    def _sizes(self, axis: int) -> Iterator[Any]:
        groups = self._found.get("config_groups")
        groups = groups.values() if is_object(groups) else ()
        weights = [group.get("weights") for group in groups if is_object(group)]
        for settings in (self._found, *filter(is_object, weights)):
            for key in ("weight_block_size", "block_structure"):
                blocks = settings.get(key)
                if is_list(blocks) and len(blocks) == 2:
                    yield blocks[axis]
            if axis == -1:
                yield settings.get("group_size")
                yield settings.get("q_group_size")

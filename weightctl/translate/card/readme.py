"""A README for a model's directory, from the `general.*` keys of its metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_sequence
from weightctl.translate.card.front_matter import format_front_matter
from weightctl.translate.card.keys import ENTRY, LISTS, SOURCES, TEXTS
from weightctl.translate.card.origins import format_origin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

__all__ = ["to_readme"]

_MOST_LISTED = 1000


def to_readme(metadata: Mapping[str, MetadataValue]) -> bytes | None:
    """Return a README whose front matter says what the metadata do; None if they say nothing."""
    facts: dict[str, Any] = {}
    for key, names in TEXTS.items():
        if text := _text(metadata, f"general.{key}"):
            facts[names[0]] = text
    for key, names in LISTS.items():
        value = metadata.get(f"general.{key}")
        content = value.content if value is not None and is_sequence(value.content) else ()
        if texts := [_clean(each) for each in content if isinstance(each, str)][:_MOST_LISTED]:
            facts[names[0]] = texts
    for kind, names in SOURCES.items():
        if entries := _origins(metadata, kind):
            facts[names[0]] = entries[0] if len(entries) == 1 else entries
    if not facts:
        return None
    parts = [format_front_matter(facts)]
    for prefix, key in (("# ", "name"), ("", "description")):
        if key in facts:
            parts.append(f"{prefix}{' '.join(facts[key].split())}\n")
    return "\n".join(parts).encode()


def _origins(metadata: Mapping[str, MetadataValue], kind: str) -> list[Any]:
    count = metadata.get(f"general.{kind}.count")
    number = count.content if count is not None and isinstance(count.content, int) else 0
    found = [
        {key: text for key in ENTRY if (text := _text(metadata, f"general.{kind}.{place}.{key}"))}
        for place in range(min(number, _MOST_LISTED))
    ]
    return [format_origin(entry) for entry in found if entry]


def _text(metadata: Mapping[str, MetadataValue], key: str) -> str:
    value = metadata.get(key)
    return _clean(value.content) if value is not None and isinstance(value.content, str) else ""


def _clean(text: str) -> str:
    """Return a text as UTF-8 can hold it; GGUF's strings may be any bytes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

"""The fields of an object that was read from a file; `ValueError` if one is invalid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.formats.base import is_text
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["count_at", "list_at", "object_at", "objects_at", "one_of", "require_text", "text_at"]

_LARGEST = 1 << 63


def object_at(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the object under a key."""
    content = entry.get(key)
    if is_object(content):
        return content
    raise ValueError(f"`{key}` is not a JSON object")


def objects_at(entry: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the list of objects under a key."""
    content = list_at(entry, key)
    if all(map(is_object, content)):
        return content
    raise ValueError(f"`{key}` is not a list of JSON objects")


def list_at(entry: Mapping[str, Any], key: str) -> list[Any]:
    """Return the list under a key."""
    content = entry.get(key)
    if is_list(content):
        return content
    raise ValueError(f"`{key}` is not a list")


def text_at(entry: Mapping[str, Any], key: str) -> str:
    """Return the text under a key; it can be written as UTF-8."""
    content = entry.get(key)
    if isinstance(content, str):
        if not content.isascii():
            require_text(content)
        return content
    raise ValueError(f"`{key}` is not a string")


def count_at(entry: Mapping[str, Any], key: str) -> int:
    """Return the integer under a key, from 0 up to what 63 bits hold."""
    content = entry.get(key)
    if type(content) is int and 0 <= content < _LARGEST:
        return content
    raise ValueError(f"`{key}` is not an integer of at least 0")


def one_of(entry: Mapping[str, Any], key: str, known: Sequence[str]) -> str:
    """Return the text under a key, which is one of those that are known."""
    content = text_at(entry, key)
    if content not in known:
        raise ValueError(f"`{key}` is `{content}`; it must be {' or '.join(known)}")
    return content


def require_text(content: str) -> None:
    """Raise where a text has lone surrogates."""
    if not is_text(content):
        raise ValueError(f"{content!r} is not UTF-8")

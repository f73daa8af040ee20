"""Type checks for values that were read from a file, and JSON objects in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard


def is_list(content: object) -> TypeGuard[list[Any]]:
    """Whether a value is a JSON array."""
    return isinstance(content, list)


def is_object(content: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is a JSON object."""
    return isinstance(content, dict)


def is_sequence(content: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a sequence and not a string."""
    return isinstance(content, Sequence) and not isinstance(content, str)


def is_slice(content: object) -> TypeGuard[slice[Any, Any, Any]]:
    """Whether a value is a slice; its bounds may be of any type."""
    return isinstance(content, slice)


def is_text_map(content: object) -> TypeGuard[dict[str, str]]:
    """Whether a value is a JSON object of strings."""
    return is_object(content) and all(isinstance(value, str) for value in content.values())


def is_tuple(content: object) -> TypeGuard[tuple[Any, ...]]:
    """Whether a value is a plain tuple and not a named tuple."""
    return type(content) is tuple


def object_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the JSON object at a key, an empty one if the key is missing or null.

    Raises `ValueError` if the value is not an object.
    """
    found: Any = document.get(name)
    if found is None:
        return {}
    if not is_object(found):
        raise ValueError(f"`{name}` is not a JSON object")
    return found

"""The sizes that names of dimensions represent while a graph runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import EngineError
from weightctl.shape import Dim, Shape
from weightctl.text.untyped import is_list, is_tuple

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["has_names", "name_of", "resolve_attributes", "size_of"]


def name_of(dim: Dim) -> str | None:
    """Return the name that a dimension is, None for a size and for arithmetic."""
    if dim.is_static:
        return None
    (name, *others) = dim.symbols
    return name if not others and dim == name else None


def size_of(dim: Dim, sizes: Mapping[str, int]) -> int:
    """Return the size of a dimension.

    Raises `EngineError` if one of its names has none yet, and if it comes out as no size.
    """
    if dim.is_static:
        return int(dim)
    unknown = sorted(dim.symbols - sizes.keys())
    if unknown:
        raise EngineError(
            f"the size of `{unknown[0]}`, on which {dim} depends, is not defined",
            hint=f"add an input that has `{unknown[0]}` as a dimension",
        )
    try:
        return dim.at(sizes)
    except (ValueError, ZeroDivisionError) as error:
        known = " and ".join(f"{name} is {sizes[name]}" for name in sorted(dim.symbols))
        reason = "divides by 0" if isinstance(error, ZeroDivisionError) else "is less than 0"
        raise EngineError(f"{dim} {reason} with {known}") from error


def has_names(attributes: Mapping[str, Any]) -> bool:
    """Whether there are dimensions with names in the attributes of an operation."""
    return any(map(_has_names, attributes.values()))


def resolve_attributes(attributes: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return attributes with a number for every dimension, and a tuple of them for a shape."""
    return {key: _resolve_value(value, sizes) for key, value in attributes.items()}


def _has_names(content: Any) -> bool:
    if isinstance(content, Dim):
        return not content.is_static
    if is_list(content) or is_tuple(content) or isinstance(content, Shape):
        return any(map(_has_names, content))
    return False


def _resolve_value(content: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(content, Dim):
        return size_of(content, sizes)
    if is_list(content):
        return [_resolve_value(value, sizes) for value in content]
    if is_tuple(content) or isinstance(content, Shape):
        return tuple(_resolve_value(value, sizes) for value in content)
    return content

"""Makes JSON documents of the records that commands and Python functions return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

# The metadata of a dataclass field that a document does not have.
NOT_DOCUMENTED = {"is_documented": False}


def to_document(value: Any, spell: Callable[[float], Any] = lambda _: None) -> Any:
    """Return a value as JSON has it: records are objects, and sequences are arrays.

    The keys are the names of the fields. An empty text in a field is null; in a mapping, it stays.
    `spell` returns what stands for a number that is not finite, by default null.
    """
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else spell(value)
    members = _list_members(value)
    if members is not None:
        return {
            name: None if member == "" else to_document(member, spell)
            for name, member in members.items()
        }
    if isinstance(value, Mapping):
        given = cast("Mapping[str, Any]", value)
        return {name: to_document(member, spell) for name, member in given.items()}
    return [to_document(each, spell) for each in cast("Iterable[Any]", value)]


def _list_members(value: Any) -> dict[str, Any] | None:
    """Return the documented fields of a record; None for other values."""
    if is_dataclass(value):
        return {
            field.name: getattr(value, field.name)
            for field in fields(value)
            if field.metadata.get("is_documented", True)
        }
    as_dict: Callable[[], dict[str, Any]] | None = getattr(value, "_asdict", None)
    return None if as_dict is None else as_dict()

"""Changes the text of a JSON file, and keeps its layout and the order of its keys."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.check.findings import JsonChange

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class _Member(NamedTuple):
    """An entry of a JSON object: its key, and where the key and the value begin and end."""

    key: str
    start: int
    key_end: int
    value: int
    end: int


def change_text(text: str, changes: Iterable[JsonChange]) -> str:
    """Return the text of a JSON object with changed entries.

    A new entry is added at the end of its object, in the layout of the other entries. Only the text
    of changed entries differs. Raises `ValueError` if the text is not a JSON object.
    """
    for change in changes:
        start = _skip_space(text, 0)
        if text[start : start + 1] != "{":
            raise ValueError("the file is not a JSON object")
        text = _change(text, start, change.keys, change, 1)
    return text


def _change(text: str, start: int, keys: tuple[str, ...], change: JsonChange, depth: int) -> str:
    """Change an entry of the object whose brace is at `start`."""
    members, close = _read_members(text, start)
    key, *rest = keys
    # If a key is repeated, readers take the last value.
    found = next((each for each in reversed(members) if each.key == key), None)
    if found is not None and rest and text[found.value] == "{":
        return _change(text, found.value, tuple(rest), change, depth + 1)
    if change.removes:
        if found is None or rest:
            return text
        # If only the last one went, an earlier one would count.
        return _change(_remove(text, start, members, found, close), start, keys, change, depth)
    value = change.value
    for name in reversed(rest):
        value = {name: value}
    shown = _format_value(value, text, start, members, depth)
    if found is not None:
        return text[: found.value] + shown + text[found.end :]
    entry = f"{_format_value(key, text, start, members, depth)}{_find_colon(text, members)}{shown}"
    if not members:
        return text[: start + 1] + entry + text[close:]
    last = members[-1].end
    return text[:last] + _find_separator(text, start, members) + entry + text[last:]


def _read_members(text: str, start: int) -> tuple[list[_Member], int]:
    """Return the entries of the object whose brace is at `start`, and the place of its end."""
    members: list[_Member] = []
    place = _skip_space(text, start + 1)
    while text[place : place + 1] == '"':
        key, key_end = _DECODER.raw_decode(text, place)
        value = _skip_space(text, _skip_space(text, key_end) + 1)
        _, end = _DECODER.raw_decode(text, value)
        members.append(_Member(key, place, key_end, value, end))
        place = _skip_space(text, end)
        if text[place : place + 1] == ",":
            place = _skip_space(text, place + 1)
    return members, place


def _remove(text: str, start: int, members: list[_Member], found: _Member, close: int) -> str:
    place = members.index(found)
    if place:
        return text[: members[place - 1].end] + text[found.end :]
    if len(members) > 1:
        return text[: found.start] + text[members[1].start :]
    return text[: start + 1] + text[close:]


def _find_separator(text: str, start: int, members: list[_Member]) -> str:
    """Return what is between two entries, a comma and spaces."""
    if len(members) > 1:
        return text[members[-2].end : members[-1].start]
    return "," + (text[start + 1 : members[0].start] or " ")


def _find_colon(text: str, members: list[_Member]) -> str:
    return text[members[-1].key_end : members[-1].value] if members else ": "


def _format_value(value: Any, text: str, start: int, members: list[_Member], depth: int) -> str:
    """Return a value as JSON, indented as the entries of the object are."""
    is_ascii = text.isascii()
    lead = text[start + 1 : members[0].start] if members else ""
    if "\n" not in lead:
        return json.dumps(value, ensure_ascii=is_ascii)
    indent = lead.rpartition("\n")[2]
    unit = indent[: max(len(indent) // depth, 1)] or None
    newline = "\r\n" if "\r\n" in lead else "\n"
    shown = json.dumps(value, ensure_ascii=is_ascii, indent=unit)
    return shown.replace("\n", newline + indent)


def _skip_space(text: str, place: int) -> int:
    found = _SPACE.match(text, place)
    return place if found is None else found.end()

"""Shows the metadata of a checkpoint on the screen: `ls --meta`."""

from __future__ import annotations

import json
import struct
from math import isfinite
from typing import TYPE_CHECKING, Any

from weightctl.cli.render import (
    Cell,
    columns,
    is_terminal,
    shorten_text,
    show_table,
    show_text,
)
from weightctl.errors import WeightctlError
from weightctl.text.columns import width
from weightctl.text.untyped import is_sequence
from weightctl.text.wording import printable
from weightctl.weights.metadata import as_json, element_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

# The columns that a value takes if stdout is not a terminal, and the fewest columns on a terminal.
_ROOM = 120
_LEAST = 24


def show_metadata(metadata: Mapping[str, MetadataValue]) -> None:
    """Print each key, its type, and the part of its value that fits on a line."""
    room = _ROOM
    if metadata and is_terminal():
        keys = max(width(printable(key)) for key in metadata)
        types = max(len(value.type) for value in metadata.values())
        room = max(columns() - keys - types - 4, _LEAST)
    show_table(
        (Cell(key), Cell(value.type, "cyan"), Cell(_brief(value.type, value.content, room)))
        for key, value in metadata.items()
    )


def _brief(kind: str, content: Any, room: int) -> str:
    element = element_type(kind)
    if element is None or not is_sequence(content):
        return shorten_text(_format_value(kind, content, room), room)
    # An element takes at least one column, and its separator two.
    count = room // 3 + 1
    elements = [_brief(element, each, room) for each in content[:count]]
    if len(content) > count:
        elements.append("...")
    return shorten_text(f"[{len(content)}] {', '.join(elements)}", room)


def _format_value(kind: str, content: Any, room: int) -> str:
    if isinstance(content, str):
        # A text may have megabytes, so only the visible part is checked.
        return printable(content[: room + 1])
    if kind == "f32" and isinstance(content, float) and isfinite(content):
        return _single(content)
    return json.dumps(as_json(content)).strip('"')


def _single(number: float) -> str:
    """Return the shortest decimal that is rounded to this float32 value: 1e-05."""
    texts = (f"{number:.{digits}g}" for digits in range(6, 9))
    return next((text for text in texts if _in_32_bits(float(text)) == number), f"{number:.9g}")


def _in_32_bits(number: float) -> float:
    try:
        (rounded,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError:
        return float("inf")
    return float(rounded)


def find(metadata: Mapping[str, MetadataValue], key: str, path: str) -> MetadataValue:
    """Return the value of a key.

    Raises `WeightctlError` with similar keys as a hint if the key is missing.
    """
    if key in metadata:
        return metadata[key]
    import difflib  # only on an error

    near = difflib.get_close_matches(key, metadata, n=3)
    if near:
        hint = f"did you mean {' or '.join(f'`{each}`' for each in near)}?"
    else:
        hint = "`--meta` without a key lists all keys" if metadata else "the header has no metadata"
    raise WeightctlError(f"{path}: there is no metadata key `{key}`", hint=hint)


def show_value(value: MetadataValue) -> None:
    """Print a text unchanged, or any other value as a line of JSON."""
    content = value.content
    if not isinstance(content, str):
        show_text(json.dumps(as_json(content)) + "\n")
    elif is_terminal():
        # Line breaks and tabs are kept; other control characters are escaped.
        show_text("".join(c if c in "\n\t" else printable(c) for c in content) + "\n")
    else:
        show_text(content + "\n")

"""Compares the metadata of two checkpoints of the same format."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from weightctl.formats.huggingface import CONFIG, config
from weightctl.text.untyped import is_sequence
from weightctl.weights.metadata import MetadataValue, describe_value, element_type, text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.info import Header

# Keys that state how a checkpoint is divided into files.
_OF_PARTS = "split."
_ROOM = 40


class MetadataDifference(NamedTuple):
    """A key of the metadata, or of config.json, whose values differ between two checkpoints.

    `first` and `second` are the values as texts, shortened to about 40 characters, and None if a
    checkpoint does not have the key. If arrays differ, they are the first elements that differ.
    """

    key: str
    first: str | None
    second: str | None


def compare_metadata(first: Header, second: Header) -> tuple[MetadataDifference, ...]:
    """Return the keys that differ; none for different formats, whose keys have other names."""
    if first.format != second.format:
        return ()
    ours, theirs = _list_values(first), _list_values(second)
    if not ours or not theirs:  # a file without config.json
        return ()
    return tuple(
        MetadataDifference(key, *_describe_both(ours.get(key), theirs.get(key)))
        for key in {**ours, **theirs}
        if not key.startswith(_OF_PARTS) and ours.get(key) != theirs.get(key)
    )


def _list_values(header: Header) -> Mapping[str, MetadataValue]:
    """Return the metadata of a GGUF file, or the keys of the config.json beside other files."""
    if header.format == "gguf":
        return header.metadata
    return {f"{CONFIG}: {key}": text(json.dumps(value)) for key, value in config(header).items()}


def _describe_both(
    first: MetadataValue | None, second: MetadataValue | None
) -> tuple[str | None, str | None]:
    if first is None or second is None:
        shown = [None if each is None else describe_value(each, _ROOM) for each in (first, second)]
        return shown[0], shown[1]
    if first.content == second.content:
        return (
            f"{describe_value(first, _ROOM)} ({first.type})",
            f"{describe_value(second, _ROOM)} ({second.type})",
        )
    if not is_sequence(first.content) or not is_sequence(second.content):
        return describe_value(first, _ROOM), describe_value(second, _ROOM)
    pairs = zip_longest(first.content, second.content)
    place = next((place for place, (one, other) in enumerate(pairs) if one != other), 0)
    return _describe_element(first, place), _describe_element(second, place)


def _describe_element(array: MetadataValue, place: int) -> str:
    count = len(array.content)
    if place >= count:
        return f"[{count}]"
    kind = element_type(array.type) or array.type
    shown = describe_value(MetadataValue(kind, array.content[place]), _ROOM)
    return f"[{count}] {shown} at {place}"

"""Names of the parts of a checkpoint, and the sets that they form."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats import FORMATS
from weightctl.storage.files import list_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.formats.open.index import Index

# Suffixes that contain a dot, such as `.pth.tar`.
_LONG = "|".join(
    re.escape(suffix) for line in FORMATS.values() for suffix in line.suffixes if "." in suffix[1:]
)
_PART = re.compile(
    rf"(?P<stem>.*)-(?P<number>[0-9]{{5}})-of-(?P<count>[0-9]{{5}})(?P<suffix>(?i:{_LONG})|\.[^.]+)"
)
_LONG_SUFFIX = re.compile(rf"(?s:.+)(?P<suffix>(?i:{_LONG}))")


class PartSet(NamedTuple):
    """The files of one checkpoint, in order, and the index that lists them, if there is one."""

    format: str
    paths: tuple[str, ...]
    listed: Index | None = None
    notes: tuple[str, ...] = ()


def part_of(name: str) -> re.Match[str] | None:
    """Match the name of a part; None for other names, and if the number exceeds the count."""
    part = _PART.fullmatch(name)
    return part if part and 0 < int(part["number"]) <= int(part["count"]) else None


def is_part(path: str) -> bool:
    """Whether a path has the name of one of several parts."""
    return part_of(os.path.basename(path)) is not None


def split_suffix(name: str) -> tuple[str, str]:
    """Split the name of a file into stem and suffix; `.pth.tar` is one suffix."""
    long = _LONG_SUFFIX.fullmatch(name)
    return (
        os.path.splitext(name) if long is None else (name[: long.start("suffix")], long["suffix"])
    )


def part_name(name: str, number: int, count: int) -> str:
    """Return the name of a part; `number` starts at 0: `model-00001-of-00003.gguf`."""
    stem, suffix = split_suffix(name)
    return f"{stem}-{number + 1:05d}-of-{count:05d}{suffix}"


def set_of(part: re.Match[str]) -> Iterable[str]:
    """Return the names of all parts of a set, from the name of one part."""
    return (
        f"{part['stem']}-{number:05d}-of-{part['count']}{part['suffix']}"
        for number in range(1, int(part["count"]) + 1)
    )


def list_indexed_parts(index: Index, format_name: str) -> PartSet:
    """Return the files that an index lists."""
    directory = os.path.dirname(index.path)
    return PartSet(format_name, tuple(os.path.join(directory, name) for name in index.parts), index)


def extra_parts(index: Index) -> list[str]:
    """Return the files beside an index that are named like its parts but are not listed."""
    sets = {_set(name) for name in index.parts} - {None}
    if not sets:
        return []
    try:
        beside = list_names(os.path.dirname(index.path))
    except FormatError:  # a web server cannot be listed
        return []
    return sorted(name for name in set(beside) - set(index.parts) if _set(name) in sets)


def _set(name: str) -> tuple[str, str, str] | None:
    part = part_of(name)
    return (part["stem"], part["count"], part["suffix"]) if part else None

"""Checkpoints that are several files, and directories: which files make one checkpoint."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.formats import FORMATS, format_module, recognise, sniff
from weightctl.formats.base import SPLIT_KEYS, tied_names
from weightctl.formats.index import Index, compared, few, read_index
from weightctl.temporary import is_temporary
from weightctl.weights.mapping import MappedFile
from weightctl.weights.metadata import TEXT, Value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.weights.info import Extent, Header, TensorInfo

__all__ = ["is_part", "open_files", "part_name"]

_PART = re.compile(r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<suffix>\.[^.]+)")


class _Parts(NamedTuple):
    """The files of one checkpoint, in order, and the index that lists them, if one does."""

    format: str
    paths: tuple[str, ...]
    listed: Index | None = None
    notes: tuple[str, ...] = ()


def open_files(path: str, format_name: str | None = None) -> tuple[Header, tuple[MappedFile, ...]]:
    """Open the checkpoint at a path: a file, any part of a set, an index, or a directory.

    Raises `FormatError` where there is none, or where its parts do not fit together.
    """
    parts = _find(path, format_name)
    missing = [part for part in parts.paths if not os.path.exists(part)]
    if missing:
        names = few(os.path.basename(part) for part in missing)
        raise FormatError(
            parts.listed.path if parts.listed else path, None,
            f"{len(missing)} of {len(parts.paths)} parts are missing: {names}",
            hint="is the download complete?",
        )  # fmt: skip
    files = tuple(MappedFile(part) for part in parts.paths)
    headers = [format_module(recognise(file, parts.format)).read(file) for file in files]
    header = headers[0] if len(headers) == 1 else _merged(headers)
    if header.format == "gguf" and any(map(_is_place, header.metadata.items())):
        header = _check_split(headers, header)
    if parts.listed is not None:
        header = compared(header, parts.listed)
    return replace(header, notes=(*parts.notes, *header.notes)), files


def _find(path: str, format_name: str | None) -> _Parts:
    if os.path.isdir(path):
        return _find_in_directory(path, format_name)
    for name, line in FORMATS.items():
        if line.index_suffix is not None and path.endswith(line.index_suffix):
            if format_name not in {None, name}:
                raise FormatError(
                    path, None, f"it is an index of {name} files",
                    hint=f"leave out --from, or say --from {name}",
                )  # fmt: skip
            return _parts_of(read_index(path), name)
    _require_there(path)
    file = MappedFile(path)
    found = recognise(file, format_name)
    directory, base = os.path.split(path)
    part = _part(base)
    if part is None:
        return _Parts(found, (path,))
    index = FORMATS[found].index_suffix
    if index is not None:
        beside = os.path.join(directory, part["stem"] + index)
        listed = read_index(beside) if os.path.exists(beside) else None
        if listed is not None and base in listed.parts:
            return _parts_of(listed, found)
    return _Parts(found, tuple(os.path.join(directory, name) for name in _set_of(part)))


def _require_there(path: str) -> None:
    if path == "-":
        raise FormatError(path, None, "stdin cannot be read", hint="name a file or a directory")
    directory, base = os.path.split(path)
    if os.path.lexists(path) or not os.path.isdir(directory or "."):
        return
    stem, suffix = os.path.splitext(base)
    for name in sorted(os.listdir(directory or ".")):
        part = _part(name)
        if part and (part["stem"], part["suffix"]) == (stem, suffix):
            raise FormatError(
                path, None, "No such file or directory",
                hint=f"did you mean {os.path.join(directory, name)}?",
            )  # fmt: skip


def _parts_of(index: Index, format_name: str) -> _Parts:
    directory = os.path.dirname(index.path)
    return _Parts(format_name, tuple(os.path.join(directory, name) for name in index.parts), index)


def _part(name: str) -> re.Match[str] | None:
    """Match the name of a part; one that counts beyond its set is a name like any other."""
    part = _PART.fullmatch(name)
    return part if part and 0 < int(part["number"]) <= int(part["count"]) else None


def is_part(path: str) -> bool:
    """Whether a path has the name of one of several parts."""
    return _part(os.path.basename(path)) is not None


def part_name(name: str, number: int, count: int) -> str:
    """Return what part `number`, from 0 on, of `count` is called: `model-00001-of-00003.gguf`."""
    stem, suffix = os.path.splitext(name)
    return f"{stem}-{number + 1:05d}-of-{count:05d}{suffix}"


def _set_of(part: re.Match[str]) -> Iterable[str]:
    return (
        f"{part['stem']}-{number:05d}-of-{part['count']}{part['suffix']}"
        for number in range(1, int(part["count"]) + 1)
    )


def _find_in_directory(directory: str, format_name: str | None) -> _Parts:
    """Choose the checkpoint in a directory.

    The first format of the table that is there; of that, the one index, else `model` with the
    format's suffix, else the only file or the only set of parts.
    """
    try:
        names = sorted(name for name in os.listdir(directory) if not is_temporary(name))
    except OSError as error:
        raise FormatError(directory, None, error.strerror or str(error)) from error
    by_format: dict[str, list[str]] = {}
    for name in names:
        found = _format_of(os.path.join(directory, name))
        if found is not None:
            by_format.setdefault(found, []).append(name)
    wanted = [format_name] if format_name else [name for name in FORMATS if name in by_format]
    if not wanted or wanted[0] not in by_format:
        what = f"no {format_name} file" if format_name else "no checkpoint"
        raise FormatError(
            directory, None, f"the directory holds {what} that weightctl reads",
            hint=f"name a file; formats: {', '.join(FORMATS)}",
        )  # fmt: skip
    chosen = wanted[0]
    others = [name for name in by_format if name != chosen]
    notes = (
        (
            f"{directory} holds {chosen} and {' and '.join(others)}; {chosen} is read",
            f"--from {others[0]} reads the other",
        )
        if others and format_name is None
        else ()
    )
    return _choose(directory, chosen, by_format[chosen])._replace(notes=notes)


def _format_of(path: str) -> str | None:
    for name, line in FORMATS.items():
        if line.index_suffix is not None and path.endswith(line.index_suffix):
            return name
    if not os.path.isfile(path):
        return None
    try:
        return sniff(MappedFile(path))
    except FormatError:
        return None


def _choose(directory: str, format_name: str, names: list[str]) -> _Parts:
    line = FORMATS[format_name]
    indexes = [name for name in names if name.endswith(line.index_suffix or "/")]
    if len(indexes) == 1:
        return _parts_of(read_index(os.path.join(directory, indexes[0])), format_name)
    checkpoints: dict[str, tuple[str, ...]] = {}
    for name in names:
        if name in indexes:
            continue
        part = _part(name)
        key = name if part is None else f"{part['stem']}-*-of-{part['count']}{part['suffix']}"
        checkpoints[key] = (name,) if part is None else tuple(_set_of(part))
    if len(checkpoints) == 1 and not indexes:
        (chosen,) = checkpoints.values()
    elif line.in_directory in checkpoints:
        chosen = checkpoints[line.in_directory]
    else:
        several = ", ".join([*indexes, *checkpoints])
        raise FormatError(
            directory, None, f"the directory holds several {format_name} checkpoints: {several}",
            hint="name one of them",
        )  # fmt: skip
    return _Parts(format_name, tuple(os.path.join(directory, name) for name in chosen))


def _merged(headers: list[Header]) -> Header:
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    metadata: dict[str, Value] = {}
    for number, header in enumerate(headers):
        for name, info in header.tensors.items():
            if name in tensors:
                raise FormatError(
                    header.files[0], None,
                    f"`{name}` is also in {headers[extents[name].file].files[0]}",
                    hint="the parts do not belong together",
                )  # fmt: skip
            tensors[name] = info
            extents[name] = header.extents[name]._replace(file=number)
        if header.big_endian != headers[0].big_endian:
            raise FormatError(
                header.files[0], None, "the parts are of different byte orders",
                hint="the parts do not belong together",
            )  # fmt: skip
        # The first says it in its order; a later one only adds.
        for key, value in header.metadata.items():
            metadata.setdefault(key, value)
    return replace(
        headers[0],
        files=tuple(header.files[0] for header in headers),
        tensors=tensors,
        extents=extents,
        metadata=metadata,
        aliases=tied_names(metadata, tensors),
        notes=tuple(note for header in headers for note in header.notes),
    )


def _is_place(entry: tuple[str, Value]) -> bool:
    # A text of that name is from a safetensors header, and says nothing of this file.
    return entry[0] in SPLIT_KEYS and entry[1].type != TEXT


def _check_split(headers: list[Header], merged: Header) -> Header:
    """Compare what each part of a split GGUF says of its place; drop those keys from the whole."""
    for number, header in enumerate(headers):
        says = [header.metadata.get(key) for key in SPLIT_KEYS]
        expected = [number, len(headers), len(merged.tensors)]
        for key, value, right in zip(SPLIT_KEYS, says, expected, strict=True):
            if value is None or value.content != right:
                raise FormatError(
                    header.files[0], None,
                    f"`{key}` is {value.content if value else 'missing'}, where {right} belongs",
                    hint="the parts do not belong together, or this is one of several and was "
                    "renamed: parts are called NAME-00001-of-00003.gguf",
                )  # fmt: skip
    metadata = {key: value for key, value in merged.metadata.items() if key not in SPLIT_KEYS}
    return replace(merged, metadata=metadata)

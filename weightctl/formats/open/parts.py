"""Checkpoints of one or several files: which files are at a path, and whether they are complete."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.errors import FormatError, MissingFileError
from weightctl.formats import (
    INDEX_SUFFIX,
    added_formats,
    find_format,
    format_by_index,
    format_by_suffix,
    format_module,
    has_suffix_of,
)
from weightctl.formats.base import LEVELS_KEY, SPLIT_KEYS, tied_names
from weightctl.formats.open.directory import find_in_directory
from weightctl.formats.open.index import (
    disagreements,
    few,
    merge_index,
    read_index,
    without_superseded,
)
from weightctl.formats.open.sets import (
    PartSet,
    extra_parts,
    is_part,
    list_indexed_parts,
    part_name,
    part_of,
    set_of,
    split_suffix,
)
from weightctl.formats.recognition import recognize_format
from weightctl.formats.replacement_record import switch_of
from weightctl.storage.files import (
    exists,
    is_directory,
    is_pending,
    list_names,
    open_reader,
    prepare,
)
from weightctl.storage.location import parse_location
from weightctl.system.files import SEPARATORS
from weightctl.system.phases import begin_phase
from weightctl.system.processes import without_collection
from weightctl.system.registry import load
from weightctl.system.temporary import asides_of
from weightctl.text.wording import say_more
from weightctl.weights.metadata import TEXT, MetadataValue

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.info import Extent, Header, Leaf, TensorInfo

_UNRELATED = "the parts belong to different checkpoints"
__all__ = ["is_part", "open_files", "part_name"]

_JSON = ".json"
_MANY = 1000
_MOST_REASONS = 3
_LONGEST_REASON = 200
_ASIDE = (
    "the run that was replacing {} was stopped, so the old files are read; run the same command "
    "again to replace them"
)
_PARTIAL = "To convert the parts that exist, use --partial (partial=True in Python)"
_UNLISTED = (
    "If the tensors belong to the model, `weightctl check {} --fix` adds them to the index; if "
    "not, move their file away"
)
_VERSIONS = "check that the download is complete and that all parts belong to the same version"


@without_collection()
def open_files(
    path: str, format_name: str | None = None, *, partial: bool = False
) -> tuple[Header, tuple[Reader, ...]]:
    """Open the checkpoint at a path: a file, any part of a set, an index, or a directory.

    With `partial`, parts can be missing; a note lists them. Raises `FormatError` if there is no
    checkpoint; the error lists all problems of the parts.
    """
    parts = _find(path, format_name)
    prepare(parts.paths)
    missing = _missing(parts.paths)
    # If a run that replaces the set was stopped, its files are in two places.
    is_partial = (
        partial
        and len(missing) < len(parts.paths)
        and not any(map(asides_of, missing[:_MOST_REASONS]))
    )
    opened, headers = _read(path, parts, missing, is_partial=is_partial)
    gone = set(missing)
    absent = {number for number, part in enumerate(parts.paths) if part in gone}
    header = merge_headers(headers, absent)
    if absent:
        header = header._replace(missing=tuple(map(os.path.basename, missing)))
        parts = parts._replace(notes=(*parts.notes, _describe_missing(parts.paths, absent)))
    if parts.listed is not None:
        header = merge_index(header, parts.listed)
    if LEVELS_KEY in header.metadata and not header.leaves:
        from weightctl.formats.pytorch.nesting import with_leaves

        header = with_leaves(header)
    notes = (*parts.notes, *_odd_names(parts), *header.notes)
    return header._replace(notes=notes), opened


def _find(path: str, format_name: str | None) -> PartSet:
    if is_directory(path):
        return find_in_directory(path, format_name)
    found = _find_unsettled(path, format_name)
    return _find_files(path, format_name) if found is None else found


def _find_unsettled(path: str, format_name: str | None) -> PartSet | None:
    """Return the files at a path whose replacement is running or was stopped; else None."""
    if (switch := switch_of(path)) is not None:
        parts = switch.parts()
        recognize_format(open_reader(parts.paths[0]), format_name)
        return parts
    stem = path.rstrip(SEPARATORS)
    aside = None if os.path.lexists(stem) else next(filter(os.path.isdir, asides_of(stem)), None)
    if aside is None:
        return None
    parts = find_in_directory(aside, format_name)
    return parts._replace(notes=(_ASIDE.format(path), *parts.notes))


def _find_files(path: str, format_name: str | None) -> PartSet:
    listing = format_by_index(path)
    if listing is not None:
        if format_name not in {None, listing}:
            raise FormatError(
                path,
                None,
                f"it is an index of {listing} files, not of {format_name} files",
                hint="leave out --from (source_format or format_name in Python), or use --from "
                f"{listing}",
            )
        return list_indexed_parts(read_index(path), listing)
    _require_there(path)
    added = _list_added_parts(path, format_name) if path.endswith(_JSON) else None
    if added is not None:
        return added
    found = recognize_format(open_reader(path), format_name)
    directory, base = os.path.split(path)
    part = part_of(base)
    if part is None:
        return PartSet(found, (path,))
    if find_format(found).has_index:
        beside = os.path.join(directory, part["stem"] + part["suffix"] + INDEX_SUFFIX)
        listed = read_index(beside) if exists(beside) else None
        if listed is not None and base in {*listed.parts, *extra_parts(listed)}:
            return list_indexed_parts(listed, found)
    return PartSet(found, tuple(os.path.join(directory, name) for name in set_of(part)))


def _list_added_parts(path: str, format_name: str | None) -> PartSet | None:
    """Return the files that a list in the format of a package names; None for other files."""
    for name, line in added_formats().items():
        is_list = line.list_suffix and path.endswith(line.list_suffix)
        if is_list and format_name in {None, name}:
            return PartSet(name, load(line.list_parts)(path))
    return None


# Web servers do not list directories.
_NOT_LISTED = {"http", "https"}


def _require_there(path: str) -> None:
    if path == "-":
        raise FormatError(
            path,
            None,
            "reading from stdin is not supported",
            hint="use the path of a file or a directory",
        )
    directory, base = os.path.split(path)
    if parse_location(path).scheme in _NOT_LISTED:
        return
    if exists(path) or not is_directory(directory or "."):
        return
    stem, suffix = split_suffix(base)
    for name in list_names(directory):
        part = part_of(name)
        if part and (part["stem"], part["suffix"]) == (stem, suffix):
            raise MissingFileError(
                path, None, "No such file or directory",
                hint=f"did you mean {os.path.join(directory, name)}?",
            )  # fmt: skip


def _describe_missing(paths: Sequence[str], absent: Collection[int]) -> str:
    """Return a note that lists the missing parts of a set; `absent` are their indices."""
    names = few(os.path.basename(paths[number]) for number in sorted(absent))
    if len(paths) - len(absent) > 1:
        verb = "is" if len(absent) == 1 else "are"
        return f"{len(absent)} of {len(paths)} parts {verb} missing: {names}"
    (number,) = (number for number in range(len(paths)) if number not in absent)
    part = part_of(os.path.basename(paths[number]))
    place = int(part["number"]) if part else number + 1
    others = "the other parts are" if len(absent) > 1 else "the other part is"
    return f"part {place} of {len(paths)}; {others} missing: {names}"


def _read(
    path: str, parts: PartSet, missing: Sequence[str], *, is_partial: bool
) -> tuple[tuple[Reader, ...], list[Header]]:
    """Open all parts and read their headers; one error lists all problems."""
    opened: list[Reader] = []
    headers: dict[str, Header] = {}
    failures: list[FormatError] = []
    gone = set(missing)
    prepare([part for part in parts.paths if part not in gone])
    for number, part in enumerate(parts.paths, 1):
        if part in gone:
            continue
        begin_phase(f"reading header {number} of {len(parts.paths)}")
        try:
            file = open_reader(part)
            found = format_module(recognize_format(file, parts.format))
            headers[os.path.basename(part)] = found.read(file)
            opened.append(file)
        except FormatError as error:
            failures.append(error)
    problems: list[str] = []
    if missing and not is_partial:
        names = few(os.path.basename(part) for part in missing)
        are = "is" if len(missing) == 1 else "are"
        problems.append(f"{len(missing)} of {len(parts.paths)} parts {are} missing: {names}")
    problems += _reasons(failures, parts.format)
    if parts.listed is not None:
        extra = extra_parts(parts.listed)
        if extra:
            are = "1 file is" if len(extra) == 1 else f"{len(extra)} files are"
            problems.append(f"{are} named like parts, but not in the index ({few(extra)})")
        headers = without_superseded(parts.listed, headers)
        problems += disagreements(parts.listed, headers)
    if problems:
        raise _error(path, parts, problems, failures, missing)
    return tuple(opened), list(headers.values())


def _missing(paths: Sequence[str]) -> list[str]:
    """Return the paths of missing files; all paths are in one directory."""
    if len(paths) > _MANY:  # a name can claim 99999 parts, and each check takes time
        there = set(list_names(os.path.dirname(paths[0])))
        return [path for path in paths if os.path.basename(path) not in there]
    return [path for path in paths if not exists(path)]


def _error(
    path: str,
    parts: PartSet,
    problems: Sequence[str],
    failures: Sequence[FormatError],
    missing: Sequence[str],
) -> FormatError:
    if len(problems) == len(failures) == 1:
        return failures[0]
    where = parts.listed.path if parts.listed else path
    hints = {failure.hint for failure in failures}
    are_unread = len(problems) == len(_reasons(failures, parts.format))
    are_alike = are_unread and len(hints) == 1
    are_wrong = "the index and its parts do not match"
    if are_unread or parts.listed is None:
        are_wrong = "the set of parts is not complete"
    message = problems[0] if missing else f"{are_wrong}: {problems[0]}"
    if len(problems) > 1:
        message = "\n  ".join([f"{are_wrong}:", *problems])
    hint = hints.pop() if are_alike else _VERSIONS
    if len(problems) == 1 and 0 < len(missing) < len(parts.paths):
        hint = f"{_VERSIONS}. {_PARTIAL}"
    elif parts.listed is not None and all("not in the index" in each for each in problems):
        hint = f"{_VERSIONS}. {_UNLISTED.format(os.path.dirname(parts.listed.path) or '.')}"
    if any(map(asides_of, missing[:_MOST_REASONS])):
        hint = (
            "the run that was replacing these files was stopped; run the same `weightctl convert` "
            "command again"
        )
    return FormatError(where, None, message, hint=hint)


def _reasons(failures: Sequence[FormatError], format_name: str) -> list[str]:
    """Return why parts cannot be read, one line for all parts with the same reason."""
    alike: dict[str, list[tuple[str, str]]] = {}
    for failure in failures:
        reason = failure.message.removeprefix(failure.path)
        reason = reason.replace(f": not a {format_name} file: ", ": ", 1)
        base = os.path.basename(failure.path)
        # The text after the comma is specific to one file, such as its size.
        alike.setdefault(reason.split(",")[0] or f"{base}{reason}", []).append((base, reason))
    reasons = [
        f"{few(base for base, _ in group)} ({len(group)} parts){kind}"
        if len(group) > 1
        else _short("".join(group[0]))
        for kind, group in alike.items()
    ]
    if len(reasons) > _MOST_REASONS:
        more = f"{len(reasons) - _MOST_REASONS} more parts that cannot be read"
        reasons[_MOST_REASONS:] = [more]
    return reasons


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 1] + "…"


def _odd_names(parts: PartSet) -> Iterator[str]:
    """Yield notes on suffixes of another format, and on unfinished downloads."""
    odd = [
        path
        for path in parts.paths
        if not has_suffix_of(path, parts.format) and format_by_suffix(path) is not None
    ]
    if odd:
        base = os.path.basename(odd[0])
        others = f" {say_more(len(odd) - 1)} are" if len(odd) > 1 else " is"
        its = "their suffixes" if len(odd) > 1 else "its suffix"
        yield f"{base}{others} in {parts.format} format despite {its}"
    if edited := [path for path in parts.paths if is_pending(path)]:
        base = os.path.basename(edited[0])
        yield (
            f"the run that is editing {base} has not finished: the edited file is read; if the run "
            f"was stopped, `weightctl edit {edited[0]}` finishes it"
        )
    for path in parts.paths:
        if exists(path + ".aria2"):
            base = os.path.basename(path)
            yield f"{base}.aria2 shows that the download of {base} is not complete"


def merge_headers(headers: Sequence[Header], missing: Collection[int] = ()) -> Header:
    """Merge the headers of all parts, in order; raises `FormatError` if they contradict each other.

    `missing` are the indices of missing parts, which have no header here.
    """
    header = headers[0] if len(headers) == 1 else _merge_several(headers)
    if header.format == "gguf" and any(map(_is_place, header.metadata.items())):
        return _check_split(headers, header, missing)
    return header


def _merge_several(headers: Sequence[Header]) -> Header:
    tensors: dict[str, TensorInfo] = {}
    extents: dict[str, Extent] = {}
    metadata: dict[str, MetadataValue] = {}
    aliases: dict[str, str] = {}
    leaves: dict[str, Leaf] = {}
    for number, header in enumerate(headers):
        for name, info in header.tensors.items():
            if name in tensors:
                raise FormatError(
                    header.files[0], None,
                    f"`{name}` is also in {headers[extents[name].file].files[0]}",
                    hint=_UNRELATED,
                )  # fmt: skip
            tensors[name] = info
            extents[name] = header.extents[name]._replace(file=number)
        if header.big_endian != headers[0].big_endian:
            raise FormatError(
                header.files[0], None, "the parts have different byte orders", hint=_UNRELATED
            )
        # The metadata of the first part determines the order; later parts only add keys.
        for key, value in header.metadata.items():
            metadata.setdefault(key, value)
        for name, other in header.aliases.items():
            aliases.setdefault(name, other)
        for name, leaf in header.leaves.items():
            leaves.setdefault(name, leaf)
    aliases = {**tied_names(metadata, tensors), **aliases}
    return headers[0]._replace(
        files=tuple(header.files[0] for header in headers),
        tensors=tensors,
        extents=extents,
        metadata=metadata,
        # A name that is a tensor in one part is a tensor in the whole checkpoint.
        aliases={name: other for name, other in aliases.items() if name not in tensors},
        leaves={
            name: leaf
            for name, leaf in leaves.items()
            if name not in tensors and name not in aliases
        },
        notes=tuple(note for header in headers for note in header.notes),
        warnings=tuple(text for header in headers for text in header.warnings),
    )


def _is_place(entry: tuple[str, MetadataValue]) -> bool:
    # A text with such a key is from a safetensors header, and does not describe this file.
    return entry[0] in SPLIT_KEYS and entry[1].type != TEXT


def _check_split(headers: Sequence[Header], whole: Header, missing: Collection[int]) -> Header:
    """Check the positions that parts of a split GGUF state; return `whole` without these keys."""
    count = len(headers) + len(missing)
    numbers = (number for number in range(count) if number not in missing)
    for number, header in zip(numbers, headers, strict=True):
        says = [header.metadata.get(key) for key in SPLIT_KEYS]
        expected = [number, count, None if missing else len(whole.tensors)]
        for key, value, right in zip(SPLIT_KEYS, says, expected, strict=True):
            if right is not None and (value is None or value.content != right):
                raise FormatError(
                    header.files[0],
                    None,
                    f"`{key}` is {value.content if value else 'missing'}, but {right} is expected",
                    hint=f"{_UNRELATED}, or this is a renamed part of a set; parts are named "
                    "NAME-00001-of-00003.gguf",
                )
    metadata = {key: value for key, value in whole.metadata.items() if key not in SPLIT_KEYS}
    return whole._replace(metadata=metadata)

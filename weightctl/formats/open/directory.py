"""Finding the checkpoint in a directory."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats import (
    find_format,
    format_by_index,
    format_by_suffix,
    is_named_as_any,
    list_preferred,
    sort_formats,
)
from weightctl.formats.open.index import few, read_index
from weightctl.formats.open.sets import PartSet, list_indexed_parts, part_of, set_of
from weightctl.formats.recognition import sniff_added, sniff_own
from weightctl.formats.replacement_record import is_switch, read_switch
from weightctl.storage.files import is_directory, is_file, list_names, open_reader, prepare
from weightctl.storage.location import is_remote
from weightctl.system.temporary import is_temporary, without_temporary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.formats.replacement_record import Switch
    from weightctl.storage.base import Reader

# Suffixes that checkpoints do not have; a directory can contain megabytes of such files.
_TEXTS = (".json", ".txt", ".md", ".py", ".jinja")
# Usual files beside weights, about which no package is asked if there are weights.
_BESIDE = re.compile(
    r"(LICEN[CS]E|NOTICE|USE_POLICY)[^/]*|\.[^/]*|[^/]+\.(model|ya?ml|png|jpg|ipynb)|"
    r"[^/]+\.(json|txt|md|py|jinja)",
    re.IGNORECASE,
)
# Files that trainers write beside the weights, in the format of a checkpoint.
_LEFT_BESIDE = re.compile(
    r"(training_args|optimizer|scheduler|scaler|rng_state(_\d+)?|random_states_\d+)\.\w+"
)


def find_in_directory(directory: str, format_name: str | None) -> PartSet:
    """Choose the checkpoint in a directory; raises `FormatError` if there is none, or several.

    The format is `format_name`, or the preferred one of those that the directory contains. The
    checkpoint is the only index of this format; else the only file or set of parts; else the file
    with the usual name, such as `model.safetensors`.
    """
    try:
        there = list_names(directory)
    except OSError as error:
        raise FormatError(directory, None, error.strerror or str(error)) from error
    # The record of an unfinished replacement represents all the files that it names.
    switches = [name for name in there if is_switch(name)]
    gone = {each for name in switches for each in _switch_in(directory, name).names}
    names = [name for name in there if not is_temporary(name) and name not in gone]
    by_format = _by_format(directory, [*names, *switches])
    wanted = [format_name] if format_name else sort_formats(by_format)
    if not wanted or wanted[0] not in by_format:
        from weightctl.formats.identify.directories import nothing_in

        raise nothing_in(directory, names, by_format, format_name)
    chosen = wanted[0]
    parts = _choose(directory, chosen, by_format[chosen])
    notes = _describe_passed_over(directory, names, by_format, chosen, format_name)
    others = [name for name in by_format if name != chosen]
    if others and format_name is None:
        notes = (
            (
                f"{directory} contains {chosen} and {' and '.join(others)} checkpoints; "
                f"{chosen} is read"
            ),
            (
                f"to read the other one, use --from {others[0]} (source_format or format_name "
                "in Python)"
            ),
            *notes,
        )
    return parts._replace(notes=(*parts.notes, *notes))


def _switch_in(directory: str, name: str) -> Switch:
    return read_switch(os.path.join(directory, name))


def _by_format(directory: str, names: Sequence[str]) -> dict[str, list[str]]:
    by_format: dict[str, list[str]] = {}
    if is_remote(directory):
        # Each other file would need a request, so it is only examined if there is nothing else.
        names = [name for name in names if _is_named_so(name)] or names
        prepare([os.path.join(directory, name) for name in names if format_by_suffix(name)])
    found = {name: _format_of(os.path.join(directory, name), sniff_own) for name in names}
    has_any = any(found.values())
    for name in names:
        # To look for formats of packages takes time, which a usual model directory does not cost.
        if found[name] is None and not (has_any and _BESIDE.fullmatch(name)):
            found[name] = _format_of(os.path.join(directory, name), sniff_added)
        if known := found[name]:
            by_format.setdefault(known, []).append(name)
    weights = {
        found: kept
        for found, names in by_format.items()
        if (kept := [name for name in names if not _LEFT_BESIDE.fullmatch(name)])
    }
    return weights or by_format


def _is_named_so(name: str) -> bool:
    """Whether a file has the name of a checkpoint, of an index, or of a record of a replacement."""
    is_checkpoint = format_by_suffix(name) is not None or format_by_index(name) is not None
    return is_checkpoint or is_switch(name)


def _format_of(path: str, sniff: Callable[[Reader], str | None]) -> str | None:
    if is_switch(path):
        return read_switch(path).parts().format
    listing = format_by_index(path)
    if listing is not None:
        return listing
    if path.lower().endswith(_TEXTS) or not is_file(path):
        return None
    try:
        return sniff(open_reader(path))
    except FormatError:
        # If access to one remote file is denied, it is denied to all files of the model.
        if is_remote(path):
            raise
        return None


def _describe_passed_over(
    directory: str,
    names: Sequence[str],
    by_format: Mapping[str, Sequence[str]],
    chosen: str,
    format_name: str | None,
) -> tuple[str, ...]:
    """Return a note on files that would have been chosen if they had the format of their suffix."""
    before = frozenset({format_name}) if format_name else list_preferred(chosen)
    known = {name for group in by_format.values() for name in group}
    odd = [
        name
        for name in names
        if name not in known
        and is_named_as_any(name, before)
        and not _LEFT_BESIDE.fullmatch(name)
        and not is_directory(os.path.join(directory, name))
    ]
    if not odd:
        return ()
    from weightctl.formats.identify.directories import reason

    are = "is" if len(odd) == 1 else "are"
    return (f"{few(odd)} {are} not read: {reason(os.path.join(directory, odd[0])).message}",)


def _choose(directory: str, format_name: str, names: Sequence[str]) -> PartSet:
    line = find_format(format_name)
    indexes = [name for name in names if _leads_by_index(directory, name)]
    if len(indexes) == 1:
        return _set_of_index(os.path.join(directory, indexes[0]), format_name)
    checkpoints: dict[str, PartSet] = {}
    for name in names:
        if name in indexes:
            continue
        part = part_of(name)
        members = (name,) if part is None else tuple(set_of(part))
        key = name if part is None else f"{part['stem']}-*-of-{part['count']}{part['suffix']}"
        if is_switch(name):
            checkpoints[without_temporary(name)] = _switch_in(directory, name).parts()
        else:
            paths = tuple(os.path.join(directory, member) for member in members)
            checkpoints[key] = PartSet(format_name, paths)
    if len(checkpoints) == 1 and not indexes:
        return next(iter(checkpoints.values()))
    if line.in_directory in checkpoints:
        return checkpoints[line.in_directory]
    several = ", ".join([*indexes, *checkpoints])
    raise FormatError(
        directory,
        None,
        f"the directory contains several {format_name} checkpoints: {several}",
        hint="give the path of one of them",
    )


def _leads_by_index(directory: str, name: str) -> bool:
    if is_switch(name):
        name = _switch_in(directory, name).leading
    return format_by_index(name) is not None


def _set_of_index(path: str, format_name: str) -> PartSet:
    return (
        read_switch(path).parts()
        if is_switch(path)
        else list_indexed_parts(read_index(path), format_name)
    )

"""Tells a wrong path from a damaged checkpoint."""

from __future__ import annotations

import os

from weightctl.errors import FormatError
from weightctl.formats import format_by_index, format_by_suffix
from weightctl.storage.files import is_directory, list_names, open_reader
from weightctl.storage.location import is_remote
from weightctl.verify.request import Subject


def require_there(subject: Subject) -> None:
    """Raise the error of opening a checkpoint if its path or format is probably a mistake.

    Other errors are problems of the checkpoint itself.
    """
    damage = subject.damage
    if damage is None:
        return
    is_unread = damage.path == subject.path and isinstance(damage.__cause__, OSError)
    # A checkpoint that cannot be reached is an error, and not a problem of the checkpoint.
    is_unread |= is_remote(damage.path) and not _is_readable(damage.path)
    if is_unread or _is_mistaken(subject, damage):
        raise damage


def _is_readable(path: str) -> bool:
    try:
        return is_directory(path) or bool(open_reader(path).path)
    except FormatError:
        return False


def _is_mistaken(subject: Subject, damage: FormatError) -> bool:
    """Whether the path or the format is wrong, rather than a file of weights damaged."""
    path = subject.path
    if subject.format_name is not None and Subject(path).damage is None:
        return True
    if not is_directory(damage.path):
        # The JSON files in a model's directory, except indexes, do not contain weights.
        return damage.path == path and path.endswith(".json") and format_by_index(path) is None
    named = [name for name in list_names(damage.path) if format_by_suffix(name)]
    return all(Subject(os.path.join(damage.path, name)).damage is None for name in named)

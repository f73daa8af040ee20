"""Finding and opening of sharded checkpoints."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.storage.files import is_directory, is_file, open_reader
from weightctl.storage.location import absolute
from weightctl.system.processes import without_collection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.formats.sharded.gathered import GatheredSource

# The name of the manifest, beside the files or directories of the ranks.
MANIFEST = "manifest.json"
_BEGINNING = rb'\s*\{\s*"weightctl_shards"\s*:'
_RANK_DIRECTORY = r"rank-[0-9]+"
_RANK_FILE = r"model-rank-[0-9]+-part-[0-9]+\."


def is_manifest(path: str) -> bool:
    """Whether a file begins like the manifest of a sharded checkpoint."""
    try:
        return re.match(_BEGINNING, open_reader(path).read(0, 256)) is not None
    except FormatError:
        return False


def manifest_at(path: str) -> str | None:
    """Return the path of the manifest at a path, or in a directory; None if there is none."""
    where = os.path.join(path, MANIFEST) if is_directory(path) else path
    is_one = where.endswith(".json") and is_file(where) and is_manifest(where)
    return where if is_one else None


def find_whole(files: Sequence[str]) -> str:
    """Return the sharded checkpoint that a rank's file belongs to; empty for other files."""
    if len(files) != 1:
        return ""
    directory, name = os.path.split(absolute(files[0]))
    above, rank = os.path.split(directory)
    wholes = [above] * bool(re.fullmatch(_RANK_DIRECTORY, rank))
    wholes += [directory] * bool(re.match(_RANK_FILE, name))
    for whole in wholes:
        listing = os.path.join(whole, MANIFEST)
        if is_file(listing) and is_manifest(listing):
            return whole
    return ""


def note_of_part(files: Sequence[str]) -> str:
    """Return a note for a file that belongs to one rank; empty for other files."""
    whole = find_whole(files)
    if not whole:
        return ""
    return f"this file has only the tensors of one rank; open {whole} for the whole checkpoint"


def open_sharded(listing: str, format_name: str | None = None) -> GatheredSource:
    """Open the set of a manifest; the headers of all ranks are read.

    Raises `FormatError`, which names what is missing or differs from the manifest.
    """
    from weightctl.formats.sharded.reading import read_ranks  # not for other checkpoints

    with without_collection():
        return read_ranks(listing, format_name)

"""Opens a sharded checkpoint by its manifest, and says what of its files is not as that says."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats import format_module
from weightctl.formats.open.collection import without_collection
from weightctl.formats.recognition import recognise
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.formats.sharded.manifest import is_manifest, read_manifest
from weightctl.formats.sharded.record import MANIFEST
from weightctl.storage.location import open_reader
from weightctl.system.phases import begin_phase
from weightctl.text.wording import list_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.formats.sharded.record import Manifest, RankFile
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header, TensorInfo

__all__ = ["find_whole", "manifest_at", "note_of_part", "open_sharded"]

_MOST_NAMED = 5
_RANK_DIRECTORY = re.compile(r"rank-\d+", re.ASCII)
_RANK_FILE = re.compile(r"model-rank-\d+-part-\d+\.", re.ASCII)
_HINT = (
    "check that all ranks are from one run and that the copy is complete; `weightctl "
    "shard` writes them again"
)


def manifest_at(path: str) -> str | None:
    """Return the path of the manifest that a path means: itself, or that of its directory."""
    where = os.path.join(path, MANIFEST) if os.path.isdir(path) else path
    is_one = where.endswith(".json") and os.path.isfile(where) and is_manifest(where)
    return where if is_one else None


def find_whole(files: Sequence[str]) -> str:
    """Return the sharded checkpoint that a rank's file belongs to; empty for other files."""
    if len(files) != 1:
        return ""
    path = os.path.abspath(files[0])
    directory, name = os.path.split(path)
    above, rank = os.path.split(directory)
    wholes = [above] * bool(_RANK_DIRECTORY.fullmatch(rank))
    wholes += [directory] * bool(_RANK_FILE.match(name))
    for whole in wholes:
        listing = os.path.join(whole, MANIFEST)
        if os.path.isfile(listing) and is_manifest(listing):
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

    Raises `FormatError` that names what is missing, or other than the manifest says.
    """
    with without_collection():
        return _open_ranks(listing, format_name)


def _open_ranks(listing: str, format_name: str | None) -> GatheredSource:
    manifest = read_manifest(listing)
    if format_name not in {None, manifest.format}:
        raise FormatError(
            listing,
            None,
            f"the shards are {manifest.format} files, not {format_name}",
            hint="leave out --from (source_format or format_name in Python), or use --from "
            f"{manifest.format}",
        )
    if not all(shard.sha256 for file in manifest.files for shard in file.shards):
        raise FormatError(
            listing,
            None,
            "the sharded checkpoint is incomplete: the run that wrote it was stopped",
            hint="run the same `weightctl shard` command again to complete it",
        )
    files: list[Reader] = []
    ranks: list[Header] = []
    problems: list[str] = []
    failures: list[FormatError] = []
    for rank, stated in enumerate(manifest.files):
        path = os.path.join(os.path.dirname(listing), stated.path)
        place = f"rank {rank}: {stated.path}"
        begin_phase(f"reading header {rank + 1} of {len(manifest.files)}")
        try:
            file, header = _read(path, manifest)
        except FormatError as error:
            failures.append(error)
            problems.append(
                f"{place}: {error.reason}" if os.path.lexists(path) else f"{place} is missing"
            )
            continue
        files.append(file)
        ranks.append(header)
        problems += (f"{place}: {text}" for text in _differences(stated, header))
    if problems:
        raise _error(listing, problems, failures)
    return GatheredSource(manifest, listing, ranks, files)


def _read(path: str, manifest: Manifest) -> tuple[Reader, Header]:
    file = open_reader(path)
    header = format_module(recognise(file, manifest.format)).read(file)
    if header.big_endian:
        raise FormatError(
            path,
            None,
            "the file is big-endian, but files of sharded checkpoints are always little-endian",
            hint="the file was replaced or damaged: shard the model again",
        )
    return file, header


def _differences(stated: RankFile, header: Header) -> Iterator[str]:
    """Yield how the tensors of a rank's file differ from those that it should have."""
    wanted = {shard.info.name: shard.info for shard in stated.shards}
    if header.tensors == wanted:
        return
    for name, info in wanted.items():
        found = header.tensors.get(name)
        if found is None:
            yield f"`{name}` is missing"
        elif found != info:
            yield f"`{name}` is {_describe(found)}, but the manifest states {_describe(info)}"
    for name in header.tensors:
        if name not in wanted:
            yield f"`{name}` is not in the manifest"


def _describe(info: TensorInfo) -> str:
    return f"{info.encoding} {list(info.shape)}"


def _error(listing: str, problems: list[str], failures: list[FormatError]) -> FormatError:
    hints = {failure.hint for failure in failures if os.path.lexists(failure.path)}
    are_alike = len(failures) == len(problems) and len(hints) == 1
    hint = (hints.pop() if are_alike else "") or _HINT
    if len(problems) == 1:
        return FormatError(
            listing, None, f"the sharded checkpoint is not complete: {problems[0]}", hint=hint
        )
    lines = ["the sharded checkpoint is not complete:", *list_first(problems, _MOST_NAMED)]
    return FormatError(listing, None, "\n  ".join(lines), hint=hint)

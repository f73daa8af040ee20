"""Reading of the files of a sharded checkpoint, and comparison with its manifest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from weightctl.errors import FormatError
from weightctl.formats import format_module
from weightctl.formats.recognition import recognize_format
from weightctl.formats.sharded.gathered import GatheredSource
from weightctl.formats.sharded.manifest import read_manifest
from weightctl.storage.files import exists, open_reader
from weightctl.system.phases import begin_phase
from weightctl.text.wording import list_first

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.formats.sharded.records import Manifest, RankFile
    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header, TensorInfo

_MOST_NAMED = 5
_HINT = (
    "check that the files of all ranks are from one run and that the copy is complete; "
    "`weightctl shard` writes these files again"
)


def read_ranks(listing: str, format_name: str | None) -> GatheredSource:
    """Read the headers of all ranks; raises the same errors as `open_sharded`."""
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
            problems.append(f"{place}: {error.reason}" if exists(path) else f"{place} is missing")
            continue
        files.append(file)
        ranks.append(header)
        problems += (f"{place}: {text}" for text in _differences(stated, header))
    if problems:
        raise _error(listing, problems, failures)
    return GatheredSource(manifest, listing, ranks, files)


def _read(path: str, manifest: Manifest) -> tuple[Reader, Header]:
    file = open_reader(path)
    header = format_module(recognize_format(file, manifest.format)).read(file)
    if header.big_endian:
        raise FormatError(
            path,
            None,
            "the file is big-endian, but files of sharded checkpoints are always little-endian",
            hint="the file was replaced or damaged: shard the model again",
        )
    return file, header


def _differences(stated: RankFile, header: Header) -> Iterator[str]:
    """Yield the differences between the tensors of a rank's file and those of the manifest."""
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
    hints = {failure.hint for failure in failures if exists(failure.path)}
    are_alike = len(failures) == len(problems) and len(hints) == 1
    hint = (hints.pop() if are_alike else "") or _HINT
    if len(problems) == 1:
        return FormatError(
            listing, None, f"the sharded checkpoint is not complete: {problems[0]}", hint=hint
        )
    lines = ["the sharded checkpoint is not complete:", *list_first(problems, _MOST_NAMED)]
    return FormatError(listing, None, "\n  ".join(lines), hint=hint)

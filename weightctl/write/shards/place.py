"""The directory that a sharded checkpoint is written in until it is whole, and what it has."""

from __future__ import annotations

import hashlib
import os
import stat
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import OutputError
from weightctl.formats.sharded.manifest import manifest_bytes
from weightctl.formats.sharded.record import MANIFEST, Manifest, SourceFingerprint
from weightctl.write.claims import BEING_WRITTEN, is_same, lock_path
from weightctl.write.output_file import cannot_write
from weightctl.write.replacing import sync_directory
from weightctl.write.shards.belongings import refuse_foreign, remove
from weightctl.write.shards.journal import JOURNAL, REPLACED, Journal, Purpose, Record, read_journal
from weightctl.write.shards.writable import Writable, put

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from weightctl.write.shards.outcome import ShardOutcome

__all__ = ["Begun", "begin", "hold_directory", "open_rank_files"]

_NOBODY = SourceFingerprint((), "")


class Begun(NamedTuple):
    """What an earlier run has left for this one.

    `records` are of tensors that are complete, by rank and name; where there are none of an earlier
    run although there was one, `lost` says why.
    """

    purpose: Purpose
    records: Mapping[tuple[int, str], Record]
    lost: str


@contextmanager
def hold_directory(path: str) -> Generator[None, None, None]:
    """Have the directory at a path, which no other run has meanwhile; it is made where none is.

    Raises `OutputError` where another run has it.
    """
    lock = _lock(path)
    try:
        yield
    finally:
        with suppress(OSError):
            if is_same(lock, path):
                os.rmdir(path)  # where nothing has come to be in it
        os.close(lock)


def _lock(path: str) -> int:
    while True:
        try:
            with suppress(FileExistsError):
                os.mkdir(path)
            lock = lock_path(path)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path)):
                raise
            continue  # it has just got its name
        except BlockingIOError as error:
            raise OutputError(
                f"another run is writing {path.removesuffix('.partial')}", hint=BEING_WRITTEN
            ) from error
        except OSError as error:
            raise cannot_write(path, error) from error
        if is_same(lock, path):
            return lock
        os.close(lock)


def begin(outcome: ShardOutcome, manifest: Manifest) -> Begun:
    """Look at what an earlier run has left; remove what of it is of no use to this one.

    Raises `OutputError` where there are files that no run has left.
    """
    partial = outcome.partial
    purpose = _purpose(outcome, manifest)
    found = read_journal(os.path.join(partial, JOURNAL))
    if found is None:
        # Before there is a journal there is nothing else.
        refuse_foreign(partial, {JOURNAL}, partial)
        return Begun(purpose, {}, "")
    before, records = found
    refuse_foreign(partial, {*before.names, MANIFEST, JOURNAL}, partial)
    lost = _difference(before, purpose, manifest)
    intact = {} if lost else _intact(outcome)
    # By the journal the next run knows the files that this one does not come to remove.
    remove(partial, {*before.names} - {*intact, MANIFEST, JOURNAL})
    is_old = before._replace(names=()) == REPLACED
    return Begun(purpose, _select_kept(outcome, records, intact), "" if is_old else lost)


def _difference(before: Purpose, now: Purpose, manifest: Manifest) -> str:
    """Return why this run cannot go on where another has stopped; empty where it can."""
    if before.input != now.input:
        return "the input is not what it was"
    if before.plan != now.plan:
        return "the plan is another"
    return "" if manifest.source.files else "what is in memory cannot be known again"


def _purpose(outcome: ShardOutcome, manifest: Manifest) -> Purpose:
    plan = hashlib.sha256(manifest_bytes(manifest._replace(source=_NOBODY)))
    for layout in outcome.files.values():
        plan.update(layout.header)
    source = hashlib.sha256(repr(manifest.source).encode("utf-8", "surrogatepass"))
    return Purpose(plan.hexdigest(), source.hexdigest(), tuple(sorted(outcome.names)))


def _intact(outcome: ShardOutcome) -> dict[str, int]:
    """Return the ranks, by the names of their files, whose files are there as they were made."""
    return {
        name: rank
        for rank, (name, layout) in enumerate(outcome.files.items())
        if _has_size(os.path.join(outcome.partial, name), layout.nbytes)
    }


def _has_size(path: str, nbytes: int) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == nbytes


def _select_kept(
    outcome: ShardOutcome,
    records: Mapping[tuple[int, str], Record],
    intact: Mapping[str, int],
) -> dict[tuple[int, str], Record]:
    """Return the records of what is in files that are there as they were made."""
    wanted = {
        (rank, shard.info.name) for rank in intact.values() for shard in outcome.plan.ranks[rank]
    }
    return {key: record for key, record in records.items() if key in wanted}


@contextmanager
def open_rank_files(
    outcome: ShardOutcome, manifest: Manifest, begun: Begun
) -> Generator[tuple[Journal, list[Writable]], None, None]:
    """Yield the journal, and the files of all ranks with their headers; raises `OutputError`.

    The manifest stands beside them, without the digests of tensors.
    """
    partial = outcome.partial
    files: list[Writable] = []
    journal = Journal(os.path.join(partial, JOURNAL), begun.purpose, list(begun.records.values()))
    try:
        put(os.path.join(partial, MANIFEST), manifest_bytes(manifest))
        for name, layout in outcome.files.items():
            path = os.path.join(partial, name)
            _make_directory(os.path.dirname(path))
            files.append(Writable(path, layout))
        for directory in outcome.directories:
            sync_directory(directory)
        yield journal, files
    finally:
        journal.close()
        for file in files:
            file.close()


def _make_directory(path: str) -> None:
    try:
        with suppress(FileExistsError):
            os.mkdir(path)
    except OSError as error:
        raise cannot_write(path, error) from error

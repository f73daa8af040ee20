"""Writes a sharded checkpoint: all ranks' files in one pass over the source."""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError, OutputError, WeightctlError
from weightctl.formats.sharded.fingerprint import fingerprint_source
from weightctl.system.threads import thread_count
from weightctl.write.claims import refuse_other_runs
from weightctl.write.output import beginning
from weightctl.write.shards.digests import refuse_altered
from weightctl.write.shards.finish import discard, finish
from weightctl.write.shards.outcome import describe_shards
from weightctl.write.shards.place import begin, hold_directory, open_rank_files
from weightctl.write.shards.syncing import Syncing
from weightctl.write.shards.together import do_together
from weightctl.write.shards.work import passes
from weightctl.write.shards.writing import Writing

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping
    from threading import Event

    from weightctl.formats.sharded.record import Manifest
    from weightctl.sharding.plan import ShardPlan
    from weightctl.write.shards.journal import Journal, Record
    from weightctl.write.shards.outcome import ShardOutcome
    from weightctl.write.shards.place import Begun
    from weightctl.write.shards.work import Pass
    from weightctl.write.shards.writable import Writable

__all__ = ["SavedShards", "save_shards"]

# Conversions that cannot be, and faults of the program.
_FINAL = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_GOES_ON = "the same command goes on where this one stopped"


class SavedShards(NamedTuple):
    """What writing shards did.

    `nbytes` are those of tensors that were written, and `kept_bytes` those that an unfinished run
    had written already. `started_over` says why what one had written was of no use; empty where
    there was none, or it was.
    """

    outcome: ShardOutcome
    seconds: float
    nbytes: int
    kept_bytes: int
    started_over: str


def save_shards(
    plan: ShardPlan,
    out: str | os.PathLike[str],
    *,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int], object] | None = None,
) -> SavedShards:
    """Write the files of all ranks into a directory; it is the complete new one, or not there.

    Until then it is called `OUT.partial`, which stays after an error of the disk or the source,
    Ctrl-C or kill -9: the same plan for the same input goes on there, and writes nothing again that
    was on the disk. After an error that the same plan would meet again nothing stays. `threads`
    work side by side, as many as there are cores unless said otherwise, and hold about 2 MB each.
    `progress` is called with the bytes of each piece written, by one thread at a time, and before
    that with those that were kept; in all they are `tensor_bytes` of the outcome. Raises as
    `describe_shards` and `ShardOutcome.refuse` do, before anything is written, `OutputError` where
    the directory cannot be written or another run does it, and `FormatError` where the source
    cannot be read, has changed meanwhile, or is itself a set of which parts are altered.
    """
    started = time.monotonic()
    count = thread_count(threads)
    outcome = describe_shards(plan, out)
    refuse_other_runs(outcome.path)
    outcome.refuse(force=force)
    # What is wrong in one set must not be right in the next.
    refuse_altered(plan.source, threads=threads)
    with ExitStack() as stack:
        with beginning(outcome.path, force=force):
            stack.enter_context(hold_directory(outcome.partial))
        # Another run may have ended since.
        outcome.refuse(force=force)
        manifest = outcome.manifest(fingerprint_source(plan.source))
        begun = begin(outcome, manifest)
        kept = sum(
            shard.info.nbytes
            for rank, shards in enumerate(plan.ranks)
            for shard in shards
            if (rank, shard.info.name) in begun.records
        )
        if kept and progress is not None:
            progress(kept)
        _write(outcome, manifest, begun, force=force, threads=count, progress=progress)
    return SavedShards(
        outcome, time.monotonic() - started, outcome.tensor_bytes - kept, kept, begun.lost
    )


def _write(
    outcome: ShardOutcome,
    manifest: Manifest,
    begun: Begun,
    *,
    force: bool,
    threads: int,
    progress: Callable[[int], object] | None,
) -> None:
    count = len(begun.records)
    try:
        with open_rank_files(outcome, manifest, begun) as (journal, files):
            try:
                _make(outcome, journal, files, threads=threads, progress=progress)
            finally:
                count = len(journal.records)
            manifest = _with_digests(manifest, journal.records)
        # Before the output gets its name: what was read may be half of the one and half of another.
        outcome.plan.source.refuse_change()
        finish(outcome, manifest, force=force)
    except BaseException as error:
        if not count or _is_final(error):
            discard(outcome)
        elif isinstance(error, WeightctlError):
            error.hint = f"{error.hint}; {_GOES_ON}" if error.hint else _GOES_ON
        raise


def _is_final(error: BaseException) -> bool:
    """Whether the same command for the same input would fail again, so that nothing is kept."""
    return isinstance(error, _FINAL) and not isinstance(error, FormatError | OutputError)


def _make(
    outcome: ShardOutcome,
    journal: Journal,
    files: list[Writable],
    *,
    threads: int,
    progress: Callable[[int], object] | None,
) -> None:
    """Write all tensors that are not on the disk already, and record them."""
    plan, one_at_a_time = outcome.plan, Lock()
    writing = Writing(plan.source, files)
    layouts = tuple(outcome.files.values())
    with Syncing(files, journal) as syncing:

        def make(each: Pass, ended: Event) -> None:
            def report_progress(nbytes: int) -> None:
                if ended.is_set():
                    raise _EndedError
                if progress is not None:
                    with one_at_a_time:
                        progress(nbytes)

            syncing.add(writing.make(each, report_progress))

        work = passes(plan.source.header, plan.ranks, layouts, journal.records)
        do_together(make, work, threads=threads)


class _EndedError(Exception):
    """What is raised in a thread whose work nobody waits for any more."""


def _with_digests(manifest: Manifest, records: Mapping[tuple[int, str], Record]) -> Manifest:
    return manifest._replace(
        files=tuple(
            file._replace(
                shards=tuple(
                    shard._replace(sha256=records[rank, shard.info.name].sha256)
                    for shard in file.shards
                )
            )
            for rank, file in enumerate(manifest.files)
        )
    )

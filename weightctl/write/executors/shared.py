"""Writes outputs with several processes that all run the same command."""

from __future__ import annotations

from contextlib import suppress
from functools import partial as bind
from typing import TYPE_CHECKING

from weightctl.storage.location import is_remote
from weightctl.write.describe import identify_run
from weightctl.write.executors.batches import list_keyed_tasks
from weightctl.write.executors.ranks import FoundRun, RankRun, share_run
from weightctl.write.executors.worker import PlannedWork
from weightctl.write.objects.uploading import UploadRun, find_shared_uploads
from weightctl.write.partial import find_shared_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.write.committing import CommitRun
    from weightctl.write.executors.distribution import Distribution
    from weightctl.write.executors.ranks import RanksResult
    from weightctl.write.journal import Record
    from weightctl.write.outcome import Outcome
    from weightctl.write.output import Work
    from weightctl.write.partial import Partial


def write_shared(
    distribution: Distribution,
    plan: Plan | ShardPlan,
    outcome: Outcome,
    work: Work,
    *,
    hold: Callable[[], AbstractContextManager[Partial | UploadRun | CommitRun]],
    finish: Callable[[], list[Record]],
    progress: Callable[[int], object] | None,
) -> RanksResult:
    """Do a part of the work on an output, and return when it is complete.

    `hold` locks the output while its files are created, and `finish` gives them their final names.
    """
    identify = bind(identify_run, plan, outcome)

    def begin() -> None:
        with hold() as partial:
            partial.open_files()
            kept = work.select(partial.kept)
            partial.begin_journal(identify(), kept).close()
            if isinstance(partial, UploadRun):
                partial.add_shared()

    def find() -> FoundRun | None:
        search = find_shared_uploads if is_remote(outcome.path) else find_shared_files
        found = search(outcome, identify)
        if found is None:
            return None
        place, records = found
        kept = {(each.file, each.key): each for each in work.select(records)}
        kept_bytes = work.count_bytes(kept)
        return FoundRun(place, list_keyed_tasks(work, kept), [*kept.values()], kept_bytes)

    def discard() -> None:
        with suppress(_DiscardedError), hold() as partial:
            partial.is_resumable = False
            raise _DiscardedError

    planned = PlannedWork(plan, outcome, work)
    run = RankRun(planned, identify(), begin, find, finish, discard)
    return share_run(distribution, run, progress)


class _DiscardedError(Exception):
    """Raised to leave the hold on an output whose files are not needed."""

"""Finds how much of an output a stopped run has written, which the same command continues."""

from __future__ import annotations

from functools import partial as bind
from typing import TYPE_CHECKING

from weightctl.plan.plan import Plan
from weightctl.write.conversion_tasks import DEFAULT_MEMORY, ConversionWork
from weightctl.write.describe import identify_run
from weightctl.write.partial import find_kept
from weightctl.write.rank_tasks import RankWork

if TYPE_CHECKING:
    from weightctl.sharding.plan import ShardPlan
    from weightctl.write.outcome import Outcome

__all__ = ["count_kept_bytes"]


def count_kept_bytes(plan: Plan | ShardPlan, outcome: Outcome) -> int:
    """Return how many bytes of tensors from a stopped run the plan would keep."""
    if outcome.where.is_stream or not plan.source.files:
        return 0
    records = find_kept(outcome, bind(identify_run, plan, outcome))
    if not records:
        return 0
    layouts = list(outcome.parts.values())
    work = (
        ConversionWork(plan, layouts, threads=1, memory=DEFAULT_MEMORY)
        if isinstance(plan, Plan)
        else RankWork(plan, layouts)
    )
    return work.count_bytes({(each.file, each.key): each for each in work.select(records)})

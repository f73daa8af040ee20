"""Finds how much of an output a stopped run has written, which the same command continues."""

from __future__ import annotations

from functools import partial as bind
from typing import TYPE_CHECKING

from weightctl.write.describe import identify_run
from weightctl.write.partial import find_kept

if TYPE_CHECKING:
    from weightctl.plan.plan import Plan
    from weightctl.sharding.plan import ShardPlan
    from weightctl.write.outcome import Outcome
    from weightctl.write.save import Work

__all__ = ["count_kept_bytes"]


def count_kept_bytes(plan: Plan | ShardPlan, outcome: Outcome, work: Work) -> int:
    """Return the bytes of tensors that a stopped run has written and that `work` would keep."""
    if outcome.where.is_stream or not plan.source.files:
        return 0
    records = find_kept(outcome, bind(identify_run, plan, outcome))
    return work.count_bytes({(each.file, each.key): each for each in work.select(records)})

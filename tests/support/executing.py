"""The bytes of a plan's tensors, computed as they are for a pipe."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from weightctl.formats.base import Layout
from weightctl.system.threads import thread_count
from weightctl.write.conversion_tasks import (
    DEFAULT_MEMORY,
    ConversionWork,
    add_loss,
    count_threads,
)
from weightctl.write.tasks import cut_tasks
from weightctl.write.threads import run_in_order

if TYPE_CHECKING:
    from collections.abc import Generator

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Plan
    from weightctl.storage.base import FileRange
    from weightctl.weights.info import TensorInfo


def execute(
    plan: Plan,
    order: tuple[TensorInfo, ...],
    *,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    losses: dict[str, Loss] | None = None,
    ranges: bool = False,
    task_bytes: int = 1 << 16,
) -> Generator[tuple[TensorInfo, memoryview | FileRange], None, None]:
    """Yield the tensors of a plan in an order, each in chunks that follow one another."""
    sizes = [info.nbytes for info in order]
    offsets = tuple(accumulate(sizes[:-1], initial=0))
    layout = Layout(b"", order, offsets if sizes else (), sum(sizes))
    count = count_threads(thread_count(threads), memory)
    work = ConversionWork(plan, [layout], threads=count, memory=memory)
    filled = run_in_order(
        lambda task: work.fill(task, ranges=ranges, results=work.results_in_order),
        cut_tasks(plan, [layout], nbytes=task_bytes),
        threads=count,
        results=work.results_in_order,
    )
    try:
        for info, _, data, loss in filled:
            if losses is not None:
                add_loss(losses, info.name, loss)
            yield info, data
    finally:
        filled.close()

"""Surveys of many tensors, side by side."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from weightctl.errors import WeightctlError
from weightctl.threads import Memory, shared_out
from weightctl.verify.checks.finite.numbers import runs_of, stretches_of
from weightctl.verify.checks.finite.quick_look import Survey, survey
from weightctl.weights.derived import tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from threading import Event

    from weightctl.verify.checks.finite.numbers import Run, Stretch
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.source import Source

__all__ = ["surveys"]


def surveys(
    source: Source,
    infos: Sequence[TensorInfo],
    progress: Callable[[float], object],
    *,
    threads: int | None = None,
) -> dict[str, Survey | str]:
    """Return a survey of each tensor, or why it cannot be read.

    `progress` is called with the share that is done, by one thread at a time. No more than a few
    megabytes are held for each thread.
    """
    total = sum(info.nbytes for info in infos) or 1
    one_at_a_time, memory = Lock(), Memory()
    done = 0

    def told(runs: Iterator[Run], ended: Event) -> Iterator[Run]:
        nonlocal done
        for run in runs:
            yield run
            with one_at_a_time:
                done += run.raw.size
                progress(min(done / total, 1.0))
            if ended.is_set():
                return

    def surveyed(stretch: Stretch, ended: Event) -> Survey | str:
        tensor = tensor_of(source, stretch.name)
        try:
            runs = runs_of(tensor, stretch.start, stretch.stop, memory)
            with np.errstate(all="ignore"):  # each thread has its own
                return survey(tensor.info, told(runs, ended), memory)
        except WeightctlError as error:
            return str(error)

    # In the order of the files, which disks like best.
    extents = source.header.extents
    in_order = sorted(infos, key=lambda info: extents[info.name][:2])
    stretches = [stretch for info in in_order for stretch in stretches_of(info)]
    found: dict[str, Survey | str] = {}
    with shared_out(surveyed, stretches, threads=threads) as parts:
        for stretch, part in zip(stretches, parts, strict=True):
            found[stretch.name] = _joined(found.get(stretch.name), part)
    return found


def _joined(before: Survey | str | None, part: Survey | str) -> Survey | str:
    if before is None or isinstance(part, str):
        return part
    if not isinstance(before, str):
        before.join(part)
    return before

"""Writes a checkpoint to a pipe or device, in order."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from functools import partial as bind
from typing import TYPE_CHECKING

from weightctl.errors import OutputError
from weightctl.formats.base import write_in_order
from weightctl.storage.base import cannot_write
from weightctl.storage.local import PipeWriter
from weightctl.write.conversion_tasks import add_loss
from weightctl.write.targets import STDOUT, stream_name
from weightctl.write.tasks import cut_tasks
from weightctl.write.threads import run_in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Plan
    from weightctl.storage.base import Bytes, FileRange
    from weightctl.weights.info import TensorInfo
    from weightctl.write.conversion_tasks import ConversionWork, Filled
    from weightctl.write.outcome import Outcome

# The size of tasks. A pipe takes chunks in order, so tasks are small.
_STREAMED = 2 << 20


def write_stream(
    plan: Plan,
    outcome: Outcome,
    work: ConversionWork,
    *,
    threads: int,
    progress: Callable[[int], object] | None,
) -> dict[str, Loss]:
    """Write the single file of an outcome to a pipe; return the rounding errors by tensor."""
    ((_, layout),) = outcome.parts.items()
    tasks = list(cut_tasks(plan, [layout], nbytes=_STREAMED))
    work.expect(tasks)
    # If checksums are written, bytes are read; otherwise, ranges of files may be copied.
    results = work.results_in_order
    fill = bind(work.fill, ranges=layout.between is None, results=results)
    losses: dict[str, Loss] = {}
    with open_stream(outcome.where.path) as stream:
        filled = run_in_order(fill, tasks, threads=threads, results=results)
        try:
            pull = _Pull(filled, losses, progress)
            write_in_order(layout, stream, pull)
        finally:
            filled.close()
    plan.source.refuse_change()
    return losses


class _Pull:
    """Returns the bytes of each tensor, when called for the tensors in order."""

    def __init__(
        self,
        filled: Iterator[Filled],
        losses: dict[str, Loss],
        progress: Callable[[int], object] | None,
    ) -> None:
        self._filled = filled
        self._losses = losses
        self._progress = progress
        self._ahead: Filled | None = None

    def __call__(self, info: TensorInfo) -> Iterator[Bytes | FileRange]:
        if self._ahead is None:
            self._ahead = next(self._filled, None)
        while self._ahead is not None and self._ahead.info is info:
            _, _, data, loss = self._ahead
            add_loss(self._losses, info.name, loss)
            yield data
            if self._progress is not None:
                self._progress(data.nbytes)
            self._ahead = next(self._filled, None)


@contextmanager
def open_stream(path: str) -> Generator[PipeWriter, None, None]:
    """Open a pipe or device for writing in order; `-` is stdout.

    Written bytes cannot be removed. Opening a named pipe waits for its reader. Raises `OutputError`
    if it cannot be opened.
    """
    if stream_name(path) == stream_name(STDOUT):
        if not sys.stdout:  # it was closed before this process began
            raise OutputError("stdout is closed", hint="write to a file")
        sys.stdout.flush()
        yield PipeWriter(sys.stdout.fileno(), "stdout")
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        yield PipeWriter(descriptor, path)
    finally:
        os.close(descriptor)

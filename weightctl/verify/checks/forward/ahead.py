"""Runs the next layer of a model on another thread."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from weightctl.codecs.base import F32
    from weightctl.verify.run.parts import Running
    from weightctl.weights.buffer import Buffer

__all__ = ["LayerAhead"]


class LayerAhead:
    """Runs the layers of a model in order, up to `last`, one of them in advance.

    On a GPU none is, since its layers would compete for the memory.
    """

    def __init__(self, running: Running, last: int) -> None:
        self._running, self._last = running, last
        self._thread = ThreadPoolExecutor(1, "weightctl-layer") if running.is_on_cpu else None
        self._begun: Future[F32] | None = None

    def take(self, number: int, x: F32, beside: Sequence[Buffer]) -> F32:
        """Return the output of a layer for its input `x`, and begin to run the next one.

        An error of a layer is raised when its own output is taken.
        """
        begun, self._begun = self._begun, None
        made = self._running.layer(number, x, beside) if begun is None else begun.result()
        if self._thread is not None and number < self._last:
            # NumPy's error state is part of the context.
            run = copy_context().run
            self._begun = self._thread.submit(run, self._running.layer, number + 1, made, beside)
        return made

    def close(self) -> None:
        """Wait for the layer that runs, and drop its output."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)

"""Carries out a plan: the bytes of its tensors, in order, a few rows at a time, on all cores."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.system.interrupts import uninterrupted
from weightctl.system.threads import thread_count
from weightctl.text.sizes import format_size, parse_size
from weightctl.weights.source import Span
from weightctl.write.worker import FEWER, MadeChunk, Making, Work, Workers, is_small

if TYPE_CHECKING:
    from collections.abc import Generator

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Plan
    from weightctl.weights.info import TensorInfo
    from weightctl.write.pieces import Chunk

__all__ = ["DEFAULT_MEMORY", "execute", "memory_budget"]

DEFAULT_MEMORY = 256 << 20
# Pieces for each core that may wait to be written, so that none idles while a disk does not take
# them; and those that cost no memory, since they stay in their files or are small.
_AHEAD = 6
_MOST_LIGHT = 64
# Pieces so small that the interpreter's share is most of it are no gain.
_LEAST_ROOM = 1 << 20


def memory_budget(memory: int | str | None, *, least: int = 1) -> int:
    """Return how many bytes to work in, of a number of bytes or text such as "512MiB".

    None is `DEFAULT_MEMORY`. Raises `ConversionError` for less than `least` bytes.
    """
    if memory is None:
        return DEFAULT_MEMORY
    nbytes = parse_size(memory) if isinstance(memory, str) else memory
    if nbytes < least:
        raise ConversionError(
            f"{memory} of memory is too little to work in",
            hint=f"{format_size(least)} is the least",
        )
    return nbytes


def execute(
    plan: Plan,
    order: tuple[TensorInfo, ...],
    *,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    losses: dict[str, Loss] | None = None,
    spans: bool = False,
) -> Generator[tuple[TensorInfo, memoryview | Span], None, None]:
    """Yield the output's tensors in `order`, each in pieces that follow one another.

    The pieces are computed side by side, and no more than `memory` bytes are in use at a time;
    neither changes what they are. Each is good until the next is asked for. With `spans` those that
    are ranges of a file are not read, but given as such. `losses` gets what conversions that can
    lose something did to the numbers of each tensor. Raises `ConversionError` that names the tensor
    and the element where a block encoding would have to hold a NaN or an infinity, and where there
    is no thread or no memory for the work.
    """
    workers = min(thread_count(threads), max(1, memory // 2 // _LEAST_ROOM))
    # One half is for the work on pieces, the other for what waits to be written.
    work = Work(plan, memory // 2 // workers, measure=losses is not None)
    waiting = _Waiting(work, order, workers, memory // 2, spans=spans)
    try:
        while True:
            oldest = waiting.oldest()
            if oldest is None:
                return
            info, made = oldest
            if isinstance(made, Span):
                yield info, made
                continue
            if not isinstance(made, MadeChunk):
                # Handing it to a thread would take longer than the work.
                made = work.make(made)
            if made.loss is not None and losses is not None:
                before = losses.get(info.name)
                losses[info.name] = made.loss if before is None else before + made.loss
            yield info, made.bytes
            work.take_back(made.buffer)
    except MemoryError as error:
        raise ConversionError(f"no memory for {workers} threads", hint=FEWER) from error
    finally:
        with uninterrupted():
            waiting.end()


class _Waiting:
    """The pieces that are next in the output, on which `workers` threads work.

    Those that are done and those that will be take up to `memory` bytes, one piece at least.
    """

    def __init__(
        self,
        work: Work,
        order: tuple[TensorInfo, ...],
        workers: int,
        memory: int,
        *,
        spans: bool,
    ) -> None:
        self._cut = work.cut(order, spans=spans)
        self._workers = Workers(work, workers)
        self._queue: deque[tuple[TensorInfo, Span | Chunk | Making]] = deque()
        self._most = workers * _AHEAD
        self._memory = memory
        self._begun = self._nbytes = 0

    def oldest(self) -> tuple[TensorInfo, Span | Chunk | MadeChunk] | None:
        """Return the next piece of the output; None behind the last."""
        # Of thousands of small tensors not each asks for more.
        are_many = len(self._queue) - self._begun > _MOST_LIGHT * 3 // 4
        if are_many and not isinstance(self._queue[0][1], Making):
            return self._next()
        with uninterrupted():
            self._refill()
            return self._next()

    def _next(self) -> tuple[TensorInfo, Span | Chunk | MadeChunk] | None:
        if not self._queue:
            return None
        info, piece = self._queue.popleft()
        if isinstance(piece, Making):
            self._begun -= 1
            self._nbytes -= piece.nbytes
            return info, piece.wait()
        if isinstance(piece, Span) and self._queue and isinstance(self._queue[0][1], Span):
            self._queue[0][1].expect()
        return info, piece

    def _refill(self) -> None:
        while self._begun < self._most and len(self._queue) < self._begun + _MOST_LIGHT:
            if self._nbytes >= self._memory and self._begun:
                return
            following = next(self._cut, None)
            if following is None:
                return
            info, piece = following
            if isinstance(piece, Span) or is_small(piece):
                self._queue.append((info, piece))
                continue
            self._queue.append((info, self._workers.begin(piece)))
            self._begun += 1
            self._nbytes += piece.made

    def end(self) -> None:
        """Let what runs come to its end, and nothing begin any more."""
        self._workers.end()

"""What each thread does: it reads a piece of a tensor, and makes of it what it becomes."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from queue import Empty, SimpleQueue
from re import escape
from shlex import quote
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError, NonFiniteError
from weightctl.system.threads import Memory
from weightctl.write.pieces import pieces_of, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weightctl.codecs.loss import Loss
    from weightctl.plan.plan import Plan
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.source import Span
    from weightctl.write.pieces import Chunk

__all__ = ["FEWER", "MadeChunk", "Making", "Work", "Workers", "is_small"]

FEWER = "fewer threads take less memory: -j 2"


# To hand a piece of so many bytes to a thread, and it back, takes as long as to make it.
_SMALL = 1 << 15


class MadeChunk(NamedTuple):
    """What a piece has become, in a buffer that can be used again when it is written."""

    bytes: memoryview
    buffer: bytearray
    loss: Loss | None = None


def is_small(piece: Chunk) -> bool:
    """Whether a piece is made sooner than it is handed to a thread."""
    return max(piece.stop - piece.start, piece.made) < _SMALL


class Work:
    """What is done to a piece, within `room` bytes."""

    def __init__(self, plan: Plan, room: int, *, measure: bool) -> None:
        self._plan = plan
        self._room = room
        self._measure = measure
        # Memory that is new is slow: each thread keeps what it reads into, and what is written
        # goes around.
        self._memory = Memory()
        self._spare: list[bytearray] = []

    def cut(
        self, order: tuple[TensorInfo, ...], *, spans: bool
    ) -> Iterator[tuple[TensorInfo, Chunk | Span]]:
        """Yield the pieces of all tensors; ranges of files, where there are `spans`."""
        by_name = {item.info.name: item for item in self._plan.items}
        for info in order:
            item = by_name[info.name]
            span = self._plan.source.span(item.source.name)
            if spans and item.is_copy and span is not None:
                yield from ((info, part) for part in spans_of(span))
                continue
            for piece in pieces_of(item, self._room):
                if span is not None and not is_small(piece):
                    span.expect(piece.start, piece.stop)
                yield info, piece

    def make(self, piece: Chunk) -> MadeChunk:
        """Read a piece and make of it what it becomes."""
        buffer = self._buffer(piece.made)
        made = memoryview(buffer)[: piece.made]
        if piece.item.is_copy:
            self._plan.source.read_into(piece.item.source.name, piece.start, made)
            return MadeChunk(made, buffer)
        return MadeChunk(made, buffer, self._transcode(piece, made))

    def _transcode(self, piece: Chunk, made: memoryview) -> Loss | None:
        import numpy as np  # copies need none of it

        from weightctl.codecs import transcode

        item, raw = piece.item, self._memory.room("piece", piece.stop - piece.start)
        self._plan.source.read_into(item.source.name, piece.start, raw)
        rows = np.frombuffer(raw, np.uint8).reshape(-1, piece.row)
        try:
            return transcode(
                rows, item.source.encoding, item.info.encoding, piece.importance,
                measure=self._measure, zero_nonfinite=self._plan.zero_nonfinite,
                out=np.frombuffer(made, np.uint8).reshape(len(rows), -1),
            ).loss  # fmt: skip
        except NonFiniteError as error:
            raise _refusal(piece, error) from error

    def take_back(self, buffer: bytearray) -> None:
        """Keep a buffer for another piece, if it has room for more than a small one."""
        if len(buffer) >= _SMALL:
            self._spare.append(buffer)

    def _buffer(self, nbytes: int) -> bytearray:
        try:
            buffer = self._spare.pop()
        except IndexError:
            return bytearray(nbytes)
        return buffer if len(buffer) >= nbytes else bytearray(nbytes)


class Making:
    """A piece that is given to a thread, and what the thread makes of it: `nbytes` bytes."""

    def __init__(self, piece: Chunk) -> None:
        self.nbytes = piece.made
        self._piece = piece
        # Of the standard library's ways to wait this one needs the fewest others.
        self._outcome: SimpleQueue[MadeChunk | BaseException] = SimpleQueue()

    def make(self, work: Work) -> None:
        """Do it; an error is raised where the outcome is asked for."""
        try:
            self._outcome.put(work.make(self._piece))
        except BaseException as error:  # noqa: BLE001
            self._outcome.put(error)

    def wait(self) -> MadeChunk:
        """Wait for the outcome, and return it once."""
        outcome = self._outcome.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Workers:
    """Up to `most` threads that make pieces; where the system gives fewer, those make them all."""

    def __init__(self, work: Work, most: int) -> None:
        self._work = work
        self._most = most
        self._threads: list[Thread] = []
        self._begun: SimpleQueue[Making | None] = SimpleQueue()

    def begin(self, piece: Chunk) -> Making:
        """Have a piece made; `ConversionError` where there is no thread to do it."""
        if len(self._threads) < self._most:
            self._start()
        making = Making(piece)
        self._begun.put(making)
        return making

    def _start(self) -> None:
        # A process does not wait at its end for pieces that nobody asks for any more.
        thread = Thread(target=self._run, name="weightctl", daemon=True)
        try:
            thread.start()
        except (RuntimeError, MemoryError) as error:
            if not self._threads:
                raise ConversionError(f"no thread can be started: {error}", hint=FEWER) from error
            self._most = len(self._threads)
        else:
            self._threads.append(thread)

    def _run(self) -> None:
        while (making := self._begun.get()) is not None:
            making.make(self._work)
            del making  # its buffer is not to be kept until there is another

    def end(self) -> None:
        """Let what runs come to its end, and nothing begin any more."""
        with suppress(Empty):
            while True:
                self._begun.get_nowait()
        for _ in self._threads:
            self._begun.put(None)
        for thread in self._threads:
            thread.join()


def _refusal(piece: Chunk, error: NonFiniteError) -> ConversionError:
    source, made = piece.item.source, piece.item.info
    index = piece.start // source.encoding.size * source.encoding.block + error.index
    what = f"`{source.name}` has {error.value:g} at element {index}, which"
    # No option that may not stand beside --quant; and the rules are of the output's names.
    kept = f"--tensor-type {quote(f'^{escape(made.name)}$=bf16')}"
    if not isfinite(error.value):
        return ConversionError(
            f"{what} {made.encoding} cannot hold",
            hint=f"a checkpoint with such a number is damaged; {kept} keeps it, and --nonfinite "
            "zero stores 0 instead",
        )
    if piece.importance is None:
        return ConversionError(f"{what} {made.encoding} cannot hold", hint=f"{kept} holds it")
    return ConversionError(
        f"{what} overflows the scale of its block of {made.encoding} with the importance that its "
        "columns have",
        hint="are the values of the importance matrix for this tensor sound? Without --imatrix it "
        f"may fit; {kept} holds it in any case",
    )

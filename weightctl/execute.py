"""Carries out a plan: the bytes of its tensors, in order, a few rows at a time, on all cores."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import isfinite, lcm
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError, NonFiniteError
from weightctl.interrupts import uninterrupted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from weightctl.codecs.loss import Loss
    from weightctl.formats.base import Bytes
    from weightctl.plan import Item, Plan
    from weightctl.weights.info import TensorInfo

__all__ = ["DEFAULT_MEMORY", "execute"]

DEFAULT_MEMORY = 256 << 20
# Enough to keep every core busy while the oldest piece is written.
_AHEAD = 2
# Bytes of working memory per element that a codec may need (`tests/codecs` holds them to it).
_WORKING = 64
_MAX_ELEMENTS = 1 << 18
_MAX_COPY = 8 << 20
_LEAST_ROOM = 1 << 20


@dataclass(frozen=True, slots=True)
class _Piece:
    """A run of whole blocks of a tensor: where it starts and ends in the source, in bytes.

    It is laid out as rows of `row` bytes.
    """

    item: Item
    start: int
    stop: int
    row: int


def execute(
    plan: Plan,
    order: tuple[TensorInfo, ...],
    *,
    threads: int | None = None,
    memory: int = DEFAULT_MEMORY,
    losses: dict[str, Loss] | None = None,
) -> Generator[tuple[TensorInfo, Bytes], None, None]:
    """Yield the output's tensors in `order`, each in pieces that follow one another.

    The pieces are computed side by side, and no more than `memory` bytes are in use at a time;
    neither changes what they are. `losses` gets what conversions that can lose something did to
    the numbers of each tensor. Raises `ConversionError` that names the tensor and the element
    where a block encoding would have to hold a NaN or an infinity.
    """
    # Pieces so small that the interpreter's share is most of it are no gain.
    workers = min(threads or _cores(), max(1, memory // _LEAST_ROOM - _AHEAD))
    by_name = {item.info.name: item for item in plan.items}
    room = memory // (workers + _AHEAD)
    measure = losses is not None
    running: deque[tuple[TensorInfo, Future[tuple[Bytes, Loss | None]]]] = deque()

    def finish_oldest() -> tuple[TensorInfo, Bytes]:
        with uninterrupted():
            info, future = running.popleft()
            made, loss = future.result()
        if loss is not None and losses is not None:
            before = losses.get(info.name)
            losses[info.name] = loss if before is None else before + loss
        return info, made

    pool = ThreadPoolExecutor(workers, thread_name_prefix="weightctl")
    try:
        for info in order:
            for piece in _pieces(by_name[info.name], room):
                with uninterrupted():
                    running.append((info, pool.submit(_made, plan, piece, measure=measure)))
                if len(running) >= workers + _AHEAD:
                    yield finish_oldest()
        while running:
            yield finish_oldest()
    finally:
        with uninterrupted():
            pool.shutdown(cancel_futures=True)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pieces(item: Item, room: int) -> Iterator[_Piece]:
    """Cut a tensor into runs of whole blocks of both encodings, each within `room` bytes.

    Importance is of columns, so with it the runs are whole rows; blocks alone know no rows.
    """
    source, target = item.source.encoding, item.info.encoding
    total = item.source.nbytes
    if item.is_copy:
        # A change of byte order needs whole blocks; where blocks are unknown there is none.
        block = source.size if source.is_known else 1
        step = max(min(_MAX_COPY, room) // block, 1) * block
    else:
        blocks = lcm(source.block, target.block)
        unit = blocks if item.importance is None else item.info.row
        elements = max(min(_MAX_ELEMENTS, room // _WORKING) // unit, 1) * unit
        step = elements // source.block * source.size
    for start in range(0, total, step):
        stop = min(start + step, total)
        row = stop - start
        if item.importance is not None:
            row = item.info.row // source.block * source.size
        yield _Piece(item, start, stop, row)


def _made(plan: Plan, piece: _Piece, *, measure: bool) -> tuple[Bytes, Loss | None]:
    raw = bytearray(piece.stop - piece.start)
    item = piece.item
    plan.source.read_into(item.source.name, piece.start, memoryview(raw))
    if item.is_copy:
        return raw, None
    import numpy as np  # copies need none of it

    from weightctl.codecs import transcode

    source, target = item.source.encoding, item.info.encoding
    try:
        rows = np.frombuffer(raw, np.uint8).reshape(-1, piece.row)
        made, loss = transcode(rows, source, target, item.importance, measure=measure)
    except NonFiniteError as error:
        index = piece.start // source.size * source.block + error.index
        is_large = isfinite(error.value)
        raise ConversionError(
            f"`{item.source.name}` has {error.value:g} at element {index}, which {target} cannot "
            "hold", hint="--dtype f32 or bf16 holds it" if is_large
            else "a checkpoint with such a number is damaged; a float dtype keeps it",
        ) from error  # fmt: skip
    return made.reshape(-1).data, loss

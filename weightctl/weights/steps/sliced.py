"""Shards of tensors; values and blocks are not changed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import ConversionError
from weightctl.split import part_shape
from weightctl.weights.byte_ranges import byte_part, byte_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weightctl.dtype import Encoding
    from weightctl.split import Part
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# Gaps with fewer bytes than this are read too, because the system reads whole pages.
_PAGE = 4096
# The most bytes that are read at a time with their gaps.
_MOST = 1 << 20


class ByteRun(NamedTuple):
    """Bytes of a part that are also contiguous in the whole tensor: offset there, and length."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Sliced:
    """A part of a tensor that consists of whole blocks."""

    part: Part

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the part's shape; raises `ConversionError` if the tensor cannot be split."""
        (info,) = inputs
        if problem := unfit(info, self.part):
            raise ConversionError(
                f"`{info.name}`, stored as {info.encoding} of shape {list(info.shape)}, "
                f"cannot be split: {problem}"
            )
        return part_shape(info.shape, self.part), info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the bytes of the part."""
        (tensor,) = inputs
        read_part(tensor.info, self.part, tensor.read_into, start, buffer)

    def __str__(self) -> str:
        return " and ".join(
            f"{', '.join(f'{start} to {stop}' for start, stop in ranges)} of axis {axis}"
            for axis, ranges in self.part
        )


def unfit(info: TensorInfo, part: Part) -> str:
    """Return why a tensor cannot be split into this part; empty if it can."""
    block, last = info.encoding.block, len(info.shape) - 1
    for axis, ranges in part:
        if not 0 <= axis <= last:
            return f"it has no axis {axis}"
        shown = " and ".join(f"{start} to {stop}" for start, stop in ranges)
        if not all(0 <= start < stop <= info.shape[axis] for start, stop in ranges):
            return f"axis {axis} has {info.shape[axis]} elements, which do not include {shown}"
        if axis == last and any(end % block for each in ranges for end in each):
            return f"{shown} of axis {axis} would split blocks of {block} elements"
    if part and info.shape[last] % block:
        return f"its rows are not whole blocks of {block} elements"
    return ""


def read_part(
    info: TensorInfo,
    part: Part,
    read: Callable[[int, memoryview], object],
    start: int,
    buffer: memoryview,
) -> None:
    """Fill `buffer` with a part's bytes from `start`; `read` reads ranges of the whole tensor.

    Only the part's bytes are read, and short gaps between them.
    """
    done = 0
    for near in _neighbors(runs(info, part, start, start + buffer.nbytes)):
        first, last = near[0].offset, near[-1].offset + near[-1].nbytes
        if len(near) == 1:
            read(first, buffer[done : done + last - first])
            done += last - first
            continue
        held = memoryview(bytearray(last - first))
        read(first, held)
        for offset, nbytes in near:
            buffer[done : done + nbytes] = held[offset - first : offset - first + nbytes]
            done += nbytes


def shortest_run(info: TensorInfo, part: Part) -> int:
    """Return the bytes of the shortest run of a part, those of the tensor if it is all of it."""
    if not part:
        return info.nbytes
    shape, cuts = byte_shape(info), byte_part(info, part)
    axis, ranges = max(cuts)
    # A tensor without elements has no ranges.
    return min((stop - start for start, stop in ranges), default=0) * prod(shape[axis + 1 :])


def runs(
    info: TensorInfo, part: Part, start: int = 0, stop: int | None = None
) -> Iterator[ByteRun]:
    """Yield the contiguous runs of a part's bytes from `start` to `stop`, in order."""
    if not part:
        yield ByteRun(start, (info.nbytes if stop is None else stop) - start)
        return
    whole, cuts = byte_shape(info), {cut.axis: cut.ranges for cut in byte_part(info, part)}
    own = part_shape(whole, byte_part(info, part))
    # The last split axis has the ranges; each entry of the axes before it has all of them.
    axis = max(cuts, default=0)
    inner = prod(whole[axis + 1 :])
    row, pieces = own[axis] * inner, cuts.get(axis, ((0, whole[axis]),))
    stop = prod(own) if stop is None else stop
    if not row:
        return
    for number in range(start // row, -(-stop // row)):
        base = _entry(number, own[:axis], whole[:axis], cuts) * whole[axis] * inner
        position = number * row
        for first, last in pieces:
            nbytes = (last - first) * inner
            begin, end = max(position, start), min(position + nbytes, stop)
            if begin < end:
                yield ByteRun(base + first * inner + begin - position, end - begin)
            position += nbytes


def _entry(
    number: int,
    own: Sequence[int],
    whole: Sequence[int],
    cuts: dict[int, tuple[tuple[int, int], ...]],
) -> int:
    """Return the entry number in the whole tensor's first axes, from that in the part's."""
    found, step = 0, 1
    for axis in reversed(range(len(own))):
        number, at = divmod(number, own[axis])
        for first, last in cuts.get(axis, ()):
            if at < last - first:
                at += first
                break
            at -= last - first
        found += at * step
        step *= whole[axis]
    return found


def _neighbors(found: Iterator[ByteRun]) -> Iterator[list[ByteRun]]:
    """Yield groups of runs that are read together."""
    near: list[ByteRun] = []
    for run in found:
        if near:
            gap = run.offset - near[-1].offset - near[-1].nbytes
            if not 0 <= gap < _PAGE or run.offset + run.nbytes - near[0].offset > _MOST:
                yield near
                near = []
        near.append(run)
    if near:
        yield near

"""How a cut of a weight cuts the tensors that it is stored as: numbers, and what scales them."""

from __future__ import annotations

from math import gcd, lcm
from typing import TYPE_CHECKING, NamedTuple

from weightctl.split import Cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo

__all__ = [
    "Along",
    "Footprint",
    "WeightFootprint",
    "find_packed_axes",
    "own_part",
    "plain",
    "ratio",
]


class Along(NamedTuple):
    """The axis of a stored tensor along which there are `elements` for each `block` of a weight's.

    It is cut where the weight is cut at a multiple of `block`.
    """

    axis: int
    block: int = 1
    elements: int = 1


class Footprint(NamedTuple):
    """A stored tensor, and what of it belongs to each axis of its weight: None where all of it."""

    info: TensorInfo
    along: tuple[Along | None, ...]


class WeightFootprint(NamedTuple):
    """A weight of a model, and the tensors that it is stored as.

    `shape` is that of the weight. Where its tensors cannot be cut in bytes `refusal` says why, and
    `note` is what a person should know where they can.
    """

    name: str
    shape: tuple[int, ...]
    footprints: tuple[Footprint, ...]
    refusal: str = ""
    note: str = ""

    @property
    def blocks(self) -> tuple[int, ...]:
        """How many elements of each axis stay together, for the sake of all the tensors."""
        return tuple(
            lcm(*(along.block for each in self.footprints if (along := each.along[axis])))
            for axis in range(len(self.shape))
        )


def own_part(along: Sequence[Along | None], shape: Sequence[int], part: Part) -> Part:
    """Return the part that belongs to a part of its weight, of a stored tensor of a shape."""
    cuts: list[Cut] = []
    for axis, ranges in part:
        own = along[axis]
        if own is None:
            continue
        last = shape[own.axis]
        scaled = (
            (start // own.block * own.elements, min(-(-stop // own.block) * own.elements, last))
            for start, stop in ranges
        )
        cuts.append(Cut(own.axis, tuple(scaled)))
    return tuple(sorted(cuts))


def plain(info: TensorInfo) -> WeightFootprint:
    """Return a weight that is one tensor."""
    block, last = info.encoding.block, len(info.shape) - 1
    along = (Along(axis, block, block) if axis == last else Along(axis)
             for axis in range(len(info.shape)))  # fmt: skip
    crosses = bool(info.shape) and info.shape[-1] % block != 0
    refusal = "its blocks go on from one row into the next" if crosses else ""
    return WeightFootprint(info.name, info.shape, (Footprint(info, tuple(along)),), refusal=refusal)


def ratio(axis: int, length: int, count: int) -> Along:
    """Return what an axis of `count` elements has of one that is of `length`, packed in order."""
    divisor = gcd(length, count)
    return Along(axis, length // divisor, count // divisor)


def find_packed_axes(info: TensorInfo, shape: Sequence[int]) -> tuple[Along | None, ...]:
    """Return what numbers of a tensor, packed in order along its axes, have of a weight's axes."""
    made: list[Along | None] = []
    for axis, (length, count) in enumerate(zip(shape, info.shape, strict=True)):
        own = ratio(axis, length, count)
        if axis == len(shape) - 1 and info.encoding.block > 1:
            # Several of them are one element of the file.
            block = lcm(own.elements, info.encoding.block)
            own = Along(axis, own.block * block // own.elements, block)
        made.append(own)
    return tuple(made)

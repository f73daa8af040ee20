"""How the tensors that store a weight, such as values and scales, are cut with it."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from weightctl.schemes.cutting import Along
from weightctl.split import Cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo

__all__ = [
    "Footprint",
    "WeightFootprint",
    "own_part",
    "plain",
]


class Footprint(NamedTuple):
    """A stored tensor, and its axis for each axis of the weight; None if it is not cut along it."""

    info: TensorInfo
    along: tuple[Along | None, ...]


class WeightFootprint(NamedTuple):
    """A weight of a model, and the tensors that it is stored in.

    `shape` is the shape of the weight. `refusal` is the reason why its tensors cannot be split,
    empty if they can be. `note` is a message for the user about the split.
    """

    name: str
    shape: tuple[int, ...]
    footprints: tuple[Footprint, ...]
    refusal: str = ""
    note: str = ""

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of elements along each axis that stay together, for all of the tensors."""
        return tuple(
            lcm(*(along.block for each in self.footprints if (along := each.along[axis])))
            for axis in range(len(self.shape))
        )


def own_part(along: Sequence[Along | None], shape: Sequence[int], part: Part) -> Part:
    """Return the part of a stored tensor that belongs to a part of its weight.

    `shape` is the shape of the stored tensor, and `along` its axes.
    """
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
    """Return a weight that is stored in one tensor."""
    block, last = info.encoding.block, len(info.shape) - 1
    along = (Along(axis, block, block) if axis == last else Along(axis)
             for axis in range(len(info.shape)))  # fmt: skip
    crosses = bool(info.shape) and info.shape[-1] % block != 0
    refusal = "its blocks cross the ends of rows" if crosses else ""
    return WeightFootprint(info.name, info.shape, (Footprint(info, tuple(along)),), refusal=refusal)

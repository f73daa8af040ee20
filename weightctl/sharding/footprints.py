"""Describes how the tensors that store a weight, such as values and scales, are cut with it."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple

from weightctl.schemes.cutting import Along
from weightctl.split import Cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo


class Footprint(NamedTuple):
    """A stored tensor of a weight.

    `along` has the tensor's axis for each axis of the weight; None if the tensor is not cut when
    the weight is cut along that axis.
    """

    info: TensorInfo
    along: tuple[Along | None, ...]


class WeightFootprint(NamedTuple):
    """A weight of a model, and the tensors in which it is stored.

    `shape` is the shape of the weight. `refusal` is the reason why its tensors cannot be split; it
    is empty if they can. `note` is a message for the user about the split.
    """

    name: str
    shape: tuple[int, ...]
    footprints: tuple[Footprint, ...]
    refusal: str = ""
    note: str = ""

    @property
    def blocks(self) -> tuple[int, ...]:
        """The block size along each axis of the weight: a cut between blocks splits no tensor's."""
        return tuple(
            lcm(*(along.block for each in self.footprints if (along := each.along[axis])))
            for axis in range(len(self.shape))
        )


def own_part(along: Sequence[Along | None], shape: Sequence[int], part: Part) -> Part:
    """Return the part of a stored tensor that corresponds to a part of its weight.

    `along` has the tensor's axis for each axis of the weight, and `shape` is the tensor's shape.
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
    """Return the footprint of a weight that is stored in one tensor."""
    block, last = info.encoding.block, len(info.shape) - 1
    along = (Along(axis, block, block) if axis == last else Along(axis)
             for axis in range(len(info.shape)))  # fmt: skip
    crosses = bool(info.shape) and info.shape[-1] % block != 0
    refusal = "its blocks cross the ends of rows" if crosses else ""
    return WeightFootprint(info.name, info.shape, (Footprint(info, tuple(along)),), refusal=refusal)

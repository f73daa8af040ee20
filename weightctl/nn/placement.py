"""The ranks of a grid in this process, and the shards of weights that they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.device import DeviceRef
from weightctl.errors import GraphError, ShardingError
from weightctl.split import Grid

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.graph.weight import Weight
    from weightctl.split import Part, Sharding

__all__ = ["Placement", "Shards", "find_placement"]


class Placement(NamedTuple):
    """The ranks of a grid that are in this process: from `first` on, one on each of `devices`."""

    grid: Grid
    devices: tuple[DeviceRef, ...]
    first: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are in this process."""
        return len(self.devices) == self.grid.ranks

    @property
    def ranks(self) -> range:
        """The numbers of the ranks that are here."""
        return range(self.first, self.first + len(self.devices))

    def device(self, rank: int) -> DeviceRef:
        """Return where a rank that is here computes."""
        return self.devices[rank - self.first]


def find_placement(devices: Iterable[DeviceRef], grid: Grid | None, first: int) -> Placement:
    """Return which ranks are on these devices; without a `grid` they are all, and cut layers.

    Raises `ShardingError` if the value is not a device, a grid that divides the layers themselves,
    or one that processes with this many devices cannot make up, and a `first` that is not a
    process's.
    """
    given = tuple(devices)
    # They may be anything: a caller's types are not checked.
    unchecked: tuple[Any, ...] = given
    if not given or not all(isinstance(device, DeviceRef) for device in unchecked):
        raise ShardingError(
            f"{list(given)!r} is not a list of devices",
            hint="give one device per rank, such as `DeviceRef.GPU(0)`",
        )
    count = len(given)
    grid = Grid(count) if grid is None else grid
    if grid.pp != 1:
        raise ShardingError(
            f"a graph cannot run layers of {grid.pp} pipeline parallel ranks",
            hint="use a grid of `tp` and `ep` only; `pp` is only for files",
        )
    grid_text = f"the {grid.ranks} ranks of tp {grid.tp} x ep {grid.ep}"
    if grid.ranks % count:
        raise ShardingError(
            f"{grid_text} cannot be divided into processes with {count} ranks each",
            hint="every process must have the same number of devices, one per rank",
        )
    if first not in range(0, grid.ranks, count):
        raise ShardingError(
            f"a process with {count} of {grid_text} cannot start at rank {first}",
            hint=f"`first` must be {count} times the number of the process, counted from 0",
        )
    return Placement(grid, given, first)


class Shards:
    """The shards of weights that the ranks here have, each made once for all layers that use it."""

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        # With the weights, so that none goes and leaves its number to another.
        self._known: dict[tuple[int, int, Part], tuple[Weight, Weight]] = {}

    def of(self, weight: Weight, sharding: Sharding, rank: int) -> Weight:
        """Return what a rank that is here has of a weight that is cut for the ranks of a group.

        Raises `GraphError` for what is a shard itself, and if the rank has nothing of it.
        """
        part = sharding.parts[rank % self.placement.grid.tp]
        if part is None:
            raise GraphError(f"`{weight.name}` has no shard on rank {rank}", hint="use fewer ranks")
        key = (id(weight), rank, part)
        if key not in self._known:
            made = weight.part_for(part, rank, self.placement.device(rank))
            self._known[key] = (weight, made)
        return self._known[key][1]

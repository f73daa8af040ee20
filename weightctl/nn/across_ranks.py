"""Layers that several ranks compute together, each with its shards of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from weightctl.device import DeviceRef, as_device
from weightctl.errors import ArgumentTypeError, GraphError, ShardingError
from weightctl.graph import ops
from weightctl.graph.graph import Value
from weightctl.graph.sharding import ShardingStrategy
from weightctl.nn.base_layer import SHARED, LayerList, list_attributes
from weightctl.nn.module import Divisible, Module, Staged
from weightctl.nn.sharded_modules import has_shards, with_weights
from weightctl.nn.weight_names import all_weights
from weightctl.split import Grid
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from weightctl.graph.graph import Weight
    from weightctl.nn.base_layer import Layer
    from weightctl.split import Part, Sharding

ModuleT = TypeVar("ModuleT", bound=Module)


class _Placement(NamedTuple):
    """The ranks of a grid that are in this process: they start at `first`, one per device."""

    grid: Grid
    devices: tuple[DeviceRef, ...]
    first: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether all ranks are in this process."""
        return len(self.devices) == self.grid.ranks

    @property
    def ranks(self) -> range:
        """The numbers of the ranks in this process."""
        return range(self.first, self.first + len(self.devices))

    def device(self, rank: int) -> DeviceRef:
        """Return the device of a rank in this process."""
        return self.devices[rank - self.first]


def find_placement(devices: Iterable[DeviceRef], grid: Grid | None, first: int) -> _Placement:
    """Return the placement of ranks on these devices; without a `grid`, they are all of its ranks.

    Raises `ShardingError` if a value is not a device, if the grid has pipeline stages, if its ranks
    cannot be divided into processes with this many devices, or if no process starts at `first`.
    """
    unchecked = tuple(devices)
    try:
        given = tuple(map(as_device, unchecked))
    except ArgumentTypeError:
        given = ()
    if not given:
        raise ShardingError(
            f"{list(unchecked)!r} is not a list of devices",
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
    return _Placement(grid, given, first)


class Shards:
    """The shards for the ranks of this process; each is created once and shared by all layers."""

    def __init__(self, placement: _Placement) -> None:
        self.placement = placement
        # The whole weights are kept alive, so that their ids are not used again.
        self._known: dict[tuple[int, int, Part], tuple[Weight, Weight]] = {}

    def of(self, weight: Weight, sharding: Sharding, rank: int) -> Weight:
        """Return the shard of a weight on a rank of this process.

        `sharding` has the parts for the tensor parallel ranks of one group. Raises `GraphError` if
        the weight is itself a shard, or if the rank has nothing of it.
        """
        part = sharding.parts[rank % self.placement.grid.tp]
        if part is None:
            raise GraphError(f"`{weight.name}` has no shard on rank {rank}", hint="use fewer ranks")
        key = (id(weight), rank, part)
        if key not in self._known:
            made = weight.part_for(part, rank, self.placement.device(rank))
            self._known[key] = (weight, made)
        return self._known[key][1]


class Parallel(Module):
    """A layer that several ranks compute together, each with its shards of the layer's weights.

    It has all attributes of the layer `whole`, so that its weights have the same names and are
    loaded and returned in the same way; `shards` are the copies of the layer that compute.
    `devices` are the devices of the ranks in this process, which start at rank `first` of the
    `grid`; without a grid they are all ranks. Other processes must build and run the same graph for
    the other ranks. Inputs are moved to the device of every rank, and the result is on the first of
    `devices`. Only experts are divided among the `ep` groups; all other weights are computed with
    by the ranks of the first group. Raises `ShardingError` if the weights cannot be split in this
    way, and `GraphError` if they are already shards.
    """

    def __init__(
        self,
        whole: Divisible,
        devices: Iterable[DeviceRef],
        *,
        grid: Grid | None = None,
        first: int = 0,
        known: Shards | None = None,
    ) -> None:
        placement = find_placement(devices, grid, first)
        tp, ranks = placement.grid.tp, placement.grid.ranks
        views = whole.groups(placement.grid.ep)
        cuts = [_shardings(view, tp) for view in views]
        vars(self).update(list_attributes(whole))
        if SHARED in vars(whole):
            vars(self)[SHARED] = vars(whole)[SHARED]
        self.placement = placement
        self.widths = whole.widths(tp)
        # The number of ranks that contribute to the result: the first ones.
        is_cut = any(part for sharding in cuts[0].values() for part in sharding.parts)
        self.giving = ranks if len(views) > 1 else tp if is_cut else 1
        shards = Shards(placement) if known is None else known
        self.shards: LayerList[Divisible] = LayerList()
        for rank in placement.ranks:
            if rank >= self.giving and placement.is_whole:
                break
            group = rank // tp % len(views)
            made = {
                id(weight): shards.of(weight, cuts[group][id(weight)], rank)
                for weight in all_weights(views[group])
            }
            self.shards.append(with_weights(views[group], made))

    def __call__(self, *args: Any, **kwargs: Any) -> Value:
        """Return the output of the layer for these arguments, on the first device."""
        placement = self.placement
        begun: list[tuple[Sequence[Value], Any]] = []
        parts: list[Value] = []
        for rank, shard in zip(placement.ranks, self.shards, strict=False):
            device = placement.device(rank)
            given = [_on(device, each) for each in args]
            named = {name: _on(device, each) for name, each in kwargs.items()}
            if isinstance(shard, Staged):
                begun.append(shard.begin(*given, **named))
            else:
                parts.append(shard(*given, **named))
        parts = self._without_others(parts + self._finish(begun))
        is_whole = placement.is_whole
        everywhere = None if is_whole else placement.grid.ranks
        first = None if is_whole else placement.first
        if self.widths is None:
            return self._sum(parts)[0]
        # The groups are concatenated in order; those after the first contribute only zeros.
        sizes = self.widths if everywhere is None else self.widths * placement.grid.ep
        gathered = ops.allgather(parts, axis=-1, sizes=sizes, ranks=everywhere, first=first)[0]
        return gathered[..., : sum(self.widths)] if len(sizes) > len(self.widths) else gathered

    def _finish(self, begun: Sequence[tuple[Sequence[Value], Any]]) -> list[Value]:
        """Return the parts of the result of shards that need sums over all shards for it."""
        given = [
            self._without_others(each) for each in zip(*(own for own, _ in begun), strict=True)
        ]
        sums = list(zip(*map(self._sum, given), strict=True)) or [()] * len(begun)
        return [
            shard.finish(own, kept)
            for shard, own, (_, kept) in zip(self.shards, sums, begun, strict=False)
            if isinstance(shard, Staged)
        ]

    def _without_others(self, parts: Sequence[Value]) -> list[Value]:
        """Return the parts of a result, with zeros for those of ranks that do not contribute.

        Only the shape of these is used: nothing is computed, and no weight is read.
        """
        return [
            part if rank < self.giving
            else ops.constant(0, part.dtype, part.device).broadcast_to(part.shape)
            for rank, part in zip(self.placement.ranks, parts, strict=False)
        ]  # fmt: skip

    def _sum(self, parts: Sequence[Value]) -> Sequence[Value]:
        """Return the sum of the ranks' parts on the device of each rank of this process."""
        placement = self.placement
        if placement.is_whole:
            return ops.allreduce(parts)
        return ops.allreduce(parts, ranks=placement.grid.ranks, first=placement.first)


def parallel(
    network: ModuleT, devices: Iterable[DeviceRef], *, grid: Grid | None = None, first: int = 0
) -> ModuleT:
    """Replace each layer of a network that several ranks can compute together by a `Parallel`.

    Returns the network. Each process computes all other layers by itself on the first of its
    `devices`, where all uncut weights are. A weight that several layers share is cut once.
    `devices`, `grid` and `first` are those of `Parallel`. Raises the errors of `Parallel`, and
    `GraphError` if the network itself is such a layer or is already sharded; no layer is replaced
    in case of an error.
    """
    devices = list(devices)
    shards = Shards(find_placement(devices, grid, first))
    _refuse(network)
    network.name_before_call()  # for the names of weights in errors
    found = list(_divisible(network))
    made = {
        id(layer): Parallel(layer, devices, grid=grid, first=first, known=shards)
        for _, _, layer in found
    }
    network.to(devices[0])
    for above, name, layer in found:
        if made[id(layer)].giving > 1:
            _put(above, name, made[id(layer)])
    return network


def _refuse(network: Module) -> None:
    """Raise `GraphError` if the layers of a network cannot be replaced."""
    kind = type(network).__name__
    if has_shards(network):
        raise GraphError(
            f"{kind} is already sharded across several devices",
            hint="build the model again to shard it in another way",
        )
    if isinstance(network, Divisible):
        raise GraphError(
            f"{kind} is a single layer and has no layers to replace",
            hint="use the result of `Parallel(layer, devices)` instead of the layer",
        )


def _divisible(root: Layer) -> Iterator[tuple[Layer, str, Divisible]]:
    """Yield the outermost divisible layers, each after its parent and its name there."""
    seen = {id(root)}
    layers = [root]
    for above in layers:
        for name, layer in above.sublayers.items():
            if isinstance(layer, Divisible):
                yield above, name, layer
            elif id(layer) not in seen:
                seen.add(id(layer))
                layers.append(layer)


def _put(above: Layer, name: str, layer: Layer) -> None:
    if is_list(above):
        above[int(name)] = layer
    else:
        setattr(above, name, layer)


def _shardings(module: Divisible, ranks: int) -> dict[int, Sharding]:
    """Return how to cut the weights of a module for tensor parallel ranks, by their `id`."""
    strategy = ShardingStrategy.tensor_parallel(module, ranks)
    return {id(weight): strategy.sharding(weight) for weight in all_weights(module)}


def _on(device: DeviceRef, given: Any) -> Any:
    return given.to(device) if isinstance(given, Value) and given.device != device else given

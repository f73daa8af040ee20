"""The ranks of a sharded checkpoint, which compute its model together from their own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.matching import match
from weightctl.nn.across_ranks import parallel
from weightctl.nn.models.network import build_network
from weightctl.schemes.dequantize import dequantize_weights
from weightctl.weights.derived import Derived, DerivedTensor
from weightctl.weights.steps.sliced import Sliced
from weightctl.weights.tree import Checkpoint, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.device import DeviceRef
    from weightctl.families.checkpoint import RecognizedModel
    from weightctl.formats.sharded.gathered import GatheredSource
    from weightctl.graph.weight import Weight
    from weightctl.weights.derived import ReadableTensor

__all__ = ["Ranks"]


class Ranks:
    """A model that the ranks of a sharded checkpoint compute together, all on one device.

    The ranks of one pipeline stage compute a layer. Each rank's shards are read from its own file.
    Raises `ArchitectureError` if the checkpoint is not a whole model, and `ShardingError` if its
    layers cannot be cut for this number of ranks.
    """

    def __init__(
        self, checkpoint: RecognizedModel, gathered: GatheredSource, device: DeviceRef
    ) -> None:
        self.grid = gathered.manifest.grid
        grid = self.grid._replace(pp=1)
        network = build_network(checkpoint)
        network.to(device)
        self.network = parallel(network, [device] * grid.ranks, grid=grid)
        everywhere = range(self.grid.ranks)
        # One rank of each stage, since a layer is on one stage only.
        self._trees = [
            _make_tree(gathered.view_for_ranks(everywhere[rank :: grid.ranks]))
            for rank in range(grid.ranks)
        ]
        self._tensors = [_list_tensors(checkpoint, tree) for tree in self._trees]

    def part(self, weight: Weight) -> Checkpoint:
        """Return the shard of a weight that a rank has."""
        whole, rank = weight.shard_of, weight.shard_idx
        if whole is None or rank is None or weight.part is None:
            raise ValueError(f"`{weight.name}` is not a shard")
        tensor = self._tensors[rank][whole.name]
        made = DerivedTensor(weight.name, Sliced(weight.part), [tensor])
        source = source_of(self._trees[rank])
        return Checkpoint(Derived(source, {weight.name: made}, {}))[weight.name]


def _make_tree(gathered: GatheredSource) -> Checkpoint:
    return dequantize_weights(Checkpoint(gathered), in_blocks=False)


def _list_tensors(checkpoint: RecognizedModel, tree: Checkpoint) -> Mapping[str, ReadableTensor]:
    """Return a tree's tensors by our modules' names; it is another tree of the same checkpoint."""
    family, config = checkpoint.family, checkpoint.config
    return match(tree, family, checkpoint.convention, config, checkpoint.where).tensors

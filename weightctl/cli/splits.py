"""Describes in listings how tensors are cut for several ranks."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from weightctl.cli.render import Cell, shape_text
from weightctl.text.wording import pluralize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.split import Grid, Sharding
    from weightctl.weights.info import Header

_FEW = 2

# The shape of each rank's shard, None for a rank that does not have the tensor.
_Shapes = tuple[tuple[int, ...] | None, ...]


def grid_text(grid: Grid) -> str:
    """Return the arrangement of ranks: `2 ranks: tp 2`."""
    ranks = pluralize(grid.ranks, "rank")
    return f"{ranks}: {grid.degrees}" if grid.degrees else ranks


def split_cells(header: Header, name: str) -> tuple[Cell, ...]:
    """Return the cells that show how a tensor is cut: `rowwise 2x`, and the shards' shapes.

    There are none if the checkpoint is not sharded.
    """
    sharding = header.shardings.get(name)
    return () if sharding is None else _cells(header.tensors[name].shape, sharding)


# All layers are cut in the same way, so results are cached.
@lru_cache(maxsize=1024)
def _cells(whole: tuple[int, ...], sharding: Sharding) -> tuple[Cell, ...]:
    count = len({part for part in sharding.parts if part is not None})
    times = f" {count}x" if count > 1 else ""
    shapes = tuple(sharding.shape(whole, rank) for rank in range(len(sharding.parts)))
    strategy = strategy_name(sharding)
    return (
        Cell(strategy + times, "yellow", short=brief(strategy) + times),
        rank_shapes(whole, shapes)._replace(short=""),
    )


def strategy_name(sharding: Sharding) -> str:
    """Return the name of a tensor's strategy; `whole` if a single rank has all of the tensor."""
    is_whole = [part for part in sharding.parts if part is not None] == [()]
    return "whole" if is_whole and sharding.strategy == "replicate" else sharding.strategy


def brief(strategy: str) -> str:
    """Return the short name of a strategy, for narrow terminals."""
    return strategy.rpartition(", ")[2].replace("head_aware_columnwise", "head_aware")


def rank_shapes(whole: Sequence[int], shapes: _Shapes) -> Cell:
    """Return a cell with the shapes of the shards.

    The ranks are named if their shapes differ, or if some do not have the tensor.
    """
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for rank, shape in enumerate(shapes):
        if shape is not None:
            by_shape.setdefault(shape, []).append(rank)
    if list(by_shape.values()) == [list(range(len(shapes)))]:
        shape = next(iter(by_shape))
        return Cell("" if shape == tuple(whole) else shape_text(shape))
    texts = [f"{shape_text(shape)} on {join_ranks(ranks)}" for shape, ranks in by_shape.items()]
    if len(by_shape) == 1:
        return Cell(texts[0])
    rest = ["..."] if len(by_shape) > _FEW else []
    shown = [shape_text(shape) for shape in by_shape][:_FEW]
    return Cell("; ".join(texts), short=" / ".join([*shown, *rest]))


def join_ranks(ranks: Sequence[int]) -> str:
    """Return the numbers of ranks as text, with ranges: `0-3, 6`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] + 1 == rank:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs)

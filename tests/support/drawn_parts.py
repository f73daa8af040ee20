"""Strategies of hypothesis for sharded checkpoints: tensors, and the part that each rank has."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from sharded_files import bytes_for, plan_of, whole_of, write_shards, write_whole
from weightctl import open_weights
from weightctl.dtype import ENCODINGS
from weightctl.split import Cut, Grid, Sharding, part_along
from weightctl.weights.info import TensorInfo

if TYPE_CHECKING:
    from pathlib import Path

    from weightctl.dtype import Encoding
    from weightctl.sharding.plan import ShardPlan
    from weightctl.split import Part, Range, Whole

    Contents = dict[str, tuple[TensorInfo, bytes]]

__all__ = ["HELD_BY", "Drawn", "drawn_sets", "parts_of", "tensors_of"]

HELD_BY = {
    "safetensors": ("F32", "BF16", "U8", "F8_E4M3"),
    "gguf": ("F32", "BF16", "Q8_0", "Q4_K"),
}
_MOST_RANKS = 6


class Drawn(NamedTuple):
    """A checkpoint and its sharding, before anything is written."""

    format: str
    ranks: int
    contents: Contents
    shardings: dict[str, Sharding]

    def plan(self, directory: Path) -> ShardPlan:
        """Write the whole checkpoint, and return the plan to shard it."""
        path = write_whole(directory / "whole", self.format, self.contents, {})
        return plan_of(
            open_weights(path), Grid(self.ranks), lambda whole, _: self.shardings[whole.name]
        )

    def write(self, directory: Path) -> Path:
        """Write the whole checkpoint and its shards; return the directory of the shards."""
        return write_shards(self.plan(directory), directory / "parts")


@st.composite
def tensors_of(draw: st.DrawFn, name: str, encoding: Encoding) -> TensorInfo:
    """A tensor of up to three dimensions in whole blocks; it can be a scalar, or empty."""
    outer = draw(st.lists(st.integers(1, 5), max_size=2))
    row = draw(st.integers(1, 5)) * encoding.block
    few = [(*outer, row)] * 8 + [(0, row), (2, 0)] + [()] * (encoding.block == 1)
    return TensorInfo(name, draw(st.sampled_from(few)), encoding)


@st.composite
def parts_of(draw: st.DrawFn, whole: Whole, ranks: int) -> Sharding:
    """Any parts for several ranks, in any order, that cover the whole tensor without overlap.

    Several ranks can have the same part, and some can have none.
    """
    left = ranks
    choices: list[list[Part]] = []
    for axis, size in enumerate(whole.shape):
        units = size // whole.blocks[axis]
        groups = draw(st.integers(1, max(min(units, left), 1)))
        left //= groups
        choices.append(draw(_along(axis, size, whole.blocks[axis], groups)))
    parts: list[Part] = [tuple(cut for each in cuts for cut in each) for cuts in product(*choices)]
    others = st.sampled_from([*parts, None])
    given = [*parts, *(draw(others) for _ in range(ranks - len(parts)))]
    return Sharding("drawn", tuple(draw(st.permutations(given))))


@st.composite
def _along(draw: st.DrawFn, axis: int, size: int, block: int, groups: int) -> list[Part]:
    """Divide the units of an axis among groups; each group gets at least one."""
    units = size // block
    each = [*range(groups), *(draw(st.integers(0, groups - 1)) for _ in range(units - groups))]
    owners = draw(st.permutations(each)) if units else []
    ranges: list[list[Range]] = [
        [(unit * block, (unit + 1) * block) for unit in range(units) if owners[unit] == group]
        for group in range(groups)
    ]
    return [part_along(axis, size, of) for of in ranges] if size else [(Cut(axis, ()),)]


@st.composite
def drawn_sets(draw: st.DrawFn) -> Drawn:
    """A few tensors in any encodings of a format, sharded for a few ranks."""
    format_name = draw(st.sampled_from([*HELD_BY]))
    ranks = draw(st.integers(1, _MOST_RANKS))
    contents: Contents = {}
    shardings: dict[str, Sharding] = {}
    for number, name in enumerate(
        draw(st.lists(st.sampled_from(HELD_BY[format_name]), max_size=4))
    ):
        info = draw(tensors_of(f"layers.{number}.{name}", ENCODINGS[name]))
        contents[info.name] = info, bytes_for(info)
        shardings[info.name] = draw(parts_of(whole_of(info), ranks))
    return Drawn(format_name, ranks, contents, shardings)

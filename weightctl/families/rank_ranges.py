"""The range of each rank along the axes that a group of weights divides together."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from weightctl.split import head_ranges, unit_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from weightctl.split import Heads, Range

# What the elements along an axis of a weight are: an extent that `families/modules.py` defines, or
# the name of the config field with the number of elements.
Extent: TypeAlias = str

# The extents that are divided in whole heads: by query heads, and by KV heads. The values of a KV
# head may have another size than its keys.
_OF_QUERIES = (
    "queries", "plain_keys", "values", "each_head", "ssm_channels", "ssm_gated_channels",
    "ssm_heads", "lru_channels", "lru_blocks",
)  # fmt: skip
_OF_KEYS = ("keys", "key_values", "ssm_group_states", "ssm_groups")
OF_HEADS: frozenset[Extent] = frozenset({*_OF_QUERIES, *_OF_KEYS})
# Those of the heads of a state space model and the groups that they are in.
OF_STATES: frozenset[Extent] = frozenset(
    {"ssm_channels", "ssm_gated_channels", "ssm_heads", "ssm_group_states", "ssm_groups"}
)
# Those of the blocks of a linear recurrent unit.
OF_BLOCKS: frozenset[Extent] = frozenset({"lru_channels", "lru_blocks"})

_OF_VALUES = ("values", "key_values", "ssm_group_states")
_SINGLE = ("each_head", "ssm_heads", "ssm_groups", "lru_blocks")

# The range of each rank in an extent, counted from the start of its run.
Shared: TypeAlias = "Mapping[Extent, Sequence[Range]]"


class SharedRun(NamedTuple):
    """A range of an axis that has one extent."""

    extent: Extent
    start: int
    stop: int


class SharedAxis(NamedTuple):
    """The divided axis of a weight: its runs, and how many elements of a block stay together."""

    runs: Sequence[SharedRun]
    block: int


def list_runs(extents: Sequence[Extent], size: int, heads: Heads) -> tuple[SharedRun, ...]:
    """Return the runs of an axis of `size` elements with these extents, one after the other.

    The runs of heads have the lengths that `heads` states, so the last run may not end at `size`.
    """
    found: list[SharedRun] = []
    start = 0
    for extent in extents:
        length = size // extents.count(extent)
        if extent in OF_HEADS:
            length = _count_heads(extent, heads) * _size_of_head(extent, heads)
        found.append(SharedRun(extent, start, start + length))
        start += length
    return tuple(found)


def share_extents(axes: Iterable[SharedAxis], heads: Heads, ranks: int) -> Shared | None:
    """Return the range of each rank in each extent, without breaking a block of any axis.

    Axes without heads must have the same single extent with the same length. None if a rank would
    get nothing.
    """
    blocks: dict[Extent, int] = {}
    length = 0
    for axis in axes:
        for extent, start, stop in axis.runs:
            blocks[extent] = lcm(blocks.get(extent, 1), axis.block)
            length = stop - start
    if blocks.keys() & OF_HEADS:
        return _share_heads(blocks, heads, ranks)
    ((extent, block),) = blocks.items()
    ranges = unit_ranges(length, block, ranks)
    return None if ranges is None else {extent: ranges}


def _share_heads(blocks: Mapping[Extent, int], heads: Heads, ranks: int) -> Shared | None:
    """Return the range of each rank in each extent that is divided by heads, in whole blocks."""

    def step(extent: Extent) -> int:
        size = _size_of_head(extent, heads)
        return lcm(blocks.get(extent, 1), size) // size

    of_queries = lcm(*(step(extent) for extent in _OF_QUERIES if extent in blocks))
    of_keys = lcm(step("keys"), *(step(extent) for extent in _OF_KEYS if extent in blocks))
    shared = head_ranges(heads.queries, heads.keys, ranks, step=of_queries, kv_step=of_keys)
    if shared is None:
        return None
    found: dict[Extent, list[Range]] = {}
    for extent in {"queries", "keys", *blocks}:
        size = _size_of_head(extent, heads)
        own = [keys if extent in _OF_KEYS else queries for queries, keys in shared]
        found[extent] = [(first * size, last * size) for first, last in own]
    return found


def _count_heads(extent: Extent, heads: Heads) -> int:
    return heads.keys if extent in _OF_KEYS else heads.queries


def _size_of_head(extent: Extent, heads: Heads) -> int:
    """Return the number of elements of an extent per head."""
    if extent in _SINGLE:
        return 1
    if extent == "plain_keys":
        return heads.plain
    if extent == "ssm_gated_channels":  # the gates and the values of a head
        return 2 * heads.size
    return heads.value if extent in _OF_VALUES else heads.size


def ranges_of_rank(runs: Iterable[SharedRun], shared: Shared, rank: int) -> list[Range]:
    """Return the ranges of an axis that a rank has."""
    return [
        (run.start + start, run.start + stop)
        for run in runs
        for start, stop in (shared[run.extent][rank],)
    ]

"""The values of tensors: statistics, measured in one pass, and selections of elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.values.counts import Statistics, ValueCounts
    from weightctl.values.measure import can_measure, measure_counts
    from weightctl.values.rank import estimate_rank, has_rank
    from weightctl.values.selection import Selection, parse_selection, read_selection

__all__ = [
    "Selection",
    "Statistics",
    "ValueCounts",
    "can_measure",
    "estimate_rank",
    "has_rank",
    "measure_counts",
    "parse_selection",
    "read_selection",
]

_NAMES = {
    "Selection": "weightctl.values.selection:Selection",
    "Statistics": "weightctl.values.counts:Statistics",
    "ValueCounts": "weightctl.values.counts:ValueCounts",
    "can_measure": "weightctl.values.measure:can_measure",
    "estimate_rank": "weightctl.values.rank:estimate_rank",
    "has_rank": "weightctl.values.rank:has_rank",
    "measure_counts": "weightctl.values.measure:measure_counts",
    "parse_selection": "weightctl.values.selection:parse_selection",
    "read_selection": "weightctl.values.selection:read_selection",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)

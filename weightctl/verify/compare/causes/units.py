"""Detects the inner units of an MLP in another order."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from weightctl.verify.compare.causes.orders import (
    COLUMNS,
    ROWS,
    find_order,
    find_output_order,
    is_in_order,
)
from weightctl.verify.results import Explanation

if TYPE_CHECKING:
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing

    Places = tuple[int, ...]

__all__ = ["find_equivalent_units"]

# The parts of an MLP, or of an expert, that have the inner units as rows or columns.
_PART = re.compile(
    r"(?P<mlp>.*\bmlp\.(?:experts\.\d+\.)?)(?P<part>(?:gate|up|gate_up)\.\w+|down\.weight)"
)
_FUSED, _DOWN = "gate_up.", "down."
_ALIKE = Explanation(
    "units_permuted",
    "the inner units of its MLP are in another order in all projections: the model computes "
    "the same",
)


def find_equivalent_units(
    pair: Pair, pairing: Pairing, found: Measured | None
) -> Explanation | None:
    """Detect that an MLP's inner units are in the same other order in all projections."""
    del found
    named = _PART.fullmatch(pair.module)
    if named is None:
        return None
    mlp = named["mlp"]
    if mlp not in pairing.alike:
        places = _find_units(pair, named["part"], pairing)
        are_alike = places is not None and all(
            _has_units(each, part["part"], places, pairing)
            for each in pairing.pairs
            if (part := _PART.fullmatch(each.module)) is not None and part["mlp"] == mlp
        )
        pairing.alike[mlp] = _ALIKE if are_alike else None
    return pairing.alike[mlp]


def _find_units(pair: Pair, part: str, pairing: Pairing) -> Places | None:
    """Return the reference's inner unit at each place of a tensor; None if unknown."""
    if part.startswith(_DOWN):
        view = pairing.seen_in("gguf", pair)
        return None if view is None else find_order(view, pairing, COLUMNS)
    places = find_output_order(pair, pairing)
    if places is None or not part.startswith(_FUSED):
        return places
    units = places[: len(places) // 2]
    return units if places == _fuse(units) else None


def _has_units(pair: Pair, part: str, units: Places, pairing: Pairing) -> bool:
    """Whether a tensor of an MLP has the inner units in a given order."""
    view = pairing.seen_in("gguf", pair)
    if view is None:
        return False
    axis = COLUMNS if part.startswith(_DOWN) else ROWS
    places = _fuse(units) if part.startswith(_FUSED) else units
    known = pairing.orders.get((view.module, axis, view.tensor.origin.steps))
    return known == places or is_in_order(view, pairing, axis, places)


def _fuse(units: Places) -> Places:
    """Return the order of the rows of a tensor that fuses gate and up."""
    return (*units, *(len(units) + unit for unit in units))

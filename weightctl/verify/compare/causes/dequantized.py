"""Detects full-precision values that went through a coarser encoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.once_quantized import exchange_sides, find_former_encoding
from weightctl.verify.results import Explanation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairs import Pair, Pairing

__all__ = ["find_dequantized"]

_MOST_NAMED = 3


def find_dequantized(pair: Pair, pairing: Pairing, found: Measured) -> Explanation | None:
    """Detect that a tensor or its reference was quantized once; all such tensors share a cause."""
    if not _may_be(found):
        return None
    view = pairing.seen_in("gguf", pair)
    if view is None:
        return None
    if name := find_former_encoding(view):
        return _make_cause("the values", [*pairing.once_quantized.own, name])
    if name := find_former_encoding(exchange_sides(view)):
        return _make_cause("the values of the reference", [*pairing.once_quantized.reference, name])
    return None


def _may_be(found: Measured) -> bool:
    """Whether most values differ slightly from the reference's, as a quick first test."""
    return found.runs_unequal * 2 > found.runs and found.error < found.squares


def _make_cause(whose: str, encodings: Sequence[str]) -> Explanation:
    names = " and ".join(list(dict.fromkeys(encodings))[:_MOST_NAMED])
    return Explanation(
        "dequantized",
        f"{whose} look dequantized: they were stored in {names} before, and the lost "
        "precision cannot be restored",
    )

"""Limits on the cost of a pickle: its objects may refer to one another without end."""

from __future__ import annotations

from typing import Any

from weightctl.formats.pytorch.children import list_sequences, module_weight, weight
from weightctl.formats.pytorch.records import Size, TensorRecord
from weightctl.text.untyped import is_list, is_tuple

__all__ = ["Allowance", "UnsoundTreeError"]

_MAX_DEPTH = 100
# As many in one place make no difference.
_FEW = 8
_SHORT = {bool, float, complex, TensorRecord}


class UnsoundTreeError(ValueError):
    """What a pickle holds is not a tree of tensors that could be."""


class Allowance:
    """What may still be spent on a pickle of this many bytes; all raise `UnsoundTreeError`.

    Each value takes a byte, so that one walk through all of them is always allowed. What is walked
    again, as it is in several places, has an allowance of its own.
    """

    def __init__(self, nbytes: int) -> None:
        self._visits = 20_000 + 4 * nbytes
        self._repeated = 10_000 + nbytes // 16
        self._letters = 10_000_000 + 64 * nbytes
        self._held = 1_000_000 + 4 * nbytes
        self._entered: set[int] = set()
        self._repeating = 0

    def visit(self, name: str, depth: int = 0) -> None:
        """Count what is at a name, that many levels deep."""
        if depth > _MAX_DEPTH:
            raise UnsoundTreeError(f"it is nested more than {_MAX_DEPTH} levels deep")
        self._visits -= 1
        self._letters -= len(name)
        if self._repeating:
            self._repeated -= 1
        self._require_rest()

    def look(self, record: Any) -> None:
        """Count what it takes to look at a record once."""
        if record is None or type(record) in _SHORT:
            return
        if type(record) is str:
            self._spend(0, len(record))
        elif type(record) is int:
            # It takes longer than its length to be written in decimal.
            self._spend(0, record.bit_length())
        else:
            self._spend(weight(record))
            self._spend(module_weight(record))
            held = record.sizes if type(record) is Size else record
            texts = held if is_list(held) or is_tuple(held) else ()
            self._spend(0, sum(len(each) for each in texts if type(each) is str))

    def hold(self, nbytes: int) -> None:
        """Count bytes that are copied."""
        self._held -= nbytes
        if self._held < 0:
            raise UnsoundTreeError(
                "too many tensors share the same storage: reading them would need far more "
                "memory "
                "than the size of the file"
            )

    def enter(self, record: Any) -> None:
        """Begin with what a record holds."""
        parts = {id(record), *(id(part) for part in list_sequences(record) if len(part) > _FEW)}
        self._repeating += bool(self._repeating or not self._entered.isdisjoint(parts))
        self._entered |= parts

    def leave(self) -> None:
        """End with what the record holds that was entered last."""
        self._repeating -= bool(self._repeating)

    def _spend(self, visits: int, letters: int = 0) -> None:
        self._visits -= visits
        self._letters -= letters
        self._repeated -= visits if self._repeating else 0
        self._require_rest()

    def _require_rest(self) -> None:
        if self._visits < 0 or self._letters < 0 or self._repeated < 0:
            raise UnsoundTreeError("its objects refer to the same objects too many times")

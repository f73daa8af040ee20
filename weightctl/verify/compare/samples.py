"""Some numbers of tensors, kept for those that are looked at again: to turn one takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.verify.compare.measuring import sample_of

if TYPE_CHECKING:
    from weightctl.codecs.base import F32
    from weightctl.weights.derived import Tensor

__all__ = ["Samples"]

# Of each some 32 KB.
_MOST_KEPT = 512


class Samples:
    """Samples of the tensors that were asked for last, told apart by which object they are."""

    def __init__(self) -> None:
        # With the tensor, so that no other has its number.
        self._kept: dict[int, tuple[Tensor, F32]] = {}

    def of(self, tensor: Tensor) -> F32:
        """Return some numbers from all over a tensor."""
        kept = self._kept.pop(id(tensor), None) or (tensor, sample_of(tensor))
        self._kept[id(tensor)] = kept
        if len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept[1]

"""Parts of stored tensors: only what a shard has is read, or copied."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from weightctl.engine.stored import InFiles
from weightctl.split import part_shape
from weightctl.weights.boxes import byte_part, byte_shape
from weightctl.weights.steps.sliced import read_part, runs

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torch import Tensor

    from weightctl.engine.stored import StoredWeight
    from weightctl.split import Part
    from weightctl.weights.info import TensorInfo

__all__ = ["slice_weight"]

# Of what is in more pieces the system is not told beforehand.
_PIECES = 8


def slice_weight(place: StoredWeight, whole: TensorInfo, part: Part) -> StoredWeight:
    """Return a part of a stored tensor, which is to be understood as `whole`."""
    if not part:
        return place
    if isinstance(place, InFiles):
        return _FileSlice(place, whole, part)
    return _Slice(place, whole, part)


class _Slice:
    """A part of a tensor that is in memory, or made."""

    def __init__(self, place: StoredWeight, whole: TensorInfo, part: Part) -> None:
        self._place, self._whole, self._part = place, whole, part
        self.info = whole._replace(shape=part_shape(whole.shape, part))
        self.source = place.source

    @property
    def key(self) -> Hashable:
        """The tensor and the part."""
        return (self._place.key, self._part)

    @property
    def is_borrowed(self) -> bool:
        """Whether the tensor is: a part may be the same memory."""
        return self._place.is_borrowed

    def raw(self) -> Tensor:
        """Return the part's bytes, themselves where they follow one another."""
        return _cut(self._place.raw(), self._whole, self._part)

    def expect(self) -> None:
        """Say that the tensor will be wanted."""
        self._place.expect()


class _FileSlice(InFiles):
    """A part of a tensor of a source, read again each time."""

    def __init__(self, place: InFiles, whole: TensorInfo, part: Part) -> None:
        super().__init__(place.source, place.info.name)
        self._place, self._whole, self._part = place, whole, part
        self.info = whole._replace(name=place.info.name, shape=part_shape(whole.shape, part))

    @property
    def key(self) -> Hashable:
        """The tensor and the part."""
        return (self._place.key, self._part)

    @property
    def is_borrowed(self) -> bool:
        """Whether somebody else has the memory of the tensor."""
        return self._place.is_borrowed

    def raw(self) -> Tensor:
        """Return the part's bytes, read again, or those in memory that somebody else has."""
        if self.is_borrowed:
            return _cut(self._place.raw(), self._whole, self._part)
        return super().raw()

    def expect(self) -> None:
        """Have the system read the part ahead, where it is in few pieces."""
        span = self.source.file_range(self.info.name)
        pieces = list(islice(runs(self._whole, self._part), _PIECES + 1))
        if span is not None and len(pieces) <= _PIECES:
            for offset, nbytes in pieces:
                span.expect(offset, offset + nbytes)

    def _read(self, start: int, memory: memoryview) -> None:
        def read(at: int, buffer: memoryview) -> None:
            self.source.read_into(self.info.name, at, buffer)

        read_part(self._whole, self._part, read, start, memory)


def _cut(raw: Tensor, whole: TensorInfo, part: Part) -> Tensor:
    """Return the bytes of a part of a tensor's bytes."""
    import torch

    found = raw.reshape(byte_shape(whole))
    for axis, ranges in byte_part(whole, part):
        pieces = [found.narrow(axis, start, stop - start) for start, stop in ranges]
        found = pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)
    return found.contiguous().reshape(-1)

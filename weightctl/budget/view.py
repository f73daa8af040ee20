"""A planned GGUF file as a checkpoint: the tensors have the values that the file would have."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weightctl.codecs import transcode
from weightctl.families.recognition import recognize
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.tree import Checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weightctl.dtype import Encoding
    from weightctl.families import RecognizedModel
    from weightctl.plan.plan import Item, Plan
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

# The number of values that are encoded at a time, in whole rows.
_RUN = 1 << 20


def view_plan(plan: Plan, types: Mapping[str, Encoding] | None = None) -> RecognizedModel:
    """Return the model that a plan for GGUF would write, with some tensors in other types.

    `types` maps names of tensors to encodings. If it is None, every tensor keeps the encoding of
    the source, so that the result is the unquantized model. Nothing is written: tensors are encoded
    when they are read. Raises `ArchitectureError` if the family is not supported.
    """
    tensors: dict[str, ReadableTensor] = {}
    for item in plan.items:
        name = item.info.name
        stored = StoredTensor(plan.source, item.source.name)
        encoding = item.source.encoding
        if types is not None:
            encoding = types.get(name, item.info.encoding)
        if encoding == item.source.encoding:
            tensors[name] = stored
            continue
        wanted = replace(item, info=item.info._replace(encoding=encoding))
        step = EncodedItem(wanted, zero_nonfinite=plan.zero_nonfinite)
        tensors[name] = DerivedTensor(name, step, [stored])
    return recognize(Checkpoint(Derived(plan.source, tensors, plan.metadata, plan.tied)))


def encode_rows(
    item: Item, raw: NDArray[np.uint8], matrix: int, *, zero_nonfinite: bool = False
) -> NDArray[np.uint8]:
    """Return rows of one matrix of an item's source, uint8 [rows, bytes], in its new encoding."""
    wanted = item.info.encoding
    importance = item.importance_of(matrix) if wanted.takes_importance else None
    return transcode(
        raw, item.source.encoding, wanted, importance, zero_nonfinite=zero_nonfinite
    ).raw


@dataclass(frozen=True, slots=True)
class EncodedItem:
    """A step that encodes the tensor of an item as the writer does, with the same bytes.

    A tensor outside the layers is read for each batch of positions, so it is encoded once and kept.
    """

    item: Item
    zero_nonfinite: bool = False
    _kept: list[NDArray[np.uint8]] = field(default_factory=list["NDArray[np.uint8]"])

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and the encoding of the item."""
        (info,) = inputs
        return info.shape, self.item.info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Encode the rows that the requested range is in."""
        info = self.item.info
        width = info.encoding.nbytes((info.row,))
        out = np.frombuffer(buffer, np.uint8)
        is_whole = len(out) == info.nbytes
        if is_whole and self._kept:
            out[:] = self._kept[0]
            return
        stop = start + len(out)
        for first, made in self._encode(inputs[0], start // width, -(-stop // width), width):
            begin, end = max(first, start), min(first + len(made), stop)
            out[begin - start : end - start] = made[begin - first : end - first]
        if is_whole and not info.name.startswith("blk."):
            self._kept.append(out.copy())

    def _encode(
        self, source: ReadableTensor, first: int, last: int, width: int
    ) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield the offset and the bytes of groups of rows; a group is in one matrix."""
        info, encoding = self.item.info, self.item.source.encoding
        size = encoding.nbytes((info.row,))
        rows_of_matrix = prod(info.shape[-2:-1])
        at_once = max(1, _RUN // info.row)
        while first < last:
            matrix = first // rows_of_matrix
            end = min(last, first + at_once, (matrix + 1) * rows_of_matrix)
            raw = np.empty((end - first, size), np.uint8)
            source.read_into(first * size, raw.reshape(-1).data)
            made = encode_rows(self.item, raw, matrix, zero_nonfinite=self.zero_nonfinite)
            yield first * width, made.reshape(-1)
            first = end

    def __str__(self) -> str:
        return ""

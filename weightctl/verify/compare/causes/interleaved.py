"""Detects interleaved rows of gate and up, where the gate's rows belong before those of up."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weightctl.errors import ConversionError
from weightctl.verify.results import Explanation
from weightctl.weights.derived import DerivedTensor
from weightctl.weights.steps.rows import RowOrder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weightctl.dtype import Encoding
    from weightctl.verify.compare.pairs import Pair, Pairing
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

    Guess = tuple[Pair, Explanation]

__all__ = ["guess_interleaved"]

_INTERLEAVED = Explanation(
    "gate_and_up_interleaved",
    "the gate and up projections are interleaved: their rows alternate, but each projection "
    "should be separate",
)
_TAKEN_APART = Explanation(
    "gate_and_up_interleaved",
    "the gate and up projections were separated as if they were interleaved: each has every "
    "second row of both",
)
_GATE, _UP = ".gate.", ".up."


def guess_interleaved(pair: Pair, pairing: Pairing) -> Iterator[Guess]:
    """Yield the pair with the rows of gate and up interleaved, and wrongly deinterleaved."""
    if pair.part.startswith("mlp.gate_up."):
        rows = pair.reference.info.shape[0]
        if rows % 2 == 0:
            for order, cause in _list_orders(rows // 2):
                made = DerivedTensor(pair.module, RowOrder(order), [pair.reference])
                yield pair._replace(reference=made), cause
        return
    both = [pair.module.replace(_UP, _GATE), pair.module.replace(_GATE, _UP)]
    found = [pairing.by_module.get(module) for module in both]
    if both[0] == both[1] or None in found:
        return
    references = [each.reference for each in found if each is not None]
    rows = references[0].info.shape[0] if references[0].info.shape else 0
    half = slice(rows) if pair.module == both[0] else slice(rows, 2 * rows)
    for order, cause in _list_orders(rows):
        try:
            picked = DerivedTensor(pair.module, _RowsOfBoth(order[half]), references)
        except ConversionError:
            return
        yield pair._replace(reference=picked), cause


def _list_orders(rows: int) -> Iterator[tuple[tuple[int, ...], Explanation]]:
    """Yield the wrong orders of `rows` gate rows followed by as many up rows."""
    yield tuple(each for row in range(rows) for each in (row, rows + row)), _INTERLEAVED
    yield (*range(0, 2 * rows, 2), *range(1, 2 * rows, 2)), _TAKEN_APART


class _RowsOfBoth(NamedTuple):
    """Rows of two tensors, counted as if the second followed the first."""

    order: tuple[int, ...]

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape, and the encoding that both have."""
        one, other = inputs
        if one.shape != other.shape or one.encoding != other.encoding or not one.shape:
            raise ConversionError(f"`{one.name}` and `{other.name}` differ in shape or type")
        return (len(self.order), *one.shape[1:]), one.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        """Read the rows of both tensors that contain the range, and select those needed."""
        info = inputs[0].info
        count = info.shape[0]
        row = info.nbytes // count
        first, last = start // row, -(-(start + len(buffer)) // row)
        wanted = np.asarray(self.order[first:last])
        picked = np.empty((len(wanted), row), np.uint8)
        for number, tensor in enumerate(inputs):
            is_of_it = wanted // count == number
            places = wanted[is_of_it] % count
            if places.size:
                lowest, highest = int(places.min()), int(places.max())
                near = bytearray((highest - lowest + 1) * row)
                tensor.read_into(lowest * row, memoryview(near))
                picked[is_of_it] = np.frombuffer(near, np.uint8).reshape(-1, row)[places - lowest]
        begin = start - first * row
        flat = picked.reshape(-1)
        np.frombuffer(buffer, np.uint8)[:] = flat[begin : begin + len(buffer)]

    def __str__(self) -> str:
        return "rows of gate and up"

"""Blocks of ggml behind dequantized weights, and the scales of whole weights that they lack.

Steps of a translation stay: rows in another order, and experts that are stacked or taken apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from weightctl.schemes.decoding.trees import Dequantized
from weightctl.schemes.decoding.whole_scales import WholeScale
from weightctl.weights.derived import Derived, DerivedTensor, StoredTensor
from weightctl.weights.steps.rows import RowOrder, RowRange, RowsFrom, StackedEntry
from weightctl.weights.steps.stacked import Joined, Stacked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.weights.derived import ReadableTensor

    # Steps that do not change the bytes of rows.
    _Kept: TypeAlias = RowOrder | RowRange | RowsFrom | StackedEntry | Joined | Stacked


class ScaledBlocks(NamedTuple):
    """A weight in blocks of NVFP4, and the scale of the whole weight or of each matrix."""

    blocks: ReadableTensor
    whole: WholeScale


def find_scaled_blocks(tensor: ReadableTensor) -> ScaledBlocks | None:
    """Return a float32 tensor as NVFP4 with scales; None if it is not computed from such blocks.

    The result has one scale for each matrix, or one for all.
    """
    tensor = _resolve(tensor)
    if not isinstance(tensor, DerivedTensor):
        return None
    step = tensor.step
    if isinstance(step, Dequantized):
        if step.blocks is None or step.whole is None or step.transposed:
            return None
        return ScaledBlocks(step.blocks, step.whole)
    if isinstance(step, RowOrder | RowRange | RowsFrom | StackedEntry | Joined | Stacked):
        below = [find_scaled_blocks(each) for each in tensor.inputs]
        found = [each for each in below if each is not None]
        if len(found) == len(below):
            return _apply(tensor.info.name, step, found)
    return None


def _apply(name: str, step: _Kept, found: Sequence[ScaledBlocks]) -> ScaledBlocks | None:
    scales = [each.whole for each in found]
    whole = _stack(step, scales) if isinstance(step, Stacked) else _follow(step, scales)
    if whole is None:
        return None
    return ScaledBlocks(DerivedTensor(name, step, [each.blocks for each in found]), whole)


def find_swapped_blocks(tensor: ReadableTensor) -> ReadableTensor | None:
    """Return the blocks of experts whose float32 values have inputs as rows, as gpt-oss has them.

    The rows of the blocks are the outputs. Returns None if a tensor is not such experts.
    """
    tensor = _resolve(tensor)
    if not isinstance(tensor, DerivedTensor) or not isinstance(tensor.step, Dequantized):
        return None
    step = tensor.step
    return step.blocks if step.transposed and step.whole is None else None


def _resolve(tensor: ReadableTensor) -> ReadableTensor:
    """Return what a tensor of a derived source is computed from, or taken from."""
    while isinstance(tensor, StoredTensor) and isinstance(tensor.source, Derived):
        tensor = tensor.source.tensor(tensor.name)
    return tensor


def _stack(step: Stacked, scales: Sequence[WholeScale]) -> WholeScale | None:
    """Return the scales of stacked matrices; None if they cannot be stated for each matrix."""
    if step.axis or len({each.use for each in scales}) > 1:
        return None
    if any(each.values.size != 1 for each in scales):
        return None
    return WholeScale(np.concatenate([each.values for each in scales]), scales[0].use)


def _follow(step: _Kept, scales: Sequence[WholeScale]) -> WholeScale | None:
    """Return the one scale of rows that are moved, or joined; None if there are several."""
    first = scales[0]
    if isinstance(step, StackedEntry) and first.values.size > 1:
        return WholeScale(first.values[step.index : step.index + 1], first.use)
    if any(each.use != first.use for each in scales):
        return None
    values = np.unique(np.concatenate([each.values for each in scales]))
    return WholeScale(values, first.use) if values.size == 1 else None

"""The squared error that each type causes in a tensor, measured on a sample of its rows."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from weightctl.budget.view import encode_rows
from weightctl.codecs import transcode
from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weightctl.codecs.base import F32
    from weightctl.dtype import Encoding
    from weightctl.plan.plan import Item, Plan

# The number of values of a tensor that are sampled, in whole rows.
_SAMPLE = 1 << 18


def measure_errors(plan: Plan, item: Item, types: Sequence[Encoding]) -> dict[str, float]:
    """Return the mean squared error of each type in an item's tensor, by the type's name.

    Errors are weighted with the importance of their columns if the item has importance. The rows
    are evenly spaced, so that the result does not depend on chance. The error of the type in which
    the source stores the tensor is 0.
    """
    rows = _choose_rows(item)
    in_matrix = prod(item.info.shape[-2:-1])
    found = dict.fromkeys((each.name for each in types), 0.0)
    for matrix in sorted({row // in_matrix for row in rows}):
        raw = _read_rows(plan, item, [row for row in rows if row // in_matrix == matrix])
        values = _decode(raw, item.source.encoding)
        weights = item.importance_of(matrix)
        scale = (
            np.ones(values.shape[1]) if weights is None else weights / max(weights.mean(), 1e-30)
        )
        for each in types:
            if each == item.source.encoding:
                continue
            changed = replace(item, info=item.info._replace(encoding=each))
            made = encode_rows(changed, raw, matrix, zero_nonfinite=plan.zero_nonfinite)
            error = np.square(values - _decode(made, each), dtype=np.float64)
            found[each.name] += float((error * scale).sum())
    return {name: total / max(1, len(rows) * item.info.row) for name, total in found.items()}


def _choose_rows(item: Item) -> list[int]:
    total = prod(item.info.shape[:-1])
    count = min(total, max(1, _SAMPLE // max(1, item.info.row)))
    return [round(float(row)) for row in np.linspace(0, total - 1, count)]


def _read_rows(plan: Plan, item: Item, rows: Sequence[int]) -> NDArray[np.uint8]:
    size = item.source.encoding.nbytes((item.info.row,))
    raw = np.empty((len(rows), size), np.uint8)
    for place, row in enumerate(rows):
        plan.source.read_into(item.source.name, row * size, raw[place].data)
    return raw


def _decode(raw: NDArray[np.uint8], encoding: Encoding) -> F32:
    made = transcode(raw, encoding, ENCODINGS["F32"]).raw
    return np.ascontiguousarray(made).view(np.float32).reshape(len(raw), -1)

"""Several files of a limited size."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.formats import format_module
from weightctl.formats.base import Part

if TYPE_CHECKING:
    from weightctl.plan.plan import Plan

__all__ = ["split"]

_MOST_PARTS = 65_535  # GGUF counts them in 16 bits


def split(plan: Plan, most: int) -> Plan:
    """Spread the tensors, in their order, over files of at most `most` bytes, headers included.

    A tensor that is larger has a file of its own; what fits into one file stays one. Raises
    `ConversionError` for more files than their names can count, and as `Plan.layouts` does.
    """
    whole = plan.with_items(tuple(replace(item, part=0) for item in plan.items))
    if whole.layouts()[0].nbytes <= most:
        return whole
    tensors = [item.info for item in plan.items]
    layout = format_module(plan.format).layout
    sizes = [0, *accumulate(info.nbytes for info in tensors)]
    parts: list[int] = []
    number = start = 0
    while start < len(tensors):
        part = Part(number, _MOST_PARTS, len(tensors))
        room = most
        stop = len(tensors) + 1
        while True:
            # What the header takes is known when it is made, and is less for fewer tensors.
            stop = max(min(bisect_right(sizes, sizes[start] + room) - 1, stop - 1), start + 1)
            nbytes = layout(tensors[start:stop], plan.metadata, part).nbytes
            if nbytes <= most or stop == start + 1:
                break
            room = most - (nbytes - (sizes[stop] - sizes[start]))
        parts += [number] * (stop - start)
        number, start = number + 1, stop
    if number > _MOST_PARTS:
        raise ConversionError(
            f"files of {most} bytes would be {number}", hint="let them be larger, such as 5GB"
        )
    items = (replace(item, part=part) for item, part in zip(plan.items, parts, strict=True))
    return plan.with_items(tuple(items))

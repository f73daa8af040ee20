"""The alignment of tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import ConversionError
from weightctl.formats.base import ALIGNMENT_KEY, LEAST_ALIGNMENT, is_alignment
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from weightctl.plan.plan import Plan

__all__ = ["align"]


def align(plan: Plan, boundary: int) -> Plan:
    """Start every tensor on a multiple of `boundary` bytes, as far as the format can.

    In GGUF each tensor does; safetensors forbids gaps, so there the first does, and the others
    start on a multiple of their element's size. The boundary is kept in the metadata, so that a
    copy has it too. Raises `ConversionError` for what is not a power of two from 8 on.
    """
    value = MetadataValue("u32", boundary)
    if boundary < LEAST_ALIGNMENT or not is_alignment(value):
        raise ConversionError(
            f"tensors cannot be aligned to {boundary} bytes",
            hint="powers of two from 8 on can be; 4096 is a page",
        )
    return replace(plan, metadata={**plan.metadata, ALIGNMENT_KEY: value})

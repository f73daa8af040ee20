"""MXFP8: 8-bit floats, with a power-of-two scale per block of 32 elements."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.microscaled import MICROSCALED_NAMES, cut_microscaled, infer_mxfp
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate, LogicalWeight

__all__ = ["SCHEME"]


def _infer(candidate: Candidate) -> LogicalWeight | None:
    return infer_mxfp(candidate, 8)


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode values that are stored separately."""
    stored.refuse_others()
    if stored.numbers.shape != stored.shape or stored.numbers.encoding.block != 1:
        raise stored.cannot_dequantize(
            f"`{stored.numbers.name}` of shape {list(stored.numbers.shape)} does not hold one "
            f"number for each of the {prod(stored.shape)} elements"
        )
    grid = stored.grid(stored.shape, stored.scales.shape)
    scales = stored.per_block(1, grid, powers=True)
    values = decoding.Scaled(numbers=stored.plain(0), scales=scales)
    return decoding.Decoding(stored.shape, values)


SCHEME = Scheme(
    label="MXFP8", names=MICROSCALED_NAMES, infer=_infer, decode=_decode, cut=cut_microscaled
)

"""bitsandbytes' LLM.int8(): I8 values, with the largest absolute value of each row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.scheme import LogicalWeight, NameEndings, Scheme

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.scheme import Candidate

__all__ = ["SCHEME"]

_NAMES = (NameEndings(".SCB", ".weight", ".weight", ("I8",), (".weight_format",)),)
# The float32 that bitsandbytes' kernels use for 1 / 127.
_PER_127 = 7.874015718698502e-3


def _infer(candidate: Candidate) -> LogicalWeight | None:
    shape = candidate.numbers.shape
    fits = len(shape) == 2 and candidate.scales.shape == shape[:1]
    return LogicalWeight(shape) if fits else None


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode rows whose largest absolute value represents 127."""
    stored.refuse_others(".weight_format")
    place = stored.find(".weight_format")
    if place is not None and stored.raw(place).strip(b"\0"):
        raise stored.cannot_dequantize(
            f"`{stored.tensors[place].info.name}` states a layout that only some GPUs can read"
        )
    grid = stored.grid(stored.shape, (stored.shape[0], 1))
    scales = stored.per_block(1, grid)
    values = decoding.Scaled(numbers=stored.plain(0), scales=scales, factor=_PER_127)
    return decoding.Decoding(stored.shape, values)


SCHEME = Scheme(label="LLM.int8()", names=_NAMES, infer=_infer, decode=_decode, cut=cut_upright)

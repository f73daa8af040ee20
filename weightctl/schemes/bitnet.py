"""BitNet: values -1, 0 and 1, with one scale per tensor; each byte has elements of four rows."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.naming import SCALED, LogicalWeight
from weightctl.schemes.scaled import is_plain
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.naming import Candidate


def _infer(candidate: Candidate) -> LogicalWeight | None:
    """Return a weight if the config states this scheme; shapes do not determine it."""
    if is_plain(candidate) or len(candidate.numbers.shape) < 2:
        return None
    if candidate.settings.text("quant_method") != "bitnet" or prod(candidate.scales.shape) != 1:
        return None
    *lead, rows, columns = candidate.numbers.shape
    return LogicalWeight((*lead, 4 * rows, columns))


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode values, which are divided by the scale, or multiplied by it in newer layers."""
    stored.refuse_others()
    if len(stored.shape) != 2:
        raise stored.cannot_dequantize(
            f"it has shape {list(stored.shape)}, but a matrix is expected"
        )
    grid = stored.grid(stored.shape, (1, 1))
    values = decoding.Scaled(
        numbers=decoding.Ternary(stored.table(0), stored.numbers.shape[0]),
        scales=stored.per_block(1, grid),
        inverse=stored.settings.text("linear_class") != "autobitlinear",
    )
    return decoding.Decoding(stored.shape, values)


SCHEME = Scheme(label="BitNet 1.58-bit", names=SCALED, infer=_infer, decode=_decode)

"""ModelOpt's INT4: signed integers, with a scale per group; each byte has elements of two rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.schemes import decoding
from weightctl.schemes.cutting import cut_upright
from weightctl.schemes.naming import SCALED, LogicalWeight, tiles
from weightctl.schemes.scaled import is_plain
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.naming import Candidate


def _infer(candidate: Candidate) -> LogicalWeight | None:
    if is_plain(candidate) or len(candidate.numbers.shape) < 2:
        return None
    *lead, rows, columns = candidate.numbers.shape
    scales = candidate.scales.shape
    if scales[:-1] != (*lead, 2 * rows) or not tiles(scales[-1], columns):
        return None
    return LogicalWeight((*lead, 2 * rows, columns))


def _decode(stored: SchemeTensors) -> Decoding:
    """Decode signed values; there can be factors for the inputs."""
    stored.refuse_others(".pre_quant_scale")
    grid = stored.grid(stored.shape, stored.scales.shape)
    layout = decoding.PackingLayout(4, 8)
    values = decoding.Scaled(
        numbers=decoding.PackedNumbers(stored.table(0), layout, 0, signed=True),
        scales=stored.per_block(1, grid),
        factors=stored.input_factors(),
    )
    return decoding.Decoding(stored.shape, values, bits=0 if values.factors else 4)


SCHEME = Scheme(label="INT4 scaled", names=SCALED, infer=_infer, decode=_decode, cut=cut_upright)

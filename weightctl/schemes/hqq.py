"""HQQ: packed integers; two more tensors state the original shape and the bit width."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes.naming import BITS, LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.naming import Candidate

_OTHERS = (
    ".shape", ".nbits", ".zero", ".group_size", ".axis", ".packing", ".unpack_view_dtype",
    ".view_as_float", ".quant_scale", ".quant_zero", ".compute_dtype", ".offload_meta",
    ".encoded_state_dict", ".stores_quant_config", ".channel_wise", ".optimize", ".round_zero",
)  # fmt: skip


def _infer(candidate: Candidate) -> LogicalWeight | None:
    shape, bits = candidate.integers(".shape"), candidate.integers(".nbits")
    if not shape or not bits or candidate.numbers.encoding.block != 1:
        return None
    # With 3 bits, 32 bits hold ten values.
    needed, held = prod(shape) * bits[0], 8 * candidate.numbers.nbytes
    if bits[0] not in BITS or not needed <= held < 2 * needed:
        return None
    return LogicalWeight(shape, bits[0])


SCHEME = Scheme(
    label="HQQ {bits}-bit",
    names=(NameEndings(".scale", ".W_q", ".weight", (), _OTHERS),),
    infer=_infer,
)

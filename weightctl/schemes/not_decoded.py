"""Schemes that are listed, and copied, but not decoded: EXL2, EXL3, HQQ, and quanto's integers."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from weightctl.schemes.naming import BITS, LogicalWeight, NameEndings
from weightctl.schemes.scheme import Scheme

if TYPE_CHECKING:
    from weightctl.schemes.naming import Candidate


_EXL2_OTHERS = (".q_scale_max", ".q_groups", ".q_invperm", ".q_perm", ".q_group_map")


def _infer_exl2(candidate: Candidate) -> LogicalWeight | None:
    order = candidate.shape(".q_invperm") or candidate.shape(".q_perm")
    if not order or len(candidate.numbers.shape) != 2:
        return None
    words, outputs = candidate.numbers.shape
    fits = order[0] <= 32 * words <= 8 * order[0]
    return LogicalWeight((outputs, order[0])) if fits else None


EXL2 = Scheme(
    label="EXL2",
    summary="ExLlamaV2: packed columns; groups of input features have different bit widths",
    names=(NameEndings(".q_scale", ".q_weight", ".weight", ("I32",), _EXL2_OTHERS),),
    infer=_infer_exl2,
)


def _infer_exl3(candidate: Candidate) -> LogicalWeight | None:
    if len(candidate.numbers.shape) != 3:
        return None
    inputs, outputs, words = candidate.numbers.shape
    if candidate.scales.shape != (16 * inputs,) or words not in range(8, 129, 8):
        return None
    # Bit widths such as 2.5 are possible.
    return LogicalWeight((16 * outputs, 16 * inputs), element=f"{words / 16:g}-bit")


EXL3 = Scheme(
    label="EXL3 {element}",
    summary="ExLlamaV3: tiles of 16 x 16 elements; a tile of K-bit codes takes 16 * K words of I16",
    names=(NameEndings(".suh", ".trellis", ".weight", ("I16",), (".svh", ".mcg", ".mul1")),),
    infer=_infer_exl3,
)


_HQQ_OTHERS = (
    ".shape", ".nbits", ".zero", ".group_size", ".axis", ".packing", ".unpack_view_dtype",
    ".view_as_float", ".quant_scale", ".quant_zero", ".compute_dtype", ".offload_meta",
    ".encoded_state_dict", ".stores_quant_config", ".channel_wise", ".optimize", ".round_zero",
)  # fmt: skip


def _infer_hqq(candidate: Candidate) -> LogicalWeight | None:
    shape, bits = candidate.integers(".shape"), candidate.integers(".nbits")
    if not shape or not bits or candidate.numbers.encoding.block != 1:
        return None
    # With 3 bits, 32 bits hold ten values.
    needed, held = prod(shape) * bits[0], 8 * candidate.numbers.nbytes
    if bits[0] not in BITS or not needed <= held < 2 * needed:
        return None
    return LogicalWeight(shape, bits[0])


HQQ = Scheme(
    label="HQQ {bits}-bit",
    summary="HQQ: packed integers; two more tensors state the original shape and the bit width",
    names=(NameEndings(".scale", ".W_q", ".weight", (), _HQQ_OTHERS),),
    infer=_infer_hqq,
)


_QUANTO_OTHERS = (".weight._shift", ".input_scale", ".output_scale")


def _infer_quanto(_candidate: Candidate) -> None:
    """Return None, because no tensor states the shape of the weight."""


QUANTO = Scheme(
    label="quanto",
    summary="quanto: integers of fewer than 8 bits",
    names=(
        NameEndings(".weight._scale", ".weight._data._data", ".weight", ("U8",), _QUANTO_OTHERS),
    ),
    infer=_infer_quanto,
)

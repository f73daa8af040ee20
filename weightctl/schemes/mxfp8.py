"""MXFP8: 8-bit floats, with a power-of-two scale per block of 32 elements."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from weightctl.schemes import decoding, encoding
from weightctl.schemes.microscaled import (
    MICROSCALED_NAMES,
    MXFP_BLOCK,
    cut_microscaled,
    infer_mxfp,
)
from weightctl.schemes.scheme import Scheme
from weightctl.schemes.written import (
    SchemeOptions,
    WrittenScheme,
    describe_compressed,
    refuse_groups,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from weightctl.codecs.base import U8
    from weightctl.dtype import Encoding
    from weightctl.schemes.decoding import Decoding, SchemeTensors
    from weightctl.schemes.encoding import Codes, WeightEncoding
    from weightctl.schemes.naming import Candidate, LogicalWeight


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


def _encode(shape: tuple[int, ...], _: SchemeOptions, __: Encoding) -> WeightEncoding:
    rows, columns = shape
    blocks = columns // MXFP_BLOCK
    return encoding.WeightEncoding(
        parts=(
            encoding.StoredPart(".weight", shape, "F8_E4M3", unit=columns),
            encoding.StoredPart(".weight_scale", (rows, blocks), "U8", unit=blocks),
        ),
        rows=rows, columns=columns, rounding=encoding.Microscaled8(MXFP_BLOCK), pack=_pack,
    )  # fmt: skip


def _pack(made: Codes, _peak: np.float32) -> tuple[U8, U8]:
    return made.codes, made.scales


def _describe(_: SchemeOptions, ignored: Sequence[str]) -> dict[str, Any]:
    common = {
        "num_bits": 8, "type": "float", "symmetric": True, "strategy": "group",
        "group_size": MXFP_BLOCK, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8",
    }  # fmt: skip
    activations = {**common, "dynamic": True, "observer": None}
    return describe_compressed("mxfp8-quantized", common, activations, ignored)


MXFP8 = WrittenScheme(
    name="MXFP8",
    summary="8-bit floats (E4M3), with a power-of-two scale per 32 elements; "
    "activations are rounded in the same way",
    encode=_encode,
    settings=_describe,
    refuse=refuse_groups,
    defaults=SchemeOptions(group=MXFP_BLOCK),
)

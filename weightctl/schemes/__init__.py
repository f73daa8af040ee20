"""Weights that are stored in several tensors: packed values, scales, zero points.

A scheme is a module here, with its record as `SCHEME`, and a line in `SCHEMES`. No other code names
a scheme: `matching` finds weights in headers, `decoding` computes values, `cutting` cuts tensors.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["SCHEMES", "SchemeLine"]


class SchemeLine(NamedTuple):
    """An entry of the table of schemes: where its record is, and how the names of its scales end.

    The record is loaded if a tensor has such a name.
    """

    record: str
    scales: tuple[str, ...]


_SCALED = (".scale", "_scale", "_scale_inv", ".scales", ".scale_weight")

# Shapes are compared in this order; `scaled` accepts weights that match no other scheme.
SCHEMES: dict[str, SchemeLine] = {
    "gptq": SchemeLine("weightctl.schemes.gptq:SCHEME", (".scales",)),
    "awq": SchemeLine("weightctl.schemes.awq:SCHEME", (".scales",)),
    "compressed_tensors": SchemeLine("weightctl.schemes.compressed_tensors:SCHEME", ("_scale",)),
    "mlx": SchemeLine("weightctl.schemes.mlx:SCHEME", (".scales",)),
    "gpt_oss": SchemeLine("weightctl.schemes.gpt_oss:SCHEME", (".scales", "_scales")),
    "mxfp4": SchemeLine("weightctl.schemes.mxfp4:SCHEME", _SCALED),
    "mxfp6": SchemeLine("weightctl.schemes.mxfp6:SCHEME", _SCALED),
    "mxfp8": SchemeLine("weightctl.schemes.mxfp8:SCHEME", _SCALED),
    "nvfp4": SchemeLine("weightctl.schemes.nvfp4:SCHEME", _SCALED),
    "modelopt": SchemeLine("weightctl.schemes.modelopt:SCHEME", _SCALED),
    "bitnet": SchemeLine("weightctl.schemes.bitnet:SCHEME", _SCALED),
    "llm_int8": SchemeLine("weightctl.schemes.llm_int8:SCHEME", (".SCB",)),
    "bitsandbytes": SchemeLine("weightctl.schemes.bitsandbytes:SCHEME", (".weight.absmax",)),
    "quanto": SchemeLine("weightctl.schemes.quanto:SCHEME", ("_scale",)),
    "hqq": SchemeLine("weightctl.schemes.hqq:SCHEME", (".scale",)),
    "exl2": SchemeLine("weightctl.schemes.exl2:SCHEME", ("_scale",)),
    "exl3": SchemeLine("weightctl.schemes.exl3:SCHEME", (".suh",)),
    "scaled": SchemeLine("weightctl.schemes.scaled:SCHEME", _SCALED),
}

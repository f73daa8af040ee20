"""Weights that are stored in several tensors: packed values, scales, zero points.

A scheme is a module here, or a part of that of schemes with the same layout, with a record and a
line in `SCHEMES`. No other code names a scheme: `matching` finds weights in headers, `cutting` cuts
tensors, and `arrays` computes values. A scheme that weightctl also writes has a further record, and
a line in `WRITTEN`; `arrays` then rounds values, and packs them as the module describes. Modules
other than those of `arrays` are read without NumPy.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from weightctl.system.registry import load_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SCHEMES", "WRITTEN", "SchemeLine", "added_schemes"]


class SchemeLine(NamedTuple):
    """An entry of the table of schemes: where its record is, and how the names of its scales end.

    The record is loaded if a tensor has such a name. Two fields are for schemes of packages.
    `written` has the references of the `WrittenScheme`s by the names that users give them.
    `method` is the `quant_method` of settings that only the scheme checks, in lower case.
    """

    record: str
    scales: tuple[str, ...]
    written: Mapping[str, str] = MappingProxyType({})
    method: str = ""


_SCALED = (".scale", "_scale", "_scale_inv", ".scales", ".scale_weight")

# Shapes are compared in this order; `scaled` accepts weights that match no other scheme.
SCHEMES: dict[str, SchemeLine] = {
    "gptq": SchemeLine("weightctl.schemes.gptq:SCHEME", (".scales",)),
    "awq": SchemeLine("weightctl.schemes.awq:SCHEME", (".scales",)),
    "compressed_tensors": SchemeLine("weightctl.schemes.compressed_tensors:SCHEME", ("_scale",)),
    "mlx": SchemeLine("weightctl.schemes.mlx:SCHEME", (".scales",)),
    "gpt_oss": SchemeLine("weightctl.schemes.microscaled:GPT_OSS_SCHEME", (".scales", "_scales")),
    "mxfp4": SchemeLine("weightctl.schemes.microscaled:MXFP4_SCHEME", _SCALED),
    "mxfp6": SchemeLine("weightctl.schemes.microscaled:MXFP6_SCHEME", _SCALED),
    "mxfp8": SchemeLine("weightctl.schemes.microscaled:MXFP8_SCHEME", _SCALED),
    "nvfp4": SchemeLine("weightctl.schemes.nvfp4:SCHEME", _SCALED),
    "ggml_nvfp4": SchemeLine("weightctl.schemes.nvfp4:GGML_SCHEME", (".scale",)),
    "modelopt": SchemeLine("weightctl.schemes.scaled:MODELOPT", _SCALED),
    "bitnet": SchemeLine("weightctl.schemes.scaled:BITNET", _SCALED),
    "llm_int8": SchemeLine("weightctl.schemes.bitsandbytes:LLM_INT8", (".SCB",)),
    "bitsandbytes": SchemeLine("weightctl.schemes.bitsandbytes:SCHEME", (".weight.absmax",)),
    "quanto": SchemeLine("weightctl.schemes.not_decoded:QUANTO", ("_scale",)),
    "hqq": SchemeLine("weightctl.schemes.not_decoded:HQQ", (".scale",)),
    "exl2": SchemeLine("weightctl.schemes.not_decoded:EXL2", ("_scale",)),
    "exl3": SchemeLine("weightctl.schemes.not_decoded:EXL3", (".suh",)),
    "scaled": SchemeLine("weightctl.schemes.scaled:SCHEME", _SCALED),
}

# The schemes that weightctl writes, by the names that users give them.
WRITTEN: dict[str, str] = {
    "FP8": "weightctl.schemes.scaled:FP8",
    "FP8_DYNAMIC": "weightctl.schemes.scaled:FP8_DYNAMIC",
    "FP8_BLOCK": "weightctl.schemes.scaled:FP8_BLOCK",
    "MXFP8": "weightctl.schemes.microscaled:MXFP8",
    "W8A16": "weightctl.schemes.compressed_tensors:W8A16",
    "W4A16": "weightctl.schemes.compressed_tensors:W4A16",
    "NVFP4A16": "weightctl.schemes.nvfp4:NVFP4A16",
    "NVFP4": "weightctl.schemes.nvfp4:NVFP4",
    "MXFP4": "weightctl.schemes.microscaled:MXFP4",
    "GPTQ": "weightctl.schemes.gptq:GPTQ",
    "GPTQ-8bit": "weightctl.schemes.gptq:GPTQ_8BIT",
    "AWQ": "weightctl.schemes.awq:AWQ",
    "MLX-4bit": "weightctl.schemes.mlx:MLX_4BIT",
    "MLX-8bit": "weightctl.schemes.mlx:MLX_8BIT",
    "MLX-mxfp4": "weightctl.schemes.mlx:MLX_MXFP4",
    "BNB-NF4": "weightctl.schemes.bitsandbytes:BNB_NF4",
    "BNB-INT8": "weightctl.schemes.bitsandbytes:BNB_INT8",
}


@cache
def added_schemes() -> Mapping[str, SchemeLine]:
    """Return the schemes of installed packages, which are looked for when no other is found.

    Raises the errors of `load_tables`.
    """
    return load_tables("weightctl.schemes", SchemeLine, SCHEMES, "scheme")

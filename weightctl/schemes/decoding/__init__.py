"""Decoding of quantized weights: packed values, the scales of blocks, and blocks of ggml.

All of it uses NumPy, and is loaded when a weight is decoded; schemes refer to it earlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.schemes.decoding.blocks import Microscaled, NvidiaMicroscaled
    from weightctl.schemes.decoding.tables import (
        BlockGrid,
        BlockNumbers,
        PackedNumbers,
        PackingLayout,
        PerBlock,
        PlainNumbers,
        Powers,
        SymmetricZeros,
        Ternary,
    )
    from weightctl.schemes.decoding.tensors import Decoding, SchemeTensors
    from weightctl.schemes.decoding.values import E2M1, CodedRow, NestedScales, Scaled
    from weightctl.schemes.decoding.whole_scales import ScaleUse, WholeScale

__all__ = [
    "E2M1",
    "BlockGrid",
    "BlockNumbers",
    "CodedRow",
    "Decoding",
    "Microscaled",
    "NestedScales",
    "NvidiaMicroscaled",
    "PackedNumbers",
    "PackingLayout",
    "PerBlock",
    "PlainNumbers",
    "Powers",
    "ScaleUse",
    "Scaled",
    "SchemeTensors",
    "SymmetricZeros",
    "Ternary",
    "WholeScale",
]

_NAMES = {
    "E2M1": "weightctl.schemes.decoding.values:E2M1",
    "BlockGrid": "weightctl.schemes.decoding.tables:BlockGrid",
    "BlockNumbers": "weightctl.schemes.decoding.tables:BlockNumbers",
    "CodedRow": "weightctl.schemes.decoding.values:CodedRow",
    "Decoding": "weightctl.schemes.decoding.tensors:Decoding",
    "Microscaled": "weightctl.schemes.decoding.blocks:Microscaled",
    "NestedScales": "weightctl.schemes.decoding.values:NestedScales",
    "NvidiaMicroscaled": "weightctl.schemes.decoding.blocks:NvidiaMicroscaled",
    "PackedNumbers": "weightctl.schemes.decoding.tables:PackedNumbers",
    "PackingLayout": "weightctl.schemes.decoding.tables:PackingLayout",
    "PerBlock": "weightctl.schemes.decoding.tables:PerBlock",
    "PlainNumbers": "weightctl.schemes.decoding.tables:PlainNumbers",
    "Powers": "weightctl.schemes.decoding.tables:Powers",
    "ScaleUse": "weightctl.schemes.decoding.whole_scales:ScaleUse",
    "Scaled": "weightctl.schemes.decoding.values:Scaled",
    "SchemeTensors": "weightctl.schemes.decoding.tensors:SchemeTensors",
    "SymmetricZeros": "weightctl.schemes.decoding.tables:SymmetricZeros",
    "Ternary": "weightctl.schemes.decoding.tables:Ternary",
    "WholeScale": "weightctl.schemes.decoding.whole_scales:WholeScale",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)

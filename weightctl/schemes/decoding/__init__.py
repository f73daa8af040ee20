"""Values of quantized weights: packed numbers, which scale is whose, and blocks of ggml.

All of it computes with NumPy, and is loaded when a weight is decoded: schemes name it before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.system.registry import load_on_use

if TYPE_CHECKING:
    from weightctl.schemes.decoding.blocks import Microscaled
    from weightctl.schemes.decoding.coded import CodedRow, NestedScales
    from weightctl.schemes.decoding.grid import BlockGrid, PerBlock
    from weightctl.schemes.decoding.numbers import PackedNumbers, PlainNumbers, Powers, Ternary
    from weightctl.schemes.decoding.packing import PackingLayout
    from weightctl.schemes.decoding.tensors import Decoding, SchemeTensors
    from weightctl.schemes.decoding.values import E2M1, Scaled

__all__ = [
    "E2M1",
    "BlockGrid",
    "CodedRow",
    "Decoding",
    "Microscaled",
    "NestedScales",
    "PackedNumbers",
    "PackingLayout",
    "PerBlock",
    "PlainNumbers",
    "Powers",
    "Scaled",
    "SchemeTensors",
    "Ternary",
]

_NAMES = {
    "E2M1": "weightctl.schemes.decoding.values:E2M1",
    "BlockGrid": "weightctl.schemes.decoding.grid:BlockGrid",
    "CodedRow": "weightctl.schemes.decoding.coded:CodedRow",
    "Decoding": "weightctl.schemes.decoding.tensors:Decoding",
    "Microscaled": "weightctl.schemes.decoding.blocks:Microscaled",
    "NestedScales": "weightctl.schemes.decoding.coded:NestedScales",
    "PackedNumbers": "weightctl.schemes.decoding.numbers:PackedNumbers",
    "PackingLayout": "weightctl.schemes.decoding.packing:PackingLayout",
    "PerBlock": "weightctl.schemes.decoding.grid:PerBlock",
    "PlainNumbers": "weightctl.schemes.decoding.numbers:PlainNumbers",
    "Powers": "weightctl.schemes.decoding.numbers:Powers",
    "Scaled": "weightctl.schemes.decoding.values:Scaled",
    "SchemeTensors": "weightctl.schemes.decoding.tensors:SchemeTensors",
    "Ternary": "weightctl.schemes.decoding.numbers:Ternary",
}

__getattr__ = load_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return sorted(__all__)

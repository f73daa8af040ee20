"""How a quantized weight is made of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from weightctl.schemes.dequantize.blocks import Microscaled
    from weightctl.schemes.dequantize.values import WeightValues

__all__ = ["DecodingScheme"]


class DecodingScheme(NamedTuple):
    """How a weight is made of its parts.

    `values` give it as a matrix, or several; with `turned` the columns of those are its rows.
    `shape` is that of the weight. Integers have `bits` bits, with `middle` in their middle, and 0
    bits where they fit no blocks of ggml. `microscaled` has the weight as MXFP4, where it is that,
    with rows of `row` elements as they are stored.
    """

    shape: tuple[int, ...]
    values: WeightValues
    turned: bool = False
    bits: int = 0
    middle: int = 0
    microscaled: Microscaled | None = None

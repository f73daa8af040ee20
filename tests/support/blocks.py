"""Numbers in quantized blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weightctl.codecs import codec
from weightctl.dtype import DType
from weightctl.weights import WeightData

if TYPE_CHECKING:
    from weightctl.dtype import QuantizationEncoding

Array = np.ndarray[Any, Any]


def in_blocks(
    numbers: Array, encoding: QuantizationEncoding, name: str = "weight"
) -> tuple[WeightData, Array]:
    """Return rows of numbers as blocks, and the numbers that these hold."""
    kind = encoding.encoding
    raw = np.empty((len(numbers), kind.row_bytes(numbers.shape[1])), np.uint8)
    codec(kind).encode(numbers, None, raw)
    held = np.empty(numbers.shape, np.float32)
    codec(kind).decode(raw, held)
    return WeightData(raw, name, DType.uint8, raw.shape, encoding), held

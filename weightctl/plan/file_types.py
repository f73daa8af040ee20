"""llama.cpp's number for what a file is mostly of: `general.file_type` (llama.h, `llama_ftype`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.dtype import Encoding
    from weightctl.weights.info import TensorInfo

__all__ = ["FILE_TYPES", "GUESSED", "file_type"]

FILE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 12, "Q4_K": 14, "Q5_K": 16, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32,
    "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "NVFP4": 39,
}  # fmt: skip
# The bit that says that a tool has guessed a number from the tensors.
GUESSED = 1024


def file_type(infos: Iterable[TensorInfo], encoding: Encoding | None = None) -> int:
    """Return the number of an encoding, or of what most of the numbers of some tensors are in."""
    if encoding is not None:
        return FILE_TYPES.get(encoding.name, GUESSED)
    sizes: Counter[str] = Counter()
    for info in infos:
        sizes[info.encoding.name] += info.size
    return FILE_TYPES.get(sizes.most_common(1)[0][0], GUESSED) if sizes else GUESSED

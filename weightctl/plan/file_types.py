"""llama.cpp's number for what a file is mostly of: `general.file_type` (llama.h, `llama_ftype`)."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from weightctl.dtype import Encoding
    from weightctl.weights.info import TensorInfo

__all__ = ["GUESSED", "file_type"]

# The bit that says that a tool has guessed a number from the tensors.
GUESSED = 1024


def file_type(infos: Iterable[TensorInfo], encoding: Encoding | None = None) -> int:
    """Return the number of an encoding, or of what most of the numbers of some tensors are in."""
    if encoding is None:
        sizes: Counter[Encoding] = Counter()
        for info in infos:
            sizes[info.encoding] += info.size
        encoding = sizes.most_common(1)[0][0] if sizes else None
    number = None if encoding is None else encoding.file_type
    return GUESSED if number is None else number

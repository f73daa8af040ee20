"""Integers of another width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightctl.dtype import ENCODINGS
from weightctl.errors import ConversionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor
    from weightctl.weights.info import TensorInfo

INTEGERS = {"I32": 4, "I64": 8}


@dataclass(frozen=True, slots=True)
class AsIntegers:
    """Signed integers as those of `encoding`, I32 or I64, plus `by_place` times their place.

    Raises `ConversionError` if the input has other numbers, or when an integer does not fit.
    """

    encoding: str
    by_place: int = 0

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the same shape, and the encoding."""
        (info,) = inputs
        if info.encoding.name not in INTEGERS:
            raise ConversionError(
                f"`{info.name}` is stored as {info.encoding}, not as 32-bit or 64-bit integers"
            )
        return info.shape, ENCODINGS[self.encoding]

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> None:
        import numpy as np

        (given,) = inputs
        size, width = INTEGERS[given.info.encoding.name], INTEGERS[self.encoding]
        count, first = len(buffer) // width, start // width
        stored = memoryview(bytearray(count * size))
        given.read_into(first * size, stored)
        places = np.arange(first, first + count)
        numbers = np.frombuffer(stored, f"<i{size}") + self.by_place * places
        made = np.frombuffer(buffer, f"<i{width}")
        made[:] = numbers.astype(f"<i{width}")
        if not np.array_equal(made, numbers):
            raise ConversionError(
                f"`{given.info.name}` has an integer that does not fit {self.encoding}"
            )

    def __str__(self) -> str:
        return ""

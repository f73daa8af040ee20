"""Several steps, one after the other, as a single step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weightctl.weights.derived import DerivedTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.codecs.loss import Loss
    from weightctl.dtype import Encoding
    from weightctl.weights.derived import ReadableTensor, Step
    from weightctl.weights.info import TensorInfo

__all__ = ["Chained"]


@dataclass(frozen=True, slots=True)
class Chained:
    """Steps of which each computes from the result of the one before it."""

    steps: tuple[Step, ...]

    def infer(self, inputs: Sequence[TensorInfo], /) -> tuple[tuple[int, ...], Encoding]:
        """Return the shape and encoding of the last result."""
        from weightctl.weights.info import TensorInfo

        (info,) = inputs
        for step in self.steps:
            info = TensorInfo(info.name, *step.infer([info]))
        return info.shape, info.encoding

    def read_into(
        self, inputs: Sequence[ReadableTensor], start: int, buffer: memoryview, /
    ) -> Loss | None:
        """Compute the requested range, and what the other steps need for it."""
        (tensor,) = inputs
        for step in self.steps:
            tensor = DerivedTensor(tensor.info.name, step, [tensor])
        return tensor.read_into(start, buffer)

    def __str__(self) -> str:
        return ", ".join(filter(None, map(str, self.steps)))

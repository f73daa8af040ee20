"""xIELU: an activation whose shape is learned, with numbers of its own in each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.module import Module
from weightctl.nn.precision import weight_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.device import DeviceRef
    from weightctl.graph.graph import Value


class XieluNumbers(NamedTuple):
    """The numbers of one layer's xIELU, as checkpoints have them."""

    alpha_n: float
    alpha_p: float
    beta: float
    eps: float


class XIELU(Module):
    """A square above 0 and an exponential below, each with a line added.

    Its four numbers are weights, or `numbers` if given. Source: Huang and Schlag, "Deriving
    Activation Functions Using Integration" (2024).
    """

    def __init__(self, numbers: XieluNumbers | None = None, *, device: DeviceRef = CPU) -> None:
        self.numbers = numbers
        if numbers is None:
            self.alpha_n = _LearnedNumber((1,), device)
            self.alpha_p = _LearnedNumber((1,), device)
            self.beta = _LearnedNumber((), device)
            self.eps = _LearnedNumber((), device)

    def __call__(self, x: Value) -> Value:
        """Return the activations, in the same shape and dtype."""
        below, above, line, least = self._find_numbers(x)
        wide = x.cast(DType.float32)
        square = wide * wide * softplus(above)
        curve = (ops.exp(ops.minimum(wide, least)) - 1.0 - wide) * (softplus(below) + line)
        return (ops.where(wide > 0, square, curve) + wide * line).cast(x.dtype)

    def list_weights(self) -> list[Weight]:
        """Return the weights; the list is empty if the numbers were given."""
        if self.numbers is not None:
            return []
        return [each.weight for each in (self.alpha_n, self.alpha_p, self.beta, self.eps)]

    def _find_numbers(self, x: Value) -> Sequence[Value]:
        if self.numbers is not None:
            return [ops.constant(each, DType.float32, x.device) for each in self.numbers]
        return [each() for each in (self.alpha_n, self.alpha_p, self.beta, self.eps)]


class _LearnedNumber(Module):
    """One number of a checkpoint."""

    def __init__(self, shape: tuple[int, ...], device: DeviceRef) -> None:
        self.weight = Weight("weight", DType.float32, shape, device)

    def __call__(self) -> Value:
        return weight_as(self.weight, DType.float32)


def softplus(x: Value) -> Value:
    """Return `log(1 + exp(x))`, without a number too large for float32."""
    return ops.maximum(x, 0.0) + ops.log(ops.exp(-ops.abs(x)) + 1.0)

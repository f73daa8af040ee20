"""A look at a value while the graph runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.types import TensorType
    from weightctl.graph.value import Value, ValueLike

__all__ = ["infer", "lower", "print_value"]


def print_value(x: ValueLike, label: str = "") -> Value:
    """Return the operand, printed to stdout whenever the graph runs.

    A line says the label, the dtype and the shape; the numbers follow as NumPy shows them, abridged
    where there are more than 100.
    """
    return apply("print", x, label=label)


def infer(x: TensorType, *, label: str) -> TensorType:  # noqa: ARG001  # the label says nothing
    """Return the operand's own type."""
    return x


def lower(x: Tensor, *, label: str) -> Tensor:
    """Return the tensor itself, once it is printed."""
    import numpy as np
    import torch

    from weightctl.graph.ops.torch_types import dtype_of

    numbers = x.detach().cpu()
    # NumPy has neither bfloat16 nor the types of eight bits; float32 holds all of them.
    if x.is_floating_point() and x.dtype != torch.float64:
        numbers = numbers.float()
    title = f"{label}: " if label else ""
    shape = ", ".join(map(str, x.shape))
    shown = np.array2string(numbers.numpy(), threshold=100)
    sys.stdout.write(f"{title}{dtype_of(x.dtype).value}[{shape}]\n{shown}\n")
    return x

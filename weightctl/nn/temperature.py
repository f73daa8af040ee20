"""Attention temperature: queries that are far into a text are multiplied by more."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import DType
from weightctl.graph import ops

if TYPE_CHECKING:
    from weightctl.graph.value import Value

__all__ = ["Temperature"]


class Temperature(NamedTuple):
    """What queries are multiplied by: 1 in the first `length` positions, more in the next ones.

    It is `1 + scale * log(1 + floor((position + offset) / length))`. Source: Nakanishi,
    "Scalable-Softmax" (2025), as Llama 4 has it.
    """

    scale: float
    length: int
    offset: int = 0

    def __call__(self, queries: Value) -> Value:
        """Return queries [batch, heads, positions, head_dim] multiplied."""
        places = ops.range(queries.shape[2], device=queries.device) + self.offset
        times = ops.floordiv(places, self.length).cast(DType.float32) + 1.0
        factors = ops.log(times) * self.scale + 1.0
        return queries * ops.unsqueeze(factors, 1).cast(queries.dtype)

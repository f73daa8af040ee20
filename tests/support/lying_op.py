"""An op that promises what it is given, and gives something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.graph.ops.rules import Op
from weightctl.graph.value import apply

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph import TensorType, Value


def lying(x: Value, result: Any) -> Value:
    return apply("lying", x, result=result)


def infer_lying(x: TensorType, *, result: Any) -> TensorType:  # noqa: ARG001  # a promise of another
    return x


def lower_lying(_: Tensor, *, result: Any) -> Any:
    return result


LYING = Op("lying", infer_lying, lower_lying)

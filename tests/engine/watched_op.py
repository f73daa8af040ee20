"""Operations that tests define: one that lies, and one that notes which results are alive."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from weightctl.graph.graph import apply
from weightctl.graph.ops.rules import Op

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph import TensorType, Value


# An op that gives a copy, and notes before each run how many of its results are alive.

results: list[weakref.ref[Tensor]] = []
# Those alive, of how many there have been.
seen: list[tuple[int, int]] = []


def watched(x: Value) -> Value:
    return apply(WATCHED, x)


def infer_watched(x: TensorType) -> TensorType:
    return x


def lower_watched(x: Tensor) -> Tensor:
    seen.append((sum(ref() is not None for ref in results), len(results)))
    result = x.clone()
    results.append(weakref.ref(result))
    return result


WATCHED = Op("watched", infer_watched, lower_watched)


# An op that promises what it is given, and gives something else.


def lying(x: Value, result: Any) -> Value:
    return apply(LYING, x, result=result)


def infer_lying(x: TensorType, *, result: Any) -> TensorType:  # noqa: ARG001  # a promise of another
    return x


def lower_lying(_: Tensor, *, result: Any) -> Any:
    return result


LYING = Op("lying", infer_lying, lower_lying)

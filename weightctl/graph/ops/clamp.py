"""Numbers brought between two bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.ops.arithmetic import maximum, minimum
from weightctl.graph.scope import current_graph, refusing

if TYPE_CHECKING:
    from weightctl.graph.value import Value, ValueLike

__all__ = ["clamp"]


def clamp(
    x: ValueLike,
    min: ValueLike | None = None,  # noqa: A002  # torch's name
    max: ValueLike | None = None,  # noqa: A002  # torch's name
) -> Value:
    """Return the numbers brought between two bounds, of which one may be left out; NaN stays.

    Raises `GraphError` without any bound.
    """
    value = current_graph().value_of(x)
    if min is None and max is None:
        with refusing("clamp", value):
            raise GraphError("neither bound is given", hint="`ops.clamp(x, min=0)`")
    if min is not None:
        value = maximum(value, min)
    return value if max is None else minimum(value, max)

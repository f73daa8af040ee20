"""The recurrence of state space models (Mamba)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.errors import GraphError
from weightctl.graph.graph import apply_all
from weightctl.graph.ops.rules import Op, require_float, require_states
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType


def selective_scan(
    x: ValueLike,
    steps: ValueLike,
    rates: ValueLike,
    inputs: ValueLike,
    outputs: ValueLike,
    *,
    states: ValueLike | None = None,
) -> tuple[Value, Value]:
    """Return what each head reads from its states, and the states after the last position.

    `x` is [batch, positions, heads, size], `steps` are [batch, positions, heads], and `rates` are
    [heads, states], or [heads, 1] if all states of a head decay alike. `inputs` and `outputs`, the
    matrices B and C, are [batch, positions, groups, states]; each group of heads shares them. The
    states, [batch, heads, size, states], decay and are added to at each position: those of a head
    are multiplied by exp(step * rate), then step * x * B is added, and the sum of their products
    with C is returned. `states` are those before the first position, by default zeros. Computed in
    at least float32, the dtype of the states; the result has the dtype of `x`. Source: Gu and Dao,
    "Mamba" (2023), and Dao and Gu, "Transformers are SSMs" (2024).
    """
    given = (x, steps, rates, inputs, outputs, *([] if states is None else [states]))
    result, after = apply_all(SELECTIVE_SCAN, *given)
    return result, after


def infer_selective_scan(  # noqa: PLR0917  # the inputs of the operation
    x: TensorType,
    steps: TensorType,
    rates: TensorType,
    inputs: TensorType,
    outputs: TensorType,
    states: TensorType | None = None,
) -> tuple[TensorType, TensorType]:
    """Return the type of `x`, and that of the states."""
    require_float(x, steps, rates, inputs, outputs)
    if x.rank != 4:
        raise GraphError(
            "the input must have four dimensions", hint="use [batch, positions, heads, size]"
        )
    if steps.shape != x.shape[:3]:
        raise GraphError(
            f"the shape of the steps must be {Shape(x.shape[:3]).text}",
            hint="each head needs a step at each position",
        )
    if inputs.rank != 4 or inputs.shape[:2] != x.shape[:2] or outputs.shape != inputs.shape:
        raise GraphError(
            f"the shapes of B and C must be equal: [{x.shape[0]}, {x.shape[1]}, groups, states]",
            hint="each group needs values for all states at each position",
        )
    heads, groups, count = x.shape[2], inputs.shape[2], inputs.shape[3]
    if rates.rank != 2 or rates.shape[0] != heads or rates.shape[1] not in (1, count):
        raise GraphError(
            f"the shape of the rates must be [{heads}, {count}] or [{heads}, 1]",
            hint="each head needs a rate for each state, or one for all",
        )
    if int(heads) % int(groups):
        raise GraphError(
            f"{heads} heads cannot be divided evenly among {groups} groups",
            hint="the number of heads must be a multiple of the number of groups",
        )
    return x, require_states(x, states, (x.shape[0], heads, x.shape[3], count))


def lower_selective_scan(  # noqa: PLR0917  # the inputs of the operation
    x: Tensor,
    steps: Tensor,
    rates: Tensor,
    inputs: Tensor,
    outputs: Tensor,
    states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the results of one position after the other, and the states after the last."""
    import torch

    wide = torch.promote_types(x.dtype, torch.float32)
    batch, positions, heads, size = x.shape
    shared = heads // inputs.shape[2]
    # Heads that share B and C are along an axis of their own.
    parts = (batch, positions, inputs.shape[2], shared)
    steps = steps.to(wide).reshape(*parts, 1, 1)
    rates = rates.to(wide).reshape(*parts[2:], 1, -1)
    added = x.to(wide).reshape(*parts, size, 1) * steps
    read_in, read_out = (each.to(wide)[:, :, :, None, None, :] for each in (inputs, outputs))
    shape = (batch, *parts[2:], size, inputs.shape[3])
    now = x.new_zeros(shape, dtype=wide) if states is None else states.reshape(shape)
    made = x.new_empty((batch, positions, heads, size))
    for place in range(positions):
        now = now * torch.exp(steps[:, place] * rates) + added[:, place] * read_in[:, place]
        made[:, place] = (now * read_out[:, place]).sum(-1).reshape(batch, heads, size)
    return made, now.reshape(batch, heads, size, -1)


SELECTIVE_SCAN = Op("selective_scan", infer_selective_scan, lower_selective_scan)

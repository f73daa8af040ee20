"""Operations along the positions of a text: a convolution, and recurrences that keep a state.

The recurrences are that of state space models (Mamba), the gated delta rule and a more general
one: attention by a state that each position corrects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.errors import GraphError
from weightctl.graph.graph import apply, apply_all
from weightctl.graph.ops.rules import Op, require_float, require_same_dtype, require_states
from weightctl.shape import Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType


def causal_convolution(x: ValueLike, weight: ValueLike, bias: ValueLike | None = None) -> Value:
    """Return the convolution of each channel with its own weights, over this and earlier positions.

    `x` is [batch, positions, channels], `weight` is [channels, kernel], and `bias` is [channels].
    The last weight of a channel multiplies the value at the position itself. Values before the
    first position are zero. Source: `causal_conv1d` of Dao's package of that name.
    """
    given = (x, weight) if bias is None else (x, weight, bias)
    return apply(CAUSAL_CONVOLUTION, *given)


def infer_causal_convolution(
    x: TensorType, weight: TensorType, bias: TensorType | None = None
) -> TensorType:
    require_float(x)
    given = (x, weight) if bias is None else (x, weight, bias)
    require_same_dtype(*given)
    if x.rank != 3:
        raise GraphError(
            "the input must have three dimensions", hint="use [batch, positions, channels]"
        )
    channels = x.shape[2]
    if weight.rank != 2 or weight.shape[0] != channels:
        raise GraphError(
            f"the shape of the weight must be [{channels}, kernel]",
            hint="the weight needs a row for each channel of the input",
        )
    if bias is not None and bias.shape != x.shape[2:]:
        raise GraphError(
            f"the shape of the bias must be [{channels}]",
            hint="the bias needs an element for each channel of the input",
        )
    return x


def lower_causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the result of torch's grouped convolution with zeros before the first position."""
    from torch.nn import functional

    channels, kernel = weight.shape
    padded = functional.pad(x.transpose(1, 2), (kernel - 1, 0))
    return functional.conv1d(padded, weight.unsqueeze(1), bias, groups=channels).transpose(1, 2)


CAUSAL_CONVOLUTION = Op("causal_convolution", infer_causal_convolution, lower_causal_convolution)


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


# The number of positions that are computed together. With a decay for each element of a key, the
# products of two positions need memory for each element, so there are fewer.
_CHUNK, _CHUNK_BY_ELEMENT = 64, 16


def gated_delta_rule(
    query: ValueLike,
    key: ValueLike,
    value: ValueLike,
    decay: ValueLike,
    beta: ValueLike,
    *,
    states: ValueLike | None = None,
) -> tuple[Value, Value]:
    """Return what each position reads from a state per head, and the states after the last one.

    `query` and `key` are [batch, positions, key heads, key size]; consecutive heads share a key
    head. `value` is [batch, positions, heads, size], `beta` is [batch, positions, heads], and
    `decay` is [batch, positions, heads], or [batch, positions, heads, key size] with a decay for
    each element of a key. `states` are those before the first position, [batch, heads, key size,
    size], by default zeros. At each position, the rows of a state S are multiplied by `exp(decay)`,
    `key * beta * (value - key @ S)` is added to it, and `query @ S` is the result, of the shape of
    `value`. Computed in at least float32, the dtype of the states, and rounded once.

    Source: Yang, Kautz and Hatamizadeh, "Gated Delta Networks: Improving Mamba2 with Delta Rule"
    (2024).
    """
    given = (query, key, value, decay, beta, *([] if states is None else [states]))
    result, after = apply_all(GATED_DELTA_RULE, *given)
    return result, after


def infer_gated_delta_rule(  # noqa: PLR0917  # the inputs of the operation
    query: TensorType,
    key: TensorType,
    value: TensorType,
    decay: TensorType,
    beta: TensorType,
    states: TensorType | None = None,
) -> tuple[TensorType, TensorType]:
    """Return the type of `value`, and that of the states."""
    require_float(query)
    require_same_dtype(query, key, value, decay, beta)
    if not query.rank == key.rank == value.rank == 4:
        raise GraphError(
            "queries, keys and values must have four dimensions",
            hint="use [batch, positions, heads, size]",
        )
    heads, key_heads = value.shape[2], key.shape[2]
    if query.shape != key.shape or query.shape[:2] != value.shape[:2]:
        raise GraphError(
            "the shapes of query, key and value do not match",
            hint="queries and keys must have one shape, with the batch and the positions of values",
        )
    if key_heads == 0 or heads % key_heads != 0:
        raise GraphError(
            f"{heads} heads cannot be divided among {key_heads} key heads",
            hint="the number of heads must be a multiple of the number of key heads",
        )
    expected = Shape(value.shape[:3])
    by_element = Shape([*expected, key.shape[3]])
    if beta.shape != expected or decay.shape not in (expected, by_element):
        raise GraphError(
            f"the shapes of decay and beta must be {expected.text}",
            hint=f"the decay can also be {by_element.text}, with one for each element of a key",
        )
    shape = (value.shape[0], heads, key.shape[3], value.shape[3])
    return value, require_states(value, states, shape)


def lower_gated_delta_rule(  # noqa: PLR0917  # the inputs of the operation
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    beta: Tensor,
    states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the results of all chunks of positions, each computed from the state before it."""
    import torch

    wide = torch.promote_types(value.dtype, torch.float32)
    group = value.shape[2] // key.shape[2]
    q, k = (each.repeat_interleave(group, 2) for each in (query, key))
    size = _CHUNK if decay.ndim == 3 else _CHUNK_BY_ELEMENT
    decay = decay.unsqueeze(-1) if decay.ndim == 3 else decay
    given = [each.to(wide).transpose(1, 2) for each in (q, k, value, decay, beta.unsqueeze(-1))]
    batch, positions, heads, width = value.shape
    zeros = given[0].new_zeros((batch, heads, key.shape[3], width))
    state = zeros if states is None else states
    result = torch.empty_like(given[2])
    for start in range(0, positions, size):
        part = slice(start, start + size)
        result[:, :, part], state = _compute_chunk(state, [each[:, :, part] for each in given])
    return result.transpose(1, 2).to(value.dtype), state


def _compute_chunk(state: Tensor, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the results of some positions, and the state after them.

    `given` are their queries, keys, values, decays and betas. Each position adds the product of its
    key and a correction to the state. The corrections depend on those before them, which is a
    triangular system of equations.
    """
    import torch

    query, key, value, decay, beta = given
    total = decay.cumsum(-2)
    faded = total.exp()
    system = _multiply_pairs(key * beta, key, total)
    linalg: Any = torch.linalg  # torch does not state its types
    corrections: Tensor = linalg.solve_triangular(
        system, beta * (value - (key * faded) @ state), upper=False, unitriangular=True
    )
    result = (query * faded) @ state + _multiply_pairs(query, key, total) @ corrections
    last = total[..., -1:, :]
    kept = last.exp().transpose(-1, -2) * state
    return result, kept + (key * (last - total).exp()).transpose(-1, -2) @ corrections


def _multiply_pairs(left: Tensor, key: Tensor, total: Tensor) -> Tensor:
    """Return the product of each position and each key up to it, with the decay between them.

    `total` is the sum of the decays up to each position, with one element or one per key element.
    """
    import torch

    ahead = torch.ones(key.shape[-2], key.shape[-2], dtype=torch.bool, device=key.device).triu(1)
    between = total.unsqueeze(-2) - total.unsqueeze(-3)
    between = between.masked_fill(ahead.unsqueeze(-1), -torch.inf).exp()
    if total.shape[-1] == 1:
        return left @ key.transpose(-1, -2) * between.squeeze(-1)
    return torch.einsum("...ic,...jc,...ijc->...ij", left, key, between)


GATED_DELTA_RULE = Op("gated_delta_rule", infer_gated_delta_rule, lower_gated_delta_rule)


def general_delta_rule(
    query: ValueLike,
    key: ValueLike,
    value: ValueLike,
    decay: ValueLike,
    *,
    read: ValueLike,
    write: ValueLike,
    states: ValueLike | None = None,
) -> tuple[Value, Value]:
    """Return what each position reads from a state per head, and the states after the last one.

    `value` is [batch, positions, heads, size], and all others are [batch, positions, heads, key
    size]. `states` are those before the first position, [batch, heads, key size, size], by default
    zeros. At each position, `read @ S` is computed first, of a state S. Then the rows of S are
    multiplied by `exp(decay)`, the products of `write` and what was read, and of `key` and `value`,
    are added to it, and `query @ S` is the result, of the shape of `value`. Computed in at least
    float32, the dtype of the states, and rounded once.

    Source: Peng et al., "RWKV-7 Goose with Expressive Dynamic State Evolution" (2025).
    """
    given = (query, key, value, decay, read, write, *([] if states is None else [states]))
    result, after = apply_all(GENERAL_DELTA_RULE, *given)
    return result, after


def infer_general_delta_rule(  # noqa: PLR0917  # the inputs of the operation
    query: TensorType,
    key: TensorType,
    value: TensorType,
    decay: TensorType,
    read: TensorType,
    write: TensorType,
    states: TensorType | None = None,
) -> tuple[TensorType, TensorType]:
    """Return the type of `value`, and that of the states."""
    others = (decay, read, write)
    require_float(query)
    require_same_dtype(query, key, value, *others)
    if query.rank != 4 or value.rank != 4 or query.shape[:3] != value.shape[:3]:
        raise GraphError(
            "queries and values must have four dimensions, and the first three must be equal",
            hint="use [batch, positions, heads, size]",
        )
    if any(each.shape != query.shape for each in (key, *others)):
        raise GraphError(
            f"the shapes of key, decay, read and write must be {query.shape.text}",
            hint="each needs a number for every element of a query",
        )
    shape = (*value.shape[::2], query.shape[3], value.shape[3])
    return value, require_states(value, states, shape)


def lower_general_delta_rule(  # noqa: PLR0917  # the inputs of the operation
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    read: Tensor,
    write: Tensor,
    states: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the results of one position after the other, and the states after the last."""
    import torch

    wide = torch.promote_types(value.dtype, torch.float32)
    query, read = (each.to(wide).unsqueeze(-2) for each in (query, read))
    key, write = (each.to(wide).unsqueeze(-1) for each in (key, write))
    kept, added = decay.to(wide).exp().unsqueeze(-1), value.to(wide).unsqueeze(-2)
    batch, positions, heads, size = value.shape
    zeros = kept.new_zeros((batch, heads, kept.shape[-2], size))
    state = zeros if states is None else states
    result = kept.new_empty(value.shape)
    for place in range(positions):
        given = write[:, place] @ (read[:, place] @ state)
        state = state * kept[:, place] + given + key[:, place] @ added[:, place]
        result[:, place] = (query[:, place] @ state).squeeze(-2)
    return result.to(value.dtype), state


GENERAL_DELTA_RULE = Op("general_delta_rule", infer_general_delta_rule, lower_general_delta_rule)

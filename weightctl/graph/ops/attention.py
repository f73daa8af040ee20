"""Scaled dot-product attention and rotary position embedding (RoPE)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import inf, isfinite
from typing import TYPE_CHECKING

from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph.graph import apply
from weightctl.graph.ops.rules import (
    Op,
    require_broadcast,
    require_float,
    require_rank,
    require_same_dtype,
)
from weightctl.shape import Shape

if TYPE_CHECKING:
    from torch import Tensor, device

    from weightctl.dim import Dim
    from weightctl.graph.graph import Value, ValueLike
    from weightctl.graph.types import TensorType

# The number of pairs of a query and a key whose mask is in memory at a time, the number of heads
# whose scores of so many pairs are, and the number of queries at which windows are cut at least.
_MOST_SCORES = 1 << 21
_SCORED_HEADS = 8
_FEWEST_ROWS = 256


def attention(
    query: ValueLike,
    key: ValueLike,
    value: ValueLike,
    mask: ValueLike | None = None,
    *,
    sinks: ValueLike | None = None,
    causal: bool = False,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Value:
    """Return softmax(scale * query @ key^T + mask) @ value: [batch, heads, seq, dim].

    `query` is [batch, heads, seq, dim], `key` and `value` are [batch, kv_heads, keys, dim]; each KV
    head serves heads / kv_heads consecutive query heads. `mask` broadcasts to [batch, heads, seq,
    keys]: either bool, True where a key is visible, or values to add to the scores. The last query
    has the position of the last key: with `causal`, a query sees no later keys; with a `window`, it
    sees no keys that are `window` or more positions earlier. `softcap` c replaces a score s by c *
    tanh(s / c), before the mask. `scale` is 1 / sqrt(dim) by default. `sinks`, [heads], of any
    floating-point dtype, are scores that take part in the softmax of each query and belong to no
    key; neither `scale`, `softcap` nor `mask` changes them. The softmax is computed in
    float32. The result is zero for a query that sees no key. Source of sinks: Xiao et al.,
    "Efficient Streaming Language Models with Attention Sinks" (2023), as gpt-oss has them.
    """
    given = [each for each in (query, key, value, mask, sinks) if each is not None]
    return apply(
        ATTENTION,
        *given,
        causal=causal,
        window=window,
        softcap=softcap,
        scale=scale,
        has_sinks=sinks is not None,
    )


def infer_attention(
    query: TensorType,
    key: TensorType,
    value: TensorType,
    *others: TensorType,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    has_sinks: bool = False,
) -> TensorType:
    """Return the type of the result, whose last dimension is that of `value`."""
    del causal
    require_float(query)
    require_same_dtype(query, key, value)
    if not query.rank == key.rank == value.rank == 4:
        raise GraphError(
            "query, key and value must have four dimensions", hint="use [batch, heads, seq, dim]"
        )
    batch, heads, seq, dim = query.shape
    kv_heads, keys, value_dim = *key.shape[1:3], value.shape[3]
    if key.shape != (batch, kv_heads, keys, dim) or value.shape[:3] != key.shape[:3]:
        raise GraphError(
            "the shapes of key and value do not match the query",
            hint="use [batch, heads, seq, dim] for the query and [batch, kv_heads, keys, dim] "
            "for key and value",
        )
    if kv_heads == 0 or heads % kv_heads != 0:
        raise GraphError(
            f"{heads} query heads cannot be divided among {kv_heads} KV heads",
            hint="the number of heads must be a multiple of kv_heads",
        )
    if (window is not None and window < 1) or (softcap is not None and not 0 < softcap < inf):
        raise GraphError(
            "window and softcap must be positive and finite", hint="use None to disable them"
        )
    if scale is not None and not isfinite(scale):
        raise GraphError(f"the scale {scale} is not finite", hint="use None for 1 / sqrt(dim)")
    if has_sinks:
        _require_sinks(others[-1], heads)
    if len(others) > has_sinks:
        _require_mask(others[0], query.dtype, Shape([batch, heads, seq, keys]))
    return replace(query, shape=Shape([batch, heads, seq, value_dim]))


def _require_mask(mask: TensorType, dtype: DType, scores: Shape) -> None:
    """Raise `GraphError` if the mask has another dtype or does not broadcast to the scores."""
    if mask.dtype not in {DType.bool, dtype}:
        raise GraphError(
            f"an attention mask of dtype {mask.dtype.value} cannot be used with a query of dtype "
            f"{dtype.value}",
            hint="use a mask of dtype bool, or of the dtype of the query",
        )
    require_broadcast("the mask", mask.shape, scores)


def _require_sinks(sinks: TensorType, heads: Dim) -> None:
    """Raise `GraphError` unless the sinks are a score for each head."""
    if sinks.shape != (heads,) or not sinks.dtype.is_float:
        raise GraphError(
            f"sinks {sinks} cannot be used with {heads} query heads",
            hint="use one score of a floating-point dtype for each query head",
        )


def lower_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *others: Tensor,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
    has_sinks: bool = False,
) -> Tensor:
    """Return the result; without `softcap` and sinks, torch's own kernels compute it."""
    from torch.nn import functional

    sinks = others[-1] if has_sinks else None
    mask = others[0] if len(others) > has_sinks else None
    seq, keys = query.shape[2], key.shape[2]
    # A single query, at the last key, sees all keys; so does a window over all keys.
    causal = causal and seq > 1
    window = None if window is None or window >= keys else window
    # torch masks scores with -inf before it scales them, which is wrong for a scale of 0 or less.
    has_scores = softcap is not None or sinks is not None
    is_plain = window is None and mask is None and not has_scores and (scale is None or scale > 0)
    if is_plain and (not causal or seq == keys):
        return functional.scaled_dot_product_attention(
            query, key, value, is_causal=causal, scale=scale, enable_gqa=True
        )
    if mask is not None and mask.dim() < 2:
        mask = mask.reshape(1, -1)
    attend = partial(
        _attend, sinks=sinks, causal=causal, window=window, softcap=softcap, scale=scale
    )
    rows = _count_rows(query, keys, window, has_scores=has_scores)
    if seq <= rows:
        return attend(query, key, value, mask, keys - seq)
    # A part of the queries at a time, with the keys that they see: the mask of all positions would
    # take the square of their number.
    made = query.new_empty((*query.shape[:3], value.shape[3]))
    for start in range(0, seq, rows):
        stop = min(start + rows, seq)
        last = max(0, keys - seq + stop) if causal else keys
        first = 0 if window is None else max(0, keys - seq + start - window + 1)
        made[:, :, start:stop] = attend(
            query[:, :, start:stop],
            key[:, :, first:last],
            value[:, :, first:last],
            _part_of_mask(mask, start, stop, first, last),
            keys - seq + start - first,
        )
    return made


def _count_rows(query: Tensor, keys: int, window: int | None, *, has_scores: bool) -> int:
    """Return the number of queries whose mask, or whose scores, are in memory at a time."""
    most = _MOST_SCORES
    if has_scores:
        most = most * _SCORED_HEADS // max(1, query.shape[0] * query.shape[1])
    if window is None:
        return max(1, most // max(1, keys))
    rows = max(window, _FEWEST_ROWS)
    return max(1, min(rows, most // max(1, min(keys, rows + window))))


def _part_of_mask(
    mask: Tensor | None, start: int, stop: int, first: int, last: int
) -> Tensor | None:
    """Return the rows from `start` to `stop` and the columns from `first` to `last` of a mask."""
    if mask is None:
        return None
    if mask.shape[-2] > 1:
        mask = mask[..., start:stop, :]
    return mask[..., first:last] if mask.shape[-1] > 1 else mask


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    position: int,
    *,
    sinks: Tensor | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
    scale: float | None,
) -> Tensor:
    """Return attention with a mask of all queries and keys; `position` is that of the first query.

    Positions are counted from the first key.
    """
    import torch
    from torch.nn import functional

    seq, keys = query.shape[2], key.shape[2]
    if not keys:
        return query.new_zeros((*query.shape[:3], value.shape[3]))
    unseen_rows = mask is not None or position < 0
    seen = _make_mask(position, seq, keys, query.device, causal=causal, window=window)
    if mask is None:
        mask = seen
    elif seen is not None:
        mask = mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, -torch.inf)
    if softcap is None and sinks is None:
        result = functional.scaled_dot_product_attention(
            query, key, value, mask, scale=scale, enable_gqa=True
        )
    else:
        result = _attend_with_scores(query, key, value, mask, sinks, softcap, scale)
    if mask is None or not unseen_rows:
        return result
    some = (mask if mask.dtype == torch.bool else mask > -torch.inf).any(-1, keepdim=True)
    return result.where(some, result.new_zeros(()))


ATTENTION = Op("attention", infer_attention, lower_attention)


def _make_mask(
    position: int, seq: int, keys: int, place: device, *, causal: bool, window: int | None
) -> Tensor | None:
    """Return bool[seq, keys], True where a key is visible; None if all keys are."""
    import torch

    if not causal and window is None:
        return None
    positions = torch.arange(position, position + seq, device=place)[:, None]
    columns = torch.arange(keys, device=place)
    seen = columns <= positions if causal else torch.ones_like(positions, dtype=torch.bool)
    return seen if window is None else seen & (columns > positions - window)


def _attend_with_scores(  # noqa: PLR0917  # those of `lower`
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    softcap: float | None,
    scale: float | None,
) -> Tensor:
    """Return attention with a softcap or sinks, which torch's kernels lack, in at least float32."""
    import torch

    kind = torch.promote_types(query.dtype, torch.float32)
    batch, heads, seq, dim = query.shape
    kv_heads, keys = key.shape[1:3]
    # The query heads of a KV head are one matrix, so that its keys are not copied for each.
    rows = heads // kv_heads * seq
    grouped = query.to(kind).reshape(batch, kv_heads, rows, dim)
    scores = (grouped @ key.to(kind).mT).reshape(batch, heads, seq, keys)
    scores *= dim**-0.5 if scale is None else scale
    if softcap is not None:
        scores = scores.div_(softcap).tanh_().mul_(softcap)
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill_(~mask, -torch.inf)
    elif mask is not None:
        scores += mask
    largest = scores.amax(-1, keepdim=True)
    if sinks is not None:
        sinks = sinks.to(kind)[:, None, None]
        largest = torch.maximum(largest, sinks)
    shares = scores.sub_(largest).exp_()
    total = shares.sum(-1, keepdim=True)
    if sinks is not None:
        total += torch.exp(sinks - largest)
    result = shares.reshape(batch, kv_heads, rows, keys) @ value.to(kind)
    return (result.reshape(batch, heads, seq, value.shape[3]) / total).to(query.dtype)


def rope(x: ValueLike, cos: ValueLike, sin: ValueLike, *, interleaved: bool = False) -> Value:
    """Return [..., seq, dim] with pairs of elements rotated by an angle for each position.

    `cos` and `sin`, of the dtype of `x` or float32, are [seq, rotated / 2], or have more dimensions
    that broadcast to those of `x`. Element `i` is paired with `i + rotated / 2`, or element `2 i`
    with `2 i + 1` if `interleaved`; elements after the first `rotated` are unchanged. Computed in
    float32 and rounded once. Source: Su et al., "RoFormer" (2021).
    """
    return apply(ROPE, x, cos, sin, interleaved=interleaved)


def infer_rope(x: TensorType, cos: TensorType, sin: TensorType, *, interleaved: bool) -> TensorType:
    del interleaved
    require_rank(x, 2)
    require_float(x)
    for table in (cos, sin):
        if table.dtype not in {x.dtype, DType.float32}:
            raise GraphError(
                f"cos and sin of dtype {table.dtype.value} cannot be used with a tensor of dtype "
                f"{x.dtype.value}",
                hint=f"use cos and sin of dtype float32 or {x.dtype.value}",
            )
    if cos.shape != sin.shape or not cos.rank:
        raise GraphError(
            "cos and sin have different shapes", hint="both need the shape [seq, rotated / 2]"
        )
    require_broadcast("the shape of positions", cos.shape[:-1], x.shape[:-1])
    half, dim = cos.shape[-1], x.shape[-1]
    if 2 * half != dim and not (half.is_static and dim.is_static and 2 * int(half) < int(dim)):
        raise GraphError(
            f"{half} angles rotate {2 * half} elements, but the head has {dim}",
            hint="cos and sin need one angle per pair of elements",
        )
    return x


def lower_rope(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Return the rotated pairs, computed in at least float32."""
    import torch

    half = cos.shape[-1]
    kind = torch.promote_types(x.dtype, torch.float32)
    wide, cos, sin = x[..., : 2 * half].to(kind), cos.to(kind), sin.to(kind)
    if interleaved:
        left, right = wide[..., ::2], wide[..., 1::2]
    else:
        left, right = wide[..., :half], wide[..., half:]
    pairs = (left * cos - right * sin, right * cos + left * sin)
    turned = torch.stack(pairs, -1).flatten(-2) if interleaved else torch.cat(pairs, -1)
    if 2 * half == x.shape[-1]:
        return turned.to(x.dtype)
    return torch.cat((turned.to(x.dtype), x[..., 2 * half :]), -1)


ROPE = Op("rope", infer_rope, lower_rope)

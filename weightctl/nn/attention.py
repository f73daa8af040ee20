"""Attention layers."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.layer_sharding import (
    cut_parts,
    own_range,
    own_segment,
    replicate_weights,
    segment_sizes,
)
from weightctl.nn.linear import Linear
from weightctl.nn.module import Divisible, Module
from weightctl.nn.norm import HeadNorm, RMSNorm
from weightctl.nn.positions import list_all_positions, list_positions, with_past
from weightctl.split import Heads

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dim import Dim
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Value
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.indexer import BlockIndexer
    from weightctl.nn.positions import Temperature
    from weightctl.split import Range


def alibi_slopes(heads: int, largest: float = 8.0) -> list[float]:
    """Return the slope of each head: powers of 2, those of the next power of 2 of heads in turn.

    Source: Press et al., "Train Short, Test Long" (2022).
    """
    whole = 1 << (heads.bit_length() - 1)
    step = 2.0 ** (-largest / whole)
    slopes = [step ** (head + 1) for head in range(whole)]
    between = 2.0 ** (-largest / (2 * whole))
    return slopes + [between ** (2 * head + 1) for head in range(heads - whole)]


class Attention(Divisible):
    """Multi-head scaled dot-product attention with input and output projections.

    Groups of the `heads` query heads share one of `kv_heads` KV heads; `head_dim` does not need to
    be `features / heads`. Values have `value_dim` elements per head (default: as keys), and are
    multiplied by `value_scale`; with `values_normed` they get an RMSNorm without weights over each
    head. With `values_from_keys` they are the keys before their norm and RoPE. `bias` is for the
    input projections, `output_bias` (default: the same) for the output projection. With a `window`,
    a position sees that many positions: itself and those before it. With a `chunk`, it sees those
    of its chunk of so many positions. `softcap` bounds the scores; `scale` multiplies them, by
    default `head_dim ** -0.5`. With `norm_epsilon`, queries and keys get an RMSNorm over each head,
    with `norm_offset` as its offset, or over all heads together with `norms_whole`; with
    `norms_last` that of each head is after RoPE; without `norms_weighted` the norms have no
    weights; with `norms_apart` they are LayerNorms in which each head has weights of its own, or
    RMSNorms without `norms_centered`.
    `clamp` bounds queries, keys and values. With `alibi`, each head adds the distance to a key
    times its slope to the scores; `alibi` is the largest exponent of the slopes. With an
    `inner_norm`, its epsilon, what the heads return gets an RMSNorm over all of them. With `sinks`,
    each head has a score that belongs to no key. `temperature` multiplies queries by their
    positions. If `gated`, what the heads return is multiplied by the `gate_activation` of another
    projection of the inputs, which has a number for each head if `gates_heads`. If `fused`, one
    projection `qkv` replaces `q`, `k` and `v`; `transposed` is passed to `Linear`. RoPE pairs
    neighboring elements if `interleaved`, otherwise elements of the two halves. With an
    `indexer`, queries see only the blocks of keys that it selects; it needs RoPE. Raises
    `GraphError` if the numbers of heads do not match.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        value_scale: float = 1.0,
        values_normed: bool = False,
        values_from_keys: bool = False,
        bias: bool = False,
        output_bias: bool | None = None,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        norm_epsilon: float | None = None,
        norm_offset: float = 0.0,
        norms_whole: bool = False,
        norms_last: bool = False,
        clamp: float | None = None,
        alibi: float | None = None,
        sinks: bool = False,
        temperature: Temperature | None = None,
        gated: bool = False,
        gates_heads: bool = False,
        gate_activation: Literal["sigmoid", "softplus"] = "sigmoid",
        norms_weighted: bool = True,
        norms_apart: bool = False,
        norms_centered: bool = True,
        chunk: int | None = None,
        inner_norm: float | None = None,
        fused: bool = False,
        transposed: bool = False,
        interleaved: bool = False,
        indexer: BlockIndexer | None = None,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads:
            raise GraphError(
                f"{heads} query heads cannot be divided evenly among {self.kv_heads} KV heads",
                hint="the number of heads must be a multiple of kv_heads",
            )
        if head_dim is None and features % heads:
            raise GraphError(
                f"{features} features cannot be divided evenly among {heads} heads",
                hint="set `head_dim` if it is not features / heads",
            )
        self.head_dim = features // heads if head_dim is None else head_dim
        self.value_dim = value_dim or self.head_dim
        self.value_scale = value_scale
        self.values_from_keys = values_from_keys
        self.values_epsilon = norm_epsilon if values_normed else None
        self.causal = causal
        self.window, self.chunk = window, chunk
        self.softcap, self.scale, self.interleaved = softcap, scale, interleaved

        projection = partial(
            Linear,
            dtype=dtype,
            device=device,
            quantization_encoding=quantization_encoding,
            transposed=transposed,
        )
        width, shared = heads * self.head_dim, self.kv_heads * self.head_dim
        values = self.kv_heads * self.value_dim
        self.sizes: tuple[int, ...] = (width, shared, values)
        self.fused, self.keys_in_qkv = fused, (width, width + shared)
        if fused:
            self.qkv = projection(features, sum(self.sizes), bias=bias)
        else:
            self.q = projection(features, width, bias=bias)
            self.k = projection(features, shared, bias=bias)
            if not values_from_keys:
                self.v = projection(features, values, bias=bias)
        if norm_epsilon is not None:
            norm = partial(
                _make_norm,
                size=self.head_dim,
                eps=norm_epsilon,
                offset=norm_offset,
                weight=norms_weighted,
                is_whole=norms_whole,
                is_apart=norms_apart,
                is_centered=norms_centered,
                dtype=dtype,
                device=device,
            )
            self.q_norm, self.k_norm = norm(heads), norm(self.kv_heads)
        self.has_norms = norm_epsilon is not None
        self.norms_whole, self.norms_last = self.has_norms and norms_whole, norms_last
        self.clamp, self.alibi, self.temperature = clamp, alibi, temperature
        self.gated, self.gates_heads = gated, gated and gates_heads
        self.activate_gate = ops.softplus if gate_activation == "softplus" else ops.sigmoid
        if self.gates_heads:
            self.head_gate = projection(features, heads, bias=False)
        elif gated:
            self.gate = projection(features, heads * self.value_dim, bias=False)
        self.has_inner_norm = inner_norm is not None
        if inner_norm is not None:
            self.inner_norm = RMSNorm(
                heads * self.value_dim, inner_norm, dtype=dtype, device=device
            )
        self.has_sinks = sinks
        if sinks:
            self.sinks = Sinks(heads, device=device)
        self.indexer = indexer
        # Of how many heads a shard has which, where it is one.
        self.all_heads = heads
        self.own_queries: Range | None = None
        self.own_keys: Range | None = None
        has_bias = bias if output_bias is None else output_bias
        self.o = projection(heads * self.value_dim, features, bias=has_bias)

    def __call__(
        self,
        x: Value,
        cos: Value | None = None,
        sin: Value | None = None,
        mask: Value | None = None,
        source: Value | None = None,
    ) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`.

        `cos` and `sin` are from a `RotaryEmbedding`; leave them out if the model does not use RoPE.
        `mask`, broadcast to `(batch, heads, positions, positions)`, is either true where a key is
        visible, or added to the scores. Keys and values are those of `source`, of as many
        positions, if given. Raises `GraphError` for a `source` if one projection replaces all.
        """
        if (cos is None) != (sin is None):
            raise GraphError("`cos` and `sin` must be given together, but one is missing")
        q, k, v = self._turned_heads(x, cos, sin, source)
        k, v = with_past(k), with_past(v)
        if self.indexer is not None and cos is not None and sin is not None:
            mask = self.indexer(x, cos, sin, self.all_heads)
        mask = self._own_scores(mask) if self.alibi is None else self._slope(x, self.alibi, mask)
        if self.chunk is not None:
            mask = _mask_chunks(x.shape[1], x.device, self.chunk)
        y = ops.attention(
            q,
            k,
            v,
            mask,
            sinks=self.sinks(self._own_heads()) if self.has_sinks else None,
            causal=self.causal,
            window=self.window,
            softcap=self.softcap,
            scale=self.scale,
        )
        y = y.transpose(1, 2).reshape((*x.shape[:-1], self.heads * self.value_dim))
        if self.has_inner_norm:
            y = self._own(self.inner_norm(y), self.own_queries)
        return self.o(self._gate(y, x) if self.gated else y)

    def _gate(self, y: Value, x: Value) -> Value:
        """Return the outputs of the heads, (batch, positions, heads * value_dim), times gates."""
        gates = self.activate_gate(self.head_gate(x) if self.gates_heads else self.gate(x))
        if not self.gates_heads:
            return y * gates
        by_head = y.reshape((*y.shape[:-1], self.heads, self.value_dim))
        return (by_head * ops.unsqueeze(gates, -1)).reshape(y.shape)

    def _turned_heads(
        self, x: Value, cos: Value | None, sin: Value | None, source: Value | None
    ) -> tuple[Value, Value, Value]:
        """Return queries, keys and values of all heads, as their scores are computed."""
        q, k, v = self._projections(x, source)
        if self.norms_whole:
            q = self._own(self.q_norm(q), self.own_queries)
            k = self._own(self.k_norm(k), self.own_keys)
        if self.clamp is not None:
            q, k, v = (ops.clamp(each, -self.clamp, self.clamp) for each in (q, k, v))
        q, k, v = self._heads(q), self._heads(k), self._heads(v, self.value_dim)
        if self.value_scale != 1:
            v = v * self.value_scale
        if self.values_epsilon is not None:
            ones = ops.constant([1.0] * self.value_dim, v.dtype, v.device)
            v = ops.rms_norm(v, ones, self.values_epsilon)
        norms_heads = self.has_norms and not self.norms_whole
        if norms_heads and not self.norms_last:
            q, k = self._norm_heads(q, k)
        if cos is not None and sin is not None:
            q = ops.rope(q, cos, sin, interleaved=self.interleaved)
            k = ops.rope(k, cos, sin, interleaved=self.interleaved)
        if norms_heads and self.norms_last:
            q, k = self._norm_heads(q, k)
        if self.temperature is not None:
            q = self.temperature(q)
        return q, k, v

    def _norm_heads(self, q: Value, k: Value) -> tuple[Value, Value]:
        """Return queries and keys, of which each head is normed."""
        if isinstance(self.q_norm, HeadNorm) and isinstance(self.k_norm, HeadNorm):
            if self.fused:
                first, last = self.keys_in_qkv
                own = own_segment(self.qkv.outputs, first, last)
            else:
                own = own_range(self.k.outputs)
            keys = None if own is None else (own[0] // self.head_dim, own[1] // self.head_dim)
            return self.q_norm(q, self._own_heads()), self.k_norm(k, keys)
        return self.q_norm(q), self.k_norm(k)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies with which each shard has some of the heads.

        A rank gets KV heads and all their query heads; if there are fewer KV heads than ranks,
        several ranks share one. Raises `ShardingError` if not every rank can get a head in whole
        blocks.
        """
        heads = Heads(self.heads, self.kv_heads, self.head_dim, value=self.value_dim)
        is_sized = self.value_dim != self.head_dim
        values = "attention.v.sized" if is_sized else "attention.v"
        parts = {"attention.o.latent" if is_sized else "attention.o": self.o}
        if self.has_inner_norm:
            # Of all heads together: every rank computes them all.
            inputs = (self.q, self.k, self.v)
            cuts = cut_parts(parts, devices, heads)
            cuts |= replicate_weights(devices, *(each.weight for each in inputs))
            cuts |= replicate_weights(devices, *(each.bias for each in inputs))
            return cuts | replicate_weights(devices, self.inner_norm.weight)
        if self.fused:
            parts = {"attention.qkv": self.qkv, **parts}
        elif self.norms_whole:
            # Of all heads together: every rank computes those of all.
            parts = {values: self.v, **parts}
        else:
            parts = {"attention.q": self.q, "attention.k": self.k, **parts}
            parts |= {} if self.values_from_keys else {values: self.v}
        if self.gated:
            gate = (
                {"attention.head_gate": self.head_gate}
                if self.gates_heads
                else {"attention.gate": self.gate}
            )
            parts = {**gate, **parts}
        cuts = cut_parts(parts, devices, heads)
        if self.norms_whole:
            whole = (self.q, self.k)
            cuts |= replicate_weights(devices, *(each.weight for each in whole))
            cuts |= replicate_weights(devices, *(each.bias for each in whole))
        if self.has_norms:
            cuts |= replicate_weights(devices, self.q_norm.weight, self.k_norm.weight)
        if self.has_sinks:
            cuts |= replicate_weights(devices, self.sinks.weight)
        if self.indexer is not None:
            # Every shard needs the same selection of keys.
            cuts |= replicate_weights(devices, *self.indexer.weights)
        return cuts

    def take_shards(self) -> None:
        """Adopt the number of heads of a shard."""
        if self.has_inner_norm:
            self.own_queries = own_range(self.o.inputs)
            return
        if self.fused:
            self.sizes = segment_sizes(self.qkv.outputs, self.sizes)
        elif self.norms_whole:
            self.own_queries, self.own_keys = own_range(self.o.inputs), own_range(self.v.outputs)
            self.sizes = (self.o.inputs.size, self.v.outputs.size, self.v.outputs.size)
        else:
            keys = self.k.outputs.size
            values = keys if self.values_from_keys else self.v.outputs.size
            self.sizes = (self.q.outputs.size, keys, values)
        self.heads, self.kv_heads, _ = (size // self.head_dim for size in self.sizes)

    def _own(self, x: Value, own: Range | None) -> Value:
        """Return the heads of a shard, of all."""
        return x if own is None else x[..., own[0] : own[1]]

    def _own_heads(self) -> Range | None:
        """Return which of all query heads a shard has, None for a whole layer."""
        own = own_range(self.o.inputs)
        return None if own is None else (own[0] // self.value_dim, own[1] // self.value_dim)

    def _own_scores(self, mask: Value | None) -> Value | None:
        """Return what is added to the scores of a shard's heads, of what is for all heads."""
        own = self._own_heads()
        if mask is None or own is None or len(mask.shape) < 4 or mask.shape[1] != self.all_heads:
            return mask
        return mask[:, own[0] : own[1]]

    def _slope(self, x: Value, largest: float, mask: Value | None) -> Value:
        """Return what each head adds to its scores, (heads, 1, positions), for each key.

        It follows from the distance to a key alone: what is the same for all keys of a query makes
        no difference, if no key is after it. A `mask` states which positions hold tokens.
        """
        first, last = self._own_heads() or (0, self.heads)
        slopes = alibi_slopes(self.all_heads, largest)[first:last]
        positions = list_all_positions(x.shape[1], x.device).cast(DType.float32)
        given = ops.constant(slopes, DType.float32, x.device).reshape((self.heads, 1, 1))
        if not self.causal:
            positions = -ops.abs(positions.reshape((positions.shape[0], 1)) - positions)
        scores = (given * positions).cast(x.dtype)
        return scores if mask is None else ops.where(mask, scores, -inf)

    def _projections(self, x: Value, source: Value | None) -> tuple[Value, ...]:
        if self.fused and source is not None:
            raise GraphError(
                "a fused projection of queries, keys and values cannot read keys and values from "
                "another input"
            )
        if self.fused:
            return tuple(ops.split(self.qkv(x), self.sizes, axis=-1))
        read = x if source is None else source
        keys = self.k(read)
        return self.q(x), keys, keys if self.values_from_keys else self.v(read)

    def _heads(self, x: Value, size: int | None = None) -> Value:
        """Return (batch, positions, heads * size) as (batch, heads, positions, size)."""
        size = size or self.head_dim
        heads = int(x.shape[-1]) // size
        return x.reshape((*x.shape[:-1], heads, size)).transpose(1, 2)


def _make_norm(
    heads: int,
    *,
    size: int,
    eps: float,
    offset: float,
    weight: bool,
    is_whole: bool,
    is_apart: bool,
    is_centered: bool,
    dtype: DTypeLike,
    device: DeviceRef,
) -> RMSNorm | HeadNorm:
    """Return the norm of queries or keys, of so many heads of a size."""
    if is_apart:
        return HeadNorm(heads, size, eps, centered=is_centered, dtype=dtype, device=device)
    features = heads * size if is_whole else size
    return RMSNorm(features, eps, offset=offset, weight=weight, dtype=dtype, device=device)


def _mask_chunks(positions: Dim, device: DeviceRef, size: int) -> Value:
    """Return bool[positions, keys]: which keys are in the chunk of each position.

    The chunks begin at the multiples of `size`.
    """
    chunks = ops.floordiv(list_positions(positions, device), size)
    others = ops.floordiv(list_all_positions(positions, device), size)
    return ops.equal(ops.unsqueeze(chunks, 1), ops.unsqueeze(others, 0))


# Attention sinks: scores without a key, which take a share of the softmax and add nothing.


class Sinks(Module):
    """A score for each head beside those of its keys."""

    def __init__(self, heads: int, *, device: DeviceRef = CPU) -> None:
        self.weight = Weight("weight", DType.float32, (heads,), device)

    def __call__(self, own: Range | None = None) -> Value:
        """Return the scores, [heads]; `own` are the heads of a shard."""
        return self.weight if own is None else self.weight[own[0] : own[1]]

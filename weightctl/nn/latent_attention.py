"""Attention whose keys and values are made of a latent vector: MLA, of DeepSeek-V2 and others."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from weightctl.device import CPU
from weightctl.dtype import DType
from weightctl.errors import GraphError
from weightctl.graph import ops
from weightctl.nn.activation_squares import collect_squares, collects_squares
from weightctl.nn.attention import Sinks
from weightctl.nn.indexer import Indexer
from weightctl.nn.layer_sharding import cut_parts, own_range, replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.module import Divisible
from weightctl.nn.norm import RMSNorm
from weightctl.nn.positions import with_past
from weightctl.split import Heads

if TYPE_CHECKING:
    from weightctl.device import DeviceRef
    from weightctl.dtype import DTypeLike, QuantizationEncoding
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.indexer import IndexerSizes
    from weightctl.nn.positions import Temperature
    from weightctl.split import Range

# Of the norms of latent vectors, whatever the other norms of a model have.
_EPSILON = 1e-6


class LatentAttention(Divisible):
    """Multi-head latent attention (MLA): keys and values are made of a vector of each position.

    The vector has `latent_rank` numbers. Each head makes of it `plain` numbers of its key, and a
    value of `value` numbers; the other `rotated` numbers of a key are those of all heads. Queries
    have `plain + rotated` numbers, made of a latent vector of their own if `query_rank` is not 0.
    `scale` multiplies the scores, the inverse root of a query's size where not given, and
    `temperature` the queries, by their positions. `interleaved` rotates neighboring numbers as
    pairs. If `gated`, the outputs are multiplied by the sigmoid of another projection of the input,
    which has a number for each head if `gates_heads`. With `sinks`, each head has a score that
    belongs to no key. With an `indexer`, its sizes, queries see only the keys
    that it selects; it needs a `query_rank`. With `shares_indexer`, the indexer is that of an
    earlier layer, whose weights `share_indexer` sets.

    Source: DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1. Keys and values are computed for each
    head here, as in training.
    """

    def __init__(
        self,
        features: int,
        heads: int,
        *,
        latent_rank: int,
        plain: int,
        rotated: int,
        value: int,
        query_rank: int = 0,
        scale: float | None = None,
        causal: bool = True,
        interleaved: bool = False,
        temperature: Temperature | None = None,
        gated: bool = False,
        gates_heads: bool = False,
        sinks: bool = False,
        indexer: IndexerSizes | None = None,
        shares_indexer: bool = False,
        dtype: DTypeLike = DType.float32,
        device: DeviceRef = CPU,
        quantization_encoding: QuantizationEncoding | None = None,
    ) -> None:
        self.heads = heads
        self.latent_rank = latent_rank
        self.plain, self.rotated, self.value = plain, rotated, value
        self.query_rank = query_rank
        self.scale = scale
        self.causal = causal
        self.interleaved = interleaved
        self.temperature = temperature
        projection = partial(
            Linear, dtype=dtype, device=device, quantization_encoding=quantization_encoding
        )
        norm = partial(RMSNorm, eps=_EPSILON, dtype=dtype, device=device)
        if query_rank:
            self.q_a = projection(features, query_rank)
            self.q_a_norm = norm(query_rank)
            self.q_b = projection(query_rank, heads * (plain + rotated))
        else:
            self.q = projection(features, heads * (plain + rotated))
        self.has_indexer = indexer is not None
        if indexer is not None:
            self.indexer = Indexer(features, query_rank, indexer, dtype=dtype, device=device)
        self.shares_indexer = shares_indexer
        if shares_indexer:
            self.source_q_a = projection(features, query_rank)
            self.source_q_a_norm = norm(query_rank)
        self.kv_a = projection(features, latent_rank + rotated)
        self.kv_a_norm = norm(latent_rank)
        self.k_b = projection(latent_rank, heads * plain)
        self.v_b = projection(latent_rank, heads * value)
        self.gated, self.gates_heads = gated, gated and gates_heads
        if self.gates_heads:
            self.head_gate = projection(features, heads)
        elif gated:
            self.gate = projection(features, heads * value)
        self.has_sinks = sinks
        if sinks:
            self.sinks = Sinks(heads, device=device)
        self.o = projection(heads * value, features)

    def __call__(
        self,
        x: Value,
        cos: Value | None = None,
        sin: Value | None = None,
        mask: Value | None = None,
        source: Value | None = None,
    ) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`.

        `cos` and `sin` are those of a `RotaryEmbedding` of the rotated numbers; without them, no
        numbers are rotated. `mask` is as that of `Attention`. `source` is the input of the
        attention whose indexer this one shares.
        """
        if (cos is None) != (sin is None):
            raise GraphError("`cos` and `sin` must be given together, but one is missing")
        if self.query_rank:
            given = self.q_a_norm(self.q_a(x))
            q = self.q_b(given)
            if self.has_indexer and cos is not None and sin is not None:
                mask = self._select(x, given, source, cos, sin)
        else:
            q = self.q(x)
        plain_q, rotated_q = ops.split(self._heads(q), [self.plain, self.rotated], axis=-1)
        latent, shared = ops.split(self.kv_a(x), [self.latent_rank, self.rotated], axis=-1)
        latent = self.kv_a_norm(latent)
        plain_k, v = self._heads(self.k_b(latent)), self._heads(self.v_b(latent))
        shared = ops.unsqueeze(shared, 1)
        if cos is not None and sin is not None:
            rotated_q = ops.rope(rotated_q, cos, sin, interleaved=self.interleaved)
            shared = ops.rope(shared, cos, sin, interleaved=self.interleaved)
        rotated_k = ops.broadcast_to(shared, (*plain_k.shape[:-1], self.rotated))
        q = ops.concat([plain_q, rotated_q], -1)
        if self.temperature is not None:
            q = self.temperature(q)
        attend = partial(
            ops.attention,
            q,
            with_past(ops.concat([plain_k, rotated_k], -1)),
            mask=mask,
            sinks=self.sinks(self._own_heads()) if self.has_sinks else None,
            causal=self.causal,
            scale=self.scale,
        )
        if collects_squares():
            # llama.cpp multiplies queries with `k_b`, and mixtures of latent vectors with `v_b`.
            latents = ops.unsqueeze(latent, 1)
            latents = ops.broadcast_to(latents, (*plain_k.shape[:-1], self.latent_rank))
            collect_squares(self.k_b.weight, plain_q)
            collect_squares(self.v_b.weight, attend(latents))
        y = attend(with_past(v))
        if self.gates_heads:
            gates = ops.sigmoid(self.head_gate(x)).transpose(1, 2)
            y = y * ops.unsqueeze(gates, -1)
        y = y.transpose(1, 2).reshape((*x.shape[:-1], self.heads * self.value))
        if self.gated and not self.gates_heads:
            y = y * ops.sigmoid(self.gate(x))
        return self.o(y)

    def share_indexer(self, other: LatentAttention) -> None:
        """Use the weights with which the attention of an earlier layer selects keys."""
        self.indexer.share_weights(other.indexer)
        self.source_q_a.set_shared_weight("weight", other.q_a.weight)
        norm = other.q_a_norm.weight
        if norm is not None:
            self.source_q_a_norm.set_shared_weight("weight", norm)

    def _select(
        self, x: Value, latent: Value, source: Value | None, cos: Value, sin: Value
    ) -> Value:
        """Return which keys each query sees, bool[batch, 1, positions, keys]."""
        if not self.shares_indexer:
            return self.indexer(x, latent, cos, sin)
        if source is None:
            raise GraphError("an attention that shares an indexer needs the `source` of its input")
        latent = self.source_q_a_norm(self.source_q_a(source))
        return self.indexer(source, latent, cos, sin)

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return how the weights are cut so that each shard has some of the heads.

        Every shard makes the latent vectors. Raises `ShardingError` if not each can have a head, in
        whole blocks.
        """
        heads = Heads(self.heads, self.heads, self.plain + self.rotated, self.plain, self.value)
        queries = {"attention.q_b": self.q_b} if self.query_rank else {"attention.q": self.q}
        parts = queries | {
            "attention.k_b": self.k_b,
            "attention.v_b": self.v_b,
            "attention.o.latent": self.o,
        }
        if self.gated:
            by_head = self.gates_heads
            parts |= (
                {"attention.head_gate": self.head_gate}
                if by_head
                else {"attention.gate.latent": self.gate}
            )
        cuts = cut_parts(parts, devices, heads)
        whole = [self.kv_a.weight, self.kv_a_norm.weight]
        whole += [self.sinks.weight] if self.has_sinks else []
        if self.query_rank:
            whole += [self.q_a.weight, self.q_a_norm.weight]
        if self.shares_indexer:
            whole += [self.source_q_a.weight, self.source_q_a_norm.weight]
        # Every shard needs the same selection of keys.
        selecting = self.indexer.weights if self.has_indexer else ()
        return cuts | replicate_weights(devices, *whole, *selecting)

    def take_shards(self) -> None:
        """Count the heads that a shard has."""
        self.heads = self.v_b.outputs.size // self.value

    def _own_heads(self) -> Range | None:
        """Return which of all heads a shard has, None for a whole layer."""
        own = own_range(self.o.inputs)
        return None if own is None else (own[0] // self.value, own[1] // self.value)

    def _heads(self, x: Value) -> Value:
        """(batch, positions, heads * size) as (batch, heads, positions, size)."""
        size = int(x.shape[-1]) // self.heads
        return x.reshape((*x.shape[:-1], self.heads, size)).transpose(1, 2)

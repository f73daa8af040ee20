"""The Module of decoders with hyper-connections and attention to compressed keys."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import DType
from weightctl.families.compressed import OVERLAPPING
from weightctl.graph import ops
from weightctl.nn.attention import Sinks
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.indexer import IndexerSizes
from weightctl.nn.layer_sharding import replicate_weights
from weightctl.nn.linear import Linear
from weightctl.nn.models.block import make_norm
from weightctl.nn.models.decoder import Decoder
from weightctl.nn.models.hyper_connections import Float32Tensor, HyperConnection, StreamOutput
from weightctl.nn.module import Divisible, Module
from weightctl.nn.norm import RMSNorm
from weightctl.nn.positions import list_positions, mask_positions, with_past
from weightctl.nn.precision import weight_as
from weightctl.nn.rope import RotaryEmbedding
from weightctl.nn.weight_names import all_weights

if TYPE_CHECKING:
    from weightctl.families.compressed import CompressedConfig
    from weightctl.graph.graph import Value, Weight
    from weightctl.graph.sharding import ShardingStrategy
    from weightctl.nn.models.network import Beside


class CompressedSizes(NamedTuple):
    """The sizes of an attention with compressed keys.

    - `heads`, `size`, `rotated`: the query heads, the elements of each, and how many of these, the
      last ones, are rotated.
    - `query_rank`: the size of the latent vector of queries.
    - `window`: how many tokens a query sees without compression.
    - `groups`, `rank`: the groups of heads that are projected separately, and the size of the
      result of each.
    """

    heads: int
    size: int
    rotated: int
    query_rank: int
    window: int
    groups: int
    rank: int


def _rotate_last(x: Value, rotated: int, cos: Value, sin: Value) -> Value:
    """Return heads in which the last elements are rotated."""
    size = int(x.shape[-1])
    if rotated == size:
        return ops.rope(x, cos, sin, interleaved=True)
    first, last = ops.split(x, [size - rotated, rotated], axis=-1)
    return ops.concat([first, ops.rope(last, cos, sin, interleaved=True)], -1)


class Compressor(Module):
    """Makes one key of `ratio` tokens each: the sum of their vectors, weighted by element.

    The weights are a softmax over the tokens. With a ratio of 4 a token has two vectors, and a key
    is made of the first of the tokens before, and the second of its own.

    Source: transformers' `DeepseekV4HCACompressor` and `DeepseekV4CSACompressor`.
    """

    def __init__(
        self,
        features: int,
        size: int,
        ratio: int,
        *,
        rotated: int,
        rope: RotaryEmbedding,
        eps: float,
        dtype: DType,
    ) -> None:
        self.size, self.ratio, self.rotated = size, ratio, rotated
        self.overlaps = ratio == OVERLAPPING
        self.width = 2 * size if self.overlaps else size
        # It has no weights, and is that of the layer.
        self.find_angles = rope.__call__
        self.kv = Linear(features, self.width, dtype=dtype)
        self.gate = Linear(features, self.width, dtype=dtype)
        # What is added to the gates of the tokens of a key, by their places in it.
        self.places = Float32Tensor(ratio, self.width)
        self.norm = RMSNorm(size, eps, dtype=dtype)

    def __call__(self, x: Value) -> Value:
        """Return the keys, [batch, 1, keys, size], of [batch, positions, features].

        Tokens that are not yet enough for a key do not have one.
        """
        both = with_past(ops.unsqueeze(ops.concat([self.kv(x), self.gate(x)], -1), 1))
        batch, _, tokens, _ = both.shape
        count = tokens // self.ratio
        used = both[:, 0, : count * self.ratio]
        parts = used.reshape((batch, count, self.ratio, 2 * self.width))
        values, gates = ops.split(parts, [self.width, self.width], axis=-1)
        gates = gates.cast(DType.float32) + self.places()
        values = values.cast(DType.float32)
        if self.overlaps:
            values, gates = self._overlap(values, 0.0), self._overlap(gates, -inf)
        keys = ops.sum(values * ops.softmax(gates, -2), axis=-2).cast(x.dtype)
        positions = ops.range(count, device=x.device) * self.ratio
        cos, sin = self.find_angles(positions)
        return _rotate_last(ops.unsqueeze(self.norm(keys), 1), self.rotated, cos, sin)

    def _overlap(self, x: Value, filler: float) -> Value:
        """Return the first vectors of the tokens before, and then the second ones of the tokens."""
        before, own = ops.split(x, [self.size, self.size], axis=-1)
        batch, count, ratio, size = before.shape
        empty = ops.constant(filler, x.dtype, x.device).broadcast_to((batch, 1, ratio, size))
        shifted = ops.concat([empty, before], 1)[:, :count]
        return ops.concat([shifted, own], 2)


class CompressedIndexer(Module):
    """For each position, selects compressed keys with the highest scores.

    It has smaller compressed keys of its own. The score of a key is the sum over heads of
    relu(query @ key) times a factor, which is a projection of the layer's input.

    Source: transformers' `DeepseekV4Indexer`.
    """

    def __init__(
        self, features: int, query_rank: int, sizes: IndexerSizes, compressor: Compressor,
        dtype: DType,
    ) -> None:  # fmt: skip
        self.sizes = sizes
        self.q_b = Linear(query_rank, sizes.heads * sizes.size, dtype=dtype)
        self.factors = Linear(features, sizes.heads, dtype=dtype)
        self.compressor = compressor

    def __call__(self, x: Value, latent: Value, cos: Value, sin: Value, seen: Value) -> Value:
        """Return bool[batch, 1, positions, keys]: which of the keys in `seen` each query sees.

        `latent` is the latent vector of the queries of the attention, and `seen` is
        bool[positions, keys].
        """
        heads, size, rotated, used, *_ = self.sizes
        q = self.q_b(latent).reshape((*x.shape[:-1], heads, size)).transpose(1, 2)
        q = _rotate_last(q, rotated, cos, sin)
        keys = self.compressor(x)
        products = ops.relu((q @ keys.transpose(2, 3)).cast(DType.float32))
        factors = ops.unsqueeze(self.factors(x).transpose(1, 2), 3).cast(DType.float32)
        scores = ops.sum(products * factors, axis=1, keepdims=True)
        best = ops.mask_top_k(scores + ops.where(seen, 0.0, -inf), used)
        return ops.logical_and(best, seen)


class GroupedLinear(Linear):
    """Projects each of `groups` equal parts of the inputs by its own rows of the weight."""

    def __init__(self, features: int, rank: int, groups: int, dtype: DType) -> None:
        super().__init__(features // groups, groups * rank, dtype=dtype)
        self.parts, self.rank = groups, rank

    def __call__(self, x: Value) -> Value:
        """Return the results of the groups one after the other, [batch, positions, outputs]."""
        width = int(x.shape[-1]) // self.parts
        parts = x.reshape((*x.shape[:-1], self.parts, width)).transpose(1, 2)
        weight = weight_as(self.weight, x.dtype).reshape((self.parts, self.rank, width))
        made = parts @ weight.transpose(1, 2)
        return made.transpose(1, 2).reshape((*x.shape[:-1], self.parts * self.rank))


class CompressedAttention(Divisible):
    """Attention in which all heads share one vector per token, which is both key and value.

    Queries see the tokens in a sliding window, a sink, and with a `ratio` compressed keys: all of
    them, or those that an indexer with the sizes `indexer` selects. Queries, keys and outputs are
    rotated at the end of each head, the outputs backwards. Queries are normed without a weight.
    `rope` is the rotary embedding of the layer. Every rank computes all of it.

    Source: transformers' `DeepseekV4Attention`.
    """

    def __init__(
        self,
        features: int,
        sizes: CompressedSizes,
        *,
        ratio: int,
        indexer: IndexerSizes | None,
        rope: RotaryEmbedding,
        eps: float,
        dtype: DType,
    ) -> None:
        self.sizes, self.ratio, self.eps = sizes, ratio, eps
        projection = partial(Linear, dtype=dtype)
        self.q_a = projection(features, sizes.query_rank)
        self.q_a_norm = RMSNorm(sizes.query_rank, eps, dtype=dtype)
        self.q_b = projection(sizes.query_rank, sizes.heads * sizes.size)
        self.kv = projection(features, sizes.size)
        self.kv_norm = RMSNorm(sizes.size, eps, dtype=dtype)
        self.sinks = Sinks(sizes.heads)
        make = partial(
            Compressor, features, ratio=ratio, rotated=sizes.rotated, rope=rope, eps=eps,
            dtype=dtype,
        )  # fmt: skip
        if ratio:
            self.compressor = make(sizes.size)
        self.selects = indexer is not None
        if indexer is not None:
            own = make(indexer.size)
            self.indexer = CompressedIndexer(features, sizes.query_rank, indexer, own, dtype)
        self.o_a = GroupedLinear(sizes.heads * sizes.size, sizes.rank, sizes.groups, dtype)
        self.o_b = projection(sizes.groups * sizes.rank, features)

    def __call__(self, x: Value, cos: Value, sin: Value) -> Value:
        """Return outputs in the shape of the inputs, `(batch, positions, features)`."""
        heads, size, rotated = self.sizes[:3]
        batch, positions, _ = x.shape
        latent = self.q_a_norm(self.q_a(x))
        q = self.q_b(latent).reshape((batch, positions, heads, size)).transpose(1, 2)
        q = _rotate_last(ops.rms_norm(q, None, self.eps), rotated, cos, sin)
        key = ops.unsqueeze(self.kv_norm(self.kv(x)), 1)
        key = with_past(_rotate_last(key, rotated, cos, sin))
        if self.ratio:
            keys, mask = self._add_compressed(x, latent, cos, sin, key)
            y = ops.attention(q, keys, keys, mask, sinks=self.sinks())
        else:
            y = ops.attention(
                q, key, key, sinks=self.sinks(), causal=True, window=self.sizes.window
            )
        y = _rotate_last(y, rotated, cos, -sin).transpose(1, 2)
        return self.o_b(self.o_a(y.reshape((batch, positions, heads * size))))

    def tensor_parallel(self, devices: int) -> dict[Weight, ShardingStrategy]:
        """Return strategies that give every shard all weights."""
        return replicate_weights(devices, *all_weights(self))

    def _add_compressed(
        self, x: Value, latent: Value, cos: Value, sin: Value, key: Value
    ) -> tuple[Value, Value]:
        """Return the keys of tokens and the compressed ones, and a mask of those a query sees."""
        batch, positions, _ = x.shape
        made = self.compressor(x)
        masks = (
            mask_positions(positions, x.device, self.sizes.window),
            self._choose(x, latent, cos, sin, made),
        )
        shape = (batch, 1, positions)
        seen = [ops.broadcast_to(each, (*shape, each.shape[-1])) for each in masks]
        return ops.concat([key, made], 2), ops.concat(seen, -1)

    def _choose(self, x: Value, latent: Value, cos: Value, sin: Value, made: Value) -> Value:
        """Return which compressed keys each query sees: those whose tokens it also could see."""
        count = made.shape[2]
        complete = ops.floordiv(list_positions(x.shape[1], x.device) + 1, self.ratio)
        seen = ops.range(count, device=x.device) < ops.unsqueeze(complete, 1)
        return self.indexer(x, latent, cos, sin, seen) if self.selects else seen


class CompressedBlock(Module):
    """A layer of several streams: attention, and then experts, each with a hyper-connection."""

    def __init__(self, config: CompressedConfig, layer: int, dtype: DType) -> None:
        hidden, eps, size = config.hidden, config.norm_epsilon, config.one_head
        ratio = config.compress_ratios[layer]
        self.is_compressed = ratio > 0
        rotated = config.rope_dimensions
        rope = RotaryEmbedding(rotated, config.compress_rope_base, config.rope_scaling)
        self.attention_streams, self.mlp_streams = (
            HyperConnection(
                config.streams,
                hidden,
                steps=config.sinkhorn_steps,
                small=config.stream_epsilon,
                eps=eps,
            )
            for _ in range(2)
        )
        self.attention_norm = make_norm(config, dtype)
        selection = IndexerSizes(
            config.indexer_heads, config.indexer_size, rotated, config.indexer_used, True
        )
        self.attention = CompressedAttention(
            hidden,
            CompressedSizes(
                config.heads,
                size,
                rotated,
                config.query_rank,
                config.sliding_window or 1,
                config.output_groups,
                config.output_rank,
            ),
            ratio=ratio,
            indexer=selection if ratio == OVERLAPPING else None,
            rope=rope,
            eps=eps,
            dtype=dtype,
        )
        self.mlp_norm = make_norm(config, dtype)
        # `parallel` replaces this module by another, which is called in the same way.
        self.has_table = config.hashed_layers[layer]
        self.mlp: Module = _make_experts(config, layer, dtype)

    def __call__(self, x: Value, cos: Value, sin: Value, tokens: Value) -> Value:
        """Return the streams of the next layer, in the shape of `x`, [batch, seq, all streams]."""
        read, shares, weights = self.attention_streams(x)
        returned = self.attention(self.attention_norm(read), cos, sin)
        x = self.attention_streams.mix(x, returned, shares, weights)
        read, shares, weights = self.mlp_streams(x)
        given = self.mlp_norm(read)
        inner: Value = self.mlp(given, None, tokens) if self.has_table else self.mlp(given)
        return self.mlp_streams.mix(x, inner, shares, weights)


class CompressedDecoder(Decoder):
    """A decoder: from token ids, int64[batch, seq], to logits [batch, seq, vocabulary].

    Its layers pass on several streams of vectors, [batch, seq, streams * hidden], which all begin
    as the tokens' vectors.

    Source: transformers' `DeepseekV4Model`.
    """

    def __init__(self, config: CompressedConfig, dtype: DType = DType.float32) -> None:
        # The base class reads it as its own kind of config.
        self.compressed_config = config
        super().__init__(config, dtype)
        self.compressed_rope = RotaryEmbedding(
            config.rope_dimensions, config.compress_rope_base, config.rope_scaling
        )
        self.rope = RotaryEmbedding(config.rope_dimensions, config.rope_base)
        self.stream_output = StreamOutput(
            config.streams, config.hidden, small=config.stream_epsilon, eps=config.norm_epsilon
        )

    def make_layer(self, layer: int) -> Module:
        return CompressedBlock(self.compressed_config, layer, self.dtype)

    def begin(self, tokens: Value) -> tuple[Value, Beside]:
        """Return the streams, and what all layers read.

        These are the cosines and sines for both kinds of layers, and the tokens.
        """
        x, beside = super().begin(tokens)
        return ops.concat([x] * self.compressed_config.streams, axis=-1), (*beside, tokens)

    def rotations(self, positions: Value) -> Beside:
        """Return the cosines and sines of layers without compressed keys, and of the others."""
        return (*self.rope(positions), *self.compressed_rope(positions))

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer for its input."""
        cos, sin = beside[2 * layer.is_compressed :][:2]
        value: Value = layer(x, cos, sin, beside[-1])
        return value

    def end(self, x: Value) -> Value:
        """Return the logits of the token after each position."""
        return super().end(self.stream_output(x))


def _make_experts(config: CompressedConfig, layer: int, dtype: DType) -> MixtureOfExperts:
    has_table = config.hashed_layers[layer]
    return MixtureOfExperts(
        config.hidden,
        config.expert_intermediate,
        config.activation,
        count=config.experts,
        used=config.experts_used,
        scores=config.router,
        scale=config.experts_scale,
        has_correction=not has_table,
        shared=config.shared_intermediate,
        limit=config.expert_limit,
        shared_limit=config.expert_limit,
        table=config.table_rows if has_table else 0,
        dtype=dtype,
    )

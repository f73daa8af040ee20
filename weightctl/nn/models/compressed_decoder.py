"""The Module of decoders with hyper-connections and attention to compressed keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.families.compressed import OVERLAPPING
from weightctl.graph import ops
from weightctl.nn.experts import MixtureOfExperts
from weightctl.nn.indexer import IndexerSizes
from weightctl.nn.models.block import make_norm
from weightctl.nn.models.compressed_attention import CompressedAttention, CompressedSizes
from weightctl.nn.models.decoder import Decoder
from weightctl.nn.models.hyper_connections import HyperConnection, StreamOutput
from weightctl.nn.module import Module
from weightctl.nn.rope import RotaryEmbedding

if TYPE_CHECKING:
    from weightctl.families.compressed import CompressedConfig
    from weightctl.graph.graph import Value
    from weightctl.nn.models.network import Beside


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
        table=config.table_rows if has_table else 0,
        dtype=dtype,
    )

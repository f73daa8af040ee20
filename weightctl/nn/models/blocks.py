"""The common base of decoders and encoders: embeddings, positions, and layers of blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.graph import ops
from weightctl.nn.base_layer import LayerList
from weightctl.nn.embedding import Embedding
from weightctl.nn.models.block import Block, make_norm
from weightctl.nn.models.network import Network
from weightctl.nn.rope import FrequencyFactors, RotaryEmbedding, by_length

if TYPE_CHECKING:
    from weightctl.families.decoder import DecoderConfig
    from weightctl.graph.graph import Value
    from weightctl.nn.models.network import Beside
    from weightctl.nn.module import Module


class BlockNetwork(Network):
    """A model whose layers are blocks, which its config selects.

    A model with learned positions supports at most `config.context` tokens; an engine refuses more.
    """

    def __init__(
        self, config: DecoderConfig, dtype: DType = DType.float32, *, token_types: int = 0
    ) -> None:
        self.config = config
        self.dtype = dtype
        self.token_types = token_types
        self.embedding = Embedding(config.vocabulary, config.hidden, dtype=dtype)
        if config.position == "learned":
            self.position_embedding = Embedding(
                config.position_rows, config.hidden, dtype=dtype, replicated=True
            )
        if token_types:
            self.token_type_embedding = Embedding(
                token_types, config.hidden, dtype=dtype, replicated=True
            )
        if config.embedding_norm:
            self.embedding_norm = make_norm(config, dtype)
        if config.position == "rope":
            self._add_rotations(config)
        self.layers = LayerList[Any]([self.make_layer(layer) for layer in range(config.layers)])

    def make_layer(self, layer: int) -> Module:
        return Block(self.config, layer, self.dtype)

    def look_up(self, tokens: Value, positions: Value, token_types: Value | None = None) -> Value:
        """Return the vectors of tokens with all additions, factors and norms before the layers.

        All tokens are of type 0 unless `token_types` is given.
        """
        config = self.config
        x = self.embedding(tokens, self.dtype)
        if config.embedding_by_root:
            # The factor is rounded to the dtype of activations, as models were trained with it.
            x = x * ops.constant(config.hidden**0.5, self.dtype, tokens.device)
        if config.embedding_scale != 1:
            x = x * config.embedding_scale
        if self.token_types:
            if token_types is None:
                token_types = ops.constant([[0]], DType.int64, tokens.device)
            x = x + self.token_type_embedding(token_types, self.dtype)
        if config.position == "learned":
            x = x + self.position_embedding(positions + config.position_offset, self.dtype)
        return self.embedding_norm(x) if config.embedding_norm else x

    def rotations(self, positions: Value) -> Beside:
        """Return the cosines and sines of each rotary embedding, numbered by `Block.rotation`."""
        config = self.config
        if config.position != "rope":
            return ()
        found = self.rope(positions, self._factors(positions))
        if config.local_rope_base is None:
            return tuple(found)
        return (*found, *self.local_rope(positions))

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the output of a layer for its input, with the rotary embedding of the layer."""
        if layer.rotation is None:
            return super().through(layer, x, ())
        return super().through(layer, x, beside[2 * layer.rotation :][:2])

    def _add_rotations(self, config: DecoderConfig) -> None:
        dimensions, pairs = config.rope_dimensions, config.factor_pairs
        self.rope = RotaryEmbedding(dimensions, config.rope_base, config.rope_scaling)
        if config.local_rope_base is not None:
            local = config.local_rope_dimensions or dimensions
            self.local_rope = RotaryEmbedding(local, config.local_rope_base)
        if config.has_rope_factors and config.rope_factors_by_length:
            self.short_rope_factors = FrequencyFactors(pairs)
            self.long_rope_factors = FrequencyFactors(pairs)
        elif config.has_rope_factors:
            self.rope_factors = FrequencyFactors(pairs)

    def _factors(self, positions: Value) -> Value | None:
        """Return the tensor that divides the frequencies of RoPE, None if there is none."""
        config = self.config
        if config.has_rope_factors and not config.rope_factors_by_length:
            factors, pairs = self.rope_factors(), config.rope_dimensions // 2
            return factors if pairs == config.factor_pairs else factors[:pairs]
        if config.rope_scaling is None or not config.has_rope_factors:
            return None
        short, long = self.short_rope_factors(), self.long_rope_factors()
        return by_length(positions, config.rope_scaling.original_context, short, long)

"""The Module of an encoder, and a decoder that reads the states of the encoder."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log
from typing import TYPE_CHECKING, Any

from weightctl.dtype import DType
from weightctl.families.modules import at_layer
from weightctl.graph import ops
from weightctl.graph.graph import Weight
from weightctl.nn.attention import Attention
from weightctl.nn.base_layer import LayerList
from weightctl.nn.embedding import Embedding
from weightctl.nn.linear import Linear
from weightctl.nn.models.block import Block, make_mlp, make_norm
from weightctl.nn.models.network import Network
from weightctl.nn.module import Module
from weightctl.nn.precision import weight_as

if TYPE_CHECKING:
    from weightctl.families.encoder import EncoderConfig, EncoderDecoderConfig
    from weightctl.graph.graph import Value
    from weightctl.nn.models.network import Beside


class EncoderDecoder(Network):
    """An encoder and a decoder: from token ids and a mask to logits [batch, seq, vocabulary].

    Both read the same tokens. The layers pass on the states of the encoder and those of the decoder
    in one tensor, [batch, seq, 2 * hidden]: the first layers change the former, and the other
    layers the latter.
    """

    INPUTS = ("tokens", "mask")

    def __init__(self, config: EncoderDecoderConfig, dtype: DType = DType.float32) -> None:
        self.config = config
        self.dtype = dtype
        self.embedding = Embedding(config.vocabulary, config.hidden, dtype=dtype)
        self.encoder_bias = RelativeBias(config, is_causal=False, dtype=dtype)
        self.decoder_bias = RelativeBias(config, is_causal=True, dtype=dtype)
        of_encoder = replace(config, causal=False)
        self.layers = LayerList[Any](
            [
                Block(of_encoder, layer, dtype) if is_first else ReadingBlock(config, layer, dtype)
                for layer, is_first in enumerate(config.in_encoder)
            ]
        )
        self.encoder_norm = make_norm(config, dtype)
        self.norm = make_norm(config, dtype)
        self.output = Linear(config.hidden, config.vocabulary, dtype=dtype)
        if config.tied:
            self.output.set_shared_weight("weight", self.embedding.weight)

    def begin(self, tokens: Value, mask: Value) -> tuple[Value, Beside]:
        """Return the tokens' vectors, twice, and three masks or biases of the attention scores.

        They are for the encoder, for the decoder, and for the cross attention of the decoder.
        """
        batch, seq = tokens.shape
        positions = ops.range(seq, device=tokens.device)
        is_token = (mask != 0).reshape((batch, 1, 1, seq))
        x = self.embedding(tokens, self.dtype)
        beside = (
            ops.where(is_token, self.encoder_bias(positions), -inf),
            self.decoder_bias(positions),
            is_token,
        )
        return ops.concat([x, x], axis=-1), beside

    def through(self, layer: Any, x: Value, beside: Beside) -> Value:
        """Return the states of encoder and decoder after a layer of one of them."""
        of_encoder, of_decoder, is_token = beside
        read, made = ops.split(x, [self.config.hidden] * 2, axis=-1)
        if isinstance(layer, ReadingBlock):
            made = layer(made, of_decoder, self.encoder_norm(read), is_token)
        else:
            read = layer(read, mask=of_encoder)
        return ops.concat([read, made], axis=-1)

    def end(self, x: Value) -> Value:
        """Return the logits of the token after each position."""
        logits = self.output(self.norm(x[..., self.config.hidden :]))
        return logits if self.config.logit_scale == 1 else logits * self.config.logit_scale


class ReadingBlock(Module):
    """A layer of a decoder that also reads the states of an encoder."""

    def __init__(self, config: EncoderDecoderConfig, layer: int, dtype: DType) -> None:
        def attention(*, causal: bool) -> Attention:
            return Attention(
                config.hidden,
                config.heads,
                kv_heads=config.count_kv_heads(layer),
                head_dim=at_layer(config, "head_dim", layer),
                causal=causal,
                scale=config.attention_scale,
                dtype=dtype,
            )

        self.attention_norm = make_norm(config, dtype)
        self.attention = attention(causal=True)
        self.cross_norm = make_norm(config, dtype)
        self.cross = attention(causal=False)
        self.mlp_norm = make_norm(config, dtype)
        self.mlp = make_mlp(config, layer, dtype)

    def __call__(self, x: Value, scores: Value, source: Value, is_token: Value) -> Value:
        """Return the input of the next layer, in the shape of `x`.

        `scores` are added to the attention scores. Cross attention reads the positions of `source`
        for which `is_token` is true.
        """
        x = x + self.attention(self.attention_norm(x), mask=scores)
        x = x + self.cross(self.cross_norm(x), mask=is_token, source=source)
        return x + self.mlp(self.mlp_norm(x))


class RelativeBias(Module):
    """A value for each head and bucket of distances, which is added to the attention scores.

    A causal decoder uses all buckets for the keys before a query; an encoder uses half of them for
    the keys after it. Source: Raffel et al., "Exploring the Limits of Transfer Learning" (2020), as
    in Mesh TensorFlow's `_relative_position_bucket`.
    """

    def __init__(
        self,
        config: EncoderConfig | EncoderDecoderConfig,
        *,
        is_causal: bool,
        dtype: DType,
    ) -> None:
        self.weight = Weight("weight", dtype, (config.buckets, config.heads))
        self.is_causal = is_causal
        self.buckets, self.farthest = config.buckets, config.farthest
        self.dtype = dtype

    def __call__(self, positions: Value) -> Value:
        """Return the bias of the attention scores, [1, heads, positions, positions]."""
        ahead = ops.unsqueeze(positions, 0) - ops.unsqueeze(positions, 1)
        found = ops.embedding(weight_as(self.weight, self.dtype), self._find_buckets(ahead))
        return ops.unsqueeze(found.transpose(1, 2).transpose(0, 1), 0)

    def _find_buckets(self, ahead: Value) -> Value:
        """Return the bucket of each distance, by how many positions a key is ahead of a query."""
        count = self.buckets if self.is_causal else self.buckets // 2
        distance = ops.maximum(-ahead, 0) if self.is_causal else ops.abs(ahead)
        exact = count // 2
        # In float32, as in transformers.
        times = ops.log(ops.maximum(distance, 1).cast(DType.float32) / exact)
        share = times / log(self.farthest / exact) * (count - exact)
        far = ops.minimum(share.cast(DType.int64) + exact, count - 1)
        found = ops.where(distance < exact, distance, far)
        return found if self.is_causal else found + ops.where(ahead > 0, count, 0)

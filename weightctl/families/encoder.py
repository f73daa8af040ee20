"""The configs of encoders, and of models with an encoder and a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from weightctl.families.decoder import DecoderConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(DecoderConfig):
    """The sizes of an encoder, and the blocks that it consists of.

    The fields are those of a decoder, with these differences. The output is the states of the last
    layer, or the values of a classifier head. A `sliding_window` counts the positions on both sides
    together.

    - `token_types`: the number of token types, each with an embedding, or 0.
    - `padding`: the id of the padding token.
    - `buckets`, `farthest`: if `buckets` is not 0, each head adds a value to a score, by the bucket
      of the distance, as in an `EncoderDecoderConfig`.
    - `labels`: the number of labels of the classifier head, or 0 without a head. The head is a
      projection, with a bias if `head_bias`, the `head_activation`, a norm if `head_norm`, and a
      projection to a value for each label.
    - `head_pooling`: whether the head reads the state of the first position or the mean of all.
    """

    token_types: int = 0
    padding: int = 0
    buckets: int = 0
    farthest: int = 128
    labels: int = 0
    head_activation: str = "tanh"
    head_bias: bool = True
    head_norm: bool = False
    head_pooling: Literal["first", "mean"] = "first"
    tied: bool = True
    causal: bool = False

    def window(self, layer: int) -> int | None:
        """Return how many positions on each side a position sees in a layer, including itself.

        None for full attention.
        """
        size = DecoderConfig.window(self, layer)
        return None if size is None else size // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderConfig(DecoderConfig):
    """The sizes of an encoder, and of a decoder that also reads the states of the encoder.

    The first `encoder_layers` of the `layers` are the encoder's. Positions are `relative`: each
    head adds a value to a score, by the bucket of the distance. Half of the `buckets` have one
    distance each, and the others ranges of distances up to `farthest`. The decoder's input begins
    with the `start_token`.
    """

    encoder_layers: int
    buckets: int = 32
    farthest: int = 128
    start_token: int | None = None
    position: Literal["rope", "learned", "alibi", "relative", "none"] = "relative"

    @property
    def in_encoder(self) -> tuple[bool, ...]:
        """Whether each layer belongs to the encoder."""
        return tuple(layer < self.encoder_layers for layer in range(self.layers))

    @property
    def in_decoder(self) -> tuple[bool, ...]:
        """Whether each layer belongs to the decoder."""
        return tuple(layer >= self.encoder_layers for layer in range(self.layers))

"""The specification of a model's blocks and sizes; one Module runs decoders, one encoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from weightctl.families.keys import Fields
    from weightctl.families.rope_scaling import RopeScaling

__all__ = ["DecoderConfig", "EncoderConfig", "EncoderDecoderConfig", "check_layers"]

# How messages call fields with a value for each layer.
_LISTED = {
    "windowed_layers": "attention types",
    "rotated_layers": "the use of RoPE",
    "sparse_layers": "the use of experts",
    "chunked_layers": "the use of chunks",
}

# Of what queries and keys are normed: each head alike, or all heads together; or each head after
# RoPE, without weights; or each head by a LayerNorm with weights of its own.
QkNorm: TypeAlias = Literal["head", "whole", "unit", "apart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The sizes of a decoder, and which blocks it is made of.

    A family gives the fields that all of its models have alike as `Family.blocks`, and others by
    its keys. A tuple has a value for each layer. A `tied` model has no output weight of its own.

    Norms: `norm` is their kind, `norm_bias` and `norm_weight` say what a LayerNorm has, and
    `norm_offset` is what the weights are stored less. Attention and MLP have a norm before
    (`pre_norms`) or after them (`post_norms`), or both; or, with `norms_after`, one that norms the
    sum of what they add and what they read. Where `attention_norms` is given, only those layers
    have the norm before attention. With `inner_norms`, what heads return is normed before the
    output projection, and the product of gate and up before the last one. With `parallel` both read
    the same input, by one norm if `shared_norm`. `embedding_norm` is after the embedding.

    Attention: `attention_bias` is that of queries, keys and values, which are one projection if
    `fused_qkv`. `qk_norm` norms queries and keys, before RoPE or after it (`qk_norm_after_rope`);
    `unit` norms only rotated layers, and `apart` is a LayerNorm. Scores are multiplied by
    `attention_scale`, or by `query_scalar ** -0.5`, and bounded by `attention_softcap`.
    `sliding_window` is how many positions back, itself included, a position sees: in the layers
    that `windowed_layers` says, in all where it is None. `query_clamp` bounds queries, keys and
    values. With `sinks`, each head has a score of its own that takes a share of the softmax and
    belongs to no key. Queries beyond the first `temperature_length` positions are multiplied, by as
    much as `temperature_scale` and `temperature_offset` say (`nn/temperature.py`), unless the scale
    is 0, and only in layers that are not rotated if `temperature_without_rope`. In
    `chunked_layers`, a position sees those of its chunk of `attention_chunk` positions alone. With
    `attention_gate`, what the heads return is multiplied by the sigmoid of a projection of what
    attention reads. If `latent_rank` is not 0, keys and values are computed from a latent vector of
    that size: `plain_dimensions` of each key, whose other dimensions are rotated. Queries are
    computed from a latent vector of size `query_rank`, unless that is 0. Values have
    `value_dimensions` per head, as many as keys if that is 0, and are multiplied by `value_scale`.

    Positions: by `rope`, `learned`, `alibi` or `relative` distances. `rope_dimensions` is how many
    values of each head are rotated; `rope_interleaved` says that neighbors are, as in most of GGUF,
    not each half's with the other's. Layers with a window may have a `local_rope_base`, and only
    `rotated_layers` are rotated where that is given. A checkpoint that `has_rope_factors` has as
    tensors what divides the frequencies: those for long contexts and those for short ones if
    `rope_factors_by_length`.

    MLP: plain if not `gated`; gate and up are one projection if `fused_gate_up`. `transposed` says
    that weights are `(in, out)`. The numbers of a learned activation are `xielu_alpha_n` and so on,
    for each layer, or tensors if `has_xielu_weights`. Mixtures have `experts` in place of the MLP,
    in `sparse_layers`; `router` is by what their shares follow, of the `experts_used` with the
    largest scores, to which a correction is added if `router_correction`. `expert_bias` is that of
    router and experts. Shares are those among themselves if `experts_normalized`, and multiplied by
    `experts_scale`; they multiply what experts return, or what they read if `shares_scale_inputs`.
    Of `expert_groups`, those in the `expert_groups_used` best can be chosen. A
    `shared_intermediate` wide MLP sees all positions beside them, by a gate of its own if
    `shared_gate`.

    Multipliers: the embedding's (`embedding_scale`, the root of the hidden size if
    `embedding_by_root`), that of what a block adds (`residual_scale`), and the logits', which are
    divided by `logit_divisor`, too, and bounded by `softcap`. The output has an `output_bias`.
    """

    vocabulary: int
    context: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int | tuple[int, ...]
    head_dim: int
    intermediate: int
    norm_epsilon: float
    activation: str = "silu"
    tied: bool = False

    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True
    norm_weight: bool = True
    norm_offset: float = 0.0
    pre_norms: bool = True
    attention_norms: tuple[bool, ...] | None = None
    post_norms: bool = False
    norms_after: bool = False
    inner_norms: bool = False
    parallel: bool = False
    shared_norm: bool = False
    embedding_norm: bool = False

    attention_bias: bool = False
    attention_output_bias: bool = False
    fused_qkv: bool = False
    qk_norm: QkNorm | None = None
    qk_norm_after_rope: bool = False
    query_scalar: int | None = None
    attention_scale: float | None = None
    attention_softcap: float | None = None
    sliding_window: int | None = None
    windowed_layers: tuple[bool, ...] | None = None
    query_clamp: float | None = None
    sinks: bool | tuple[bool, ...] = False
    value_scale: float = 1.0
    temperature_scale: float = 0.0
    temperature_length: int = 0
    temperature_offset: int = 0
    temperature_without_rope: bool = False
    attention_gate: bool = False
    attention_chunk: int | None = None
    chunked_layers: tuple[bool, ...] | None = None
    causal: bool = True
    latent_rank: int = 0
    query_rank: int = 0
    plain_dimensions: int = 0
    value_dimensions: int = 0

    position: Literal["rope", "learned", "alibi", "relative"] = "rope"
    alibi_bias: float = 8.0
    rope_base: float = 10000.0
    rope_dimensions: int = 0
    rope_scaling: RopeScaling | None = None
    rope_interleaved: bool = False
    has_rope_factors: bool = False
    rope_factors_by_length: bool = False
    local_rope_base: float | None = None
    rotated_layers: tuple[bool, ...] | None = None

    mlp_bias: bool = False
    gated: bool = True
    fused_gate_up: bool = False
    transposed: bool = False
    has_xielu_weights: bool = False
    xielu_alpha_n: tuple[float, ...] | float = ()
    xielu_alpha_p: tuple[float, ...] | float = ()
    xielu_beta: tuple[float, ...] | float = ()
    xielu_eps: tuple[float, ...] | float = ()
    experts: int = 0
    experts_used: int = 0
    expert_intermediate: int = 0
    sparse_layers: tuple[bool, ...] | None = None
    router: Literal["softmax", "sigmoid", "sparsemixer"] = "softmax"
    router_correction: bool = False
    expert_bias: bool = False
    experts_normalized: bool = True
    experts_scale: float = 1.0
    expert_groups: int = 1
    expert_groups_used: int = 1
    shared_intermediate: int = 0
    shared_gate: bool = False
    shares_scale_inputs: bool = False

    embedding_scale: float = 1.0
    embedding_by_root: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_divisor: float = 1.0
    output_bias: bool = False
    softcap: float | None = None

    def window(self, layer: int) -> int | None:
        """Return how many positions back those of a layer see; None, all."""
        windowed = self.windowed_layers
        return self.sliding_window if windowed is None or windowed[layer] else None

    def count_kv_heads(self, layer: int) -> int:
        """Return how many KV heads a layer has."""
        counts = self.kv_heads
        return counts if isinstance(counts, int) else counts[layer]

    def has_sinks(self, layer: int) -> bool:
        """Whether the heads of a layer have sinks."""
        return self.sinks if isinstance(self.sinks, bool) else self.sinks[layer]

    def chunk(self, layer: int) -> int | None:
        """Return how many positions the chunks of a layer have; None, there are none."""
        return self.attention_chunk if self.chunked_layers and self.chunked_layers[layer] else None

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts > 0 and (self.sparse_layers is None or self.sparse_layers[layer])

    def is_rotated(self, layer: int) -> bool:
        """Whether a layer's queries and keys are rotated."""
        return self.rotated_layers is None or self.rotated_layers[layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(DecoderConfig):
    """The sizes of an encoder, and which blocks it is made of, as those of a decoder.

    Besides words and positions, there may be an embedding of `token_types`. It has no output but
    the states of its last layer. `padding` is the token that fills batches up. A `sliding_window`
    is as wide as both sides of a position together. If there are `labels`, a head makes a number
    for each of them: by a projection, with a bias if `head_bias`, its `head_activation`, a norm if
    `head_norm`, and another projection. It reads the state of the first position, or the mean of
    all (`head_pooling`).
    """

    token_types: int = 0
    padding: int = 0
    labels: int = 0
    head_activation: str = "tanh"
    head_bias: bool = True
    head_norm: bool = False
    head_pooling: Literal["first", "mean"] = "first"
    tied: bool = True
    causal: bool = False

    def window(self, layer: int) -> int | None:
        """Return how many positions, itself included, those of a layer see on either side."""
        size = DecoderConfig.window(self, layer)
        return None if size is None else size // 2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderDecoderConfig(DecoderConfig):
    """The sizes of an encoder, and of a decoder that reads what the encoder makes.

    The first `encoder_layers` of the layers are the encoder's. Positions are `relative`: each head
    adds a number to a score, by the bucket of the distance. Of `buckets`, half are of one distance
    each, and the others of ranges of distances up to `farthest`. What the decoder makes begins
    after a `start_token`.
    """

    encoder_layers: int
    buckets: int = 32
    farthest: int = 128
    start_token: int | None = None
    position: Literal["rope", "learned", "alibi", "relative"] = "relative"

    @property
    def in_encoder(self) -> tuple[bool, ...]:
        """Whether each layer is of the encoder."""
        return tuple(layer < self.encoder_layers for layer in range(self.layers))

    @property
    def in_decoder(self) -> tuple[bool, ...]:
        """Whether each layer is of the decoder."""
        return tuple(layer >= self.encoder_layers for layer in range(self.layers))


def check_layers(fields: Fields) -> None:
    """Raise `ValueError` for fields with a value for each layer that have too few or too many."""
    from weightctl.text.untyped import is_sequence
    from weightctl.text.wording import pluralize

    for name, called in _LISTED.items():
        value = fields.get(name)
        if is_sequence(value) and len(value) != fields["layers"]:
            raise ValueError(
                f"the model has {pluralize(fields['layers'], 'layer')}, but the config states "
                f"{called} for {pluralize(len(value), 'layer')}"
            )

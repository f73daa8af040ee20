"""The configs of decoders and encoders: their sizes, and the blocks that they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from weightctl.families.keys import Fields
    from weightctl.families.rope_scaling import RopeScaling

__all__ = ["DecoderConfig", "EncoderConfig", "EncoderDecoderConfig", "check_layers"]

# The fields with a value for each layer, and how messages call them.
_LISTED = {
    "windowed_layers": "attention types",
    "rotated_layers": "the use of RoPE",
    "sparse_layers": "the use of experts",
    "chunked_layers": "the use of chunks",
    "attention_layers": "the use of attention",
    "convolution_layers": "the use of convolutions",
    "mlp_layers": "the use of an MLP",
}

# How queries and keys are normed. `head`: an RMSNorm of each head, with the same weights for all
# heads. `whole`: an RMSNorm over all heads together. `unit`: an RMSNorm of each head after RoPE,
# without weights, in layers with RoPE only. `apart`: a LayerNorm of each head, with weights for
# each.
QkNorm: TypeAlias = Literal["head", "whole", "unit", "apart"]

# Whether all layers have a property, or for each layer whether it has it.
LayerFlag: TypeAlias = "bool | tuple[bool, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """The sizes of a decoder, and the blocks that it consists of.

    Each field comes from the keys of the family, or from `Family.blocks` if all models of the
    family have the same value. A field with a tuple has a value for each layer.

    Sizes:

    - `vocabulary`, `context`, `hidden`, `layers`: as in `Config`.
    - `heads`, `kv_heads`: the numbers of query heads and KV heads.
    - `head_dim`: the number of elements of a query or key.
    - `intermediate`: the width of the MLP.
    - `tied`: whether the output uses the weight of the embedding.

    Parts of a layer, each True, False, or a value for each layer. The outputs of parts that read
    the same input are added.

    - `attention_layers`: the layers with attention.
    - `convolution_layers`: the layers with a short convolution, which reads `convolution_length`
      positions; with `convolution_bias`, its projections and the convolution have biases.
    - `mlp_layers`: the layers with an MLP or experts.

    Norms:

    - `norm`, `norm_epsilon`: the kind of norm, and the epsilon of all norms.
    - `norm_bias`, `norm_weight`: whether LayerNorms have a bias and a weight.
    - `norm_offset`: the value that norms add to their weights.
    - `pre_norms`: whether attention and MLP have a norm before them.
    - `attention_norms`: which layers have the norm before attention; None for all.
    - `post_norms`: whether the outputs of attention and MLP are normed before they are added.
    - `norms_after`: whether the sums after attention and after the MLP are normed.
    - `inner_norms`: whether there is an RMSNorm before the last projection of attention and of the
      MLP.
    - `parallel`: whether attention and MLP read the same input and their outputs are added
      together.
    - `shared_norm`: whether both read it through the same norm.
    - `embedding_norm`: whether there is a norm after the embedding.

    Attention in each layer:

    - `attention_bias`: whether queries, keys and values have a bias.
    - `attention_output_bias`: whether the output projection has a bias.
    - `fused_qkv`: whether one projection computes queries, keys and values.
    - `qk_norm`: how queries and keys are normed; `qk_norm_after_rope` states that it is after RoPE.
    - `attention_scale`: the factor of the scores, `head_dim ** -0.5` if None. If `query_scalar` is
      given, the factor is `query_scalar ** -0.5`.
    - `attention_softcap`: the bound of the scores.
    - `sliding_window`: how many positions a position sees, including itself.
    - `windowed_layers`: the layers with the window; None for all.
    - `query_clamp`: the bound of queries, keys and values.
    - `sinks`: whether each head has an additional score that belongs to no key.
    - `value_scale`: the factor of the values.
    - `values_normed`: whether there is an RMSNorm without weights over the values of each KV head.
    - `values_from_keys`: the layers whose values are the keys before their norm and RoPE.
    - `temperature_scale`, `temperature_length`, `temperature_offset`: the factor of queries far
      into a text (`nn/temperature.py`), if the scale is not 0; with `temperature_without_rope`,
      only in layers without RoPE.
    - `attention_gate`: whether the outputs of the heads are multiplied by the sigmoid of another
      projection of the input.
    - `attention_chunk`, `chunked_layers`: the number of positions per chunk, and the layers in
      which a position only sees its own chunk.
    - `causal`: whether a position only sees those before it.
    - `latent_rank`: the size of the latent vector that keys and values are computed from (MLA), or
      0.
    - `query_rank`: the size of the latent vector that queries are computed from, or 0.
    - `plain_dimensions`: with latent vectors, the elements of a query or key without RoPE.
    - `value_dimensions`: the number of elements of a value, `head_dim` if 0.

    Positions:

    - `position`: how positions are encoded; `alibi_bias` is the largest exponent of ALiBi's slopes.
    - `rope_base`, `rope_scaling`: the base of RoPE, and its scaling.
    - `rope_dimensions`: how many elements of each head are rotated.
    - `rope_interleaved`: whether the elements of a pair are neighbors, as usual in GGUF, instead of
      in different halves.
    - `local_rope_base`: another base, without scaling, for layers with a sliding window, and
      `local_rope_dimensions`: how many elements of their heads are rotated, if not as many.
    - `rotated_layers`: the layers with RoPE; None for all.
    - `has_rope_factors`: whether tensors divide the frequencies: one, or with
      `rope_factors_by_length` one for short contexts and one for long ones.

    MLP:

    - `activation`, `gated`, `mlp_bias`: the activation, and whether there is a gate and biases.
    - `fused_gate_up`: whether one projection computes gate and up.
    - `transposed`: whether the weights of attention and MLP are stored as (inputs, outputs).
    - `xielu_*`: the numbers of the activation xIELU; `has_xielu_weights` states that they are
      tensors.

    Mixture of experts, in place of the MLP:

    - `experts`, `experts_used`: the number of experts, and how many compute a position.
    - `expert_intermediate`, `expert_bias`: the width of an expert, and whether experts and router
      have biases.
    - `sparse_layers`: the layers with experts; None for all.
    - `router`, `router_correction`: how the routing weights of the experts follow from the router's
      values, and whether a tensor is added to the scores for the selection.
    - `experts_normalized`, `experts_scale`: whether the routing weights of the selected experts are
      divided by their sum, and the factor of these weights.
    - `expert_groups`, `expert_groups_used`: experts are selected from the best of these groups.
    - `shared_intermediate`, `shared_gate`: the width of the MLP that all positions also pass
      through, or 0, and whether it has a gate of its own.
    - `expert_scales`: whether a tensor multiplies the routing weights of the selected experts.
    - `shares_scale_inputs`: whether the routing weights multiply the inputs of the experts instead
      of the outputs.

    Other factors:

    - `embedding_scale`: the factor of the embedding, times `sqrt(hidden)` if `embedding_by_root`.
    - `residual_scale`: the factor of the outputs of attention and MLP.
    - `logit_scale`, `logit_divisor`, `softcap`: the factor, the divisor and the bound of the
      logits.
    - `output_bias`: whether the output has a bias.
    """

    vocabulary: int
    context: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int | tuple[int, ...]
    head_dim: int | tuple[int, ...]
    intermediate: int | tuple[int, ...]
    norm_epsilon: float
    activation: str = "silu"
    tied: bool = False

    attention_layers: LayerFlag = True
    convolution_layers: LayerFlag = False
    convolution_length: int = 0
    convolution_bias: bool = False
    mlp_layers: LayerFlag = True

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
    values_normed: bool = False
    values_from_keys: LayerFlag = False
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
    local_rope_dimensions: int | None = None
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
    expert_scales: bool = False
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
        """Return the size of the sliding window of a layer, None if it has full attention."""
        windowed = self.windowed_layers
        return self.sliding_window if windowed is None or windowed[layer] else None

    def count_kv_heads(self, layer: int) -> int:
        """Return the number of KV heads of a layer."""
        counts = self.kv_heads
        return counts if isinstance(counts, int) else counts[layer]

    def has_sinks(self, layer: int) -> bool:
        """Whether the heads of a layer have sinks."""
        return self.sinks if isinstance(self.sinks, bool) else self.sinks[layer]

    def chunk(self, layer: int) -> int | None:
        """Return the number of positions in the chunks of a layer, None if it has no chunks."""
        return self.attention_chunk if self.chunked_layers and self.chunked_layers[layer] else None

    def is_sparse(self, layer: int) -> bool:
        """Whether a layer has experts."""
        return self.experts > 0 and (self.sparse_layers is None or self.sparse_layers[layer])

    def is_rotated(self, layer: int) -> bool:
        """Whether a layer has RoPE."""
        return self.rotated_layers is None or self.rotated_layers[layer]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig(DecoderConfig):
    """The sizes of an encoder, and the blocks that it consists of.

    The fields are those of a decoder, with these differences. The output is the states of the last
    layer, or the values of a classifier head. A `sliding_window` counts the positions on both sides
    together.

    - `token_types`: the number of token types, each with an embedding, or 0.
    - `padding`: the id of the padding token.
    - `labels`: the number of labels of the classifier head, or 0 without a head. The head is a
      projection, with a bias if `head_bias`, the `head_activation`, a norm if `head_norm`, and a
      projection to a value for each label.
    - `head_pooling`: whether the head reads the state of the first position or the mean of all.
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
    position: Literal["rope", "learned", "alibi", "relative"] = "relative"

    @property
    def in_encoder(self) -> tuple[bool, ...]:
        """Whether each layer belongs to the encoder."""
        return tuple(layer < self.encoder_layers for layer in range(self.layers))

    @property
    def in_decoder(self) -> tuple[bool, ...]:
        """Whether each layer belongs to the decoder."""
        return tuple(layer >= self.encoder_layers for layer in range(self.layers))


def check_layers(fields: Fields) -> None:
    """Raise `ValueError` if a field with a value for each layer has too few or too many values."""
    from weightctl.text.untyped import is_sequence
    from weightctl.text.wording import pluralize

    for name, called in _LISTED.items():
        value = fields.get(name)
        if is_sequence(value) and len(value) != fields["layers"]:
            raise ValueError(
                f"the model has {pluralize(fields['layers'], 'layer')}, but the config states "
                f"{called} for {pluralize(len(value), 'layer')}"
            )

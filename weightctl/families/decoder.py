"""The config of decoders: their sizes, and the blocks that they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from weightctl.families.config_keys import Fields
    from weightctl.families.rope_factors import RopeScaling

# The fields with a value for each layer, and how messages call them.
_LISTED = {
    "windowed_layers": "attention types",
    "rotated_layers": "the use of RoPE",
    "sparse_layers": "the use of experts",
    "chunked_layers": "the use of chunks",
    "attention_layers": "the use of attention",
    "convolution_layers": "the use of convolutions",
    "delta_layers": "the use of gated delta nets",
    "lru_layers": "the use of a linear recurrent unit",
    "mlp_layers": "the use of an MLP",
    "indexer_layers": "the use of an indexer",
    "ssm_layers": "the use of a state space model",
    "layer_heads": "the number of heads",
    "kv_heads": "the number of KV heads",
    "intermediate": "the width of the MLP",
    "expert_limits": "the limit of experts",
    "mlp_limits": "the limit of the MLP",
}

# How queries and keys are normed. `head`: an RMSNorm of each head, with the same weights for all
# heads. `whole`: an RMSNorm over all heads together. `unit`: an RMSNorm of each head after RoPE,
# without weights, in layers with RoPE only. `apart`: a LayerNorm of each head, with weights for
# each.
QkNorm: TypeAlias = Literal["head", "whole", "unit", "apart", "apart_rms"]

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
    - `delta_layers`: the layers with a gated delta net, whose convolution also reads
      `convolution_length` positions. It has `delta_heads` heads with values of `delta_value_size`
      elements, and `delta_key_heads` key heads of `delta_key_size`. With `delta_by_element`, it is
      Kimi delta attention, in which a state fades by each element of a key: with a projection each
      for the decay and the gate unless it is `delta_low_rank`, and by no more than `delta_bound`,
      a logarithm, if that is not None.
    - `lru_layers`: the layers with a linear recurrent unit (RG-LRU), which has `lru_width` channels
      in as many blocks as there are heads, and a convolution over `convolution_length` positions.
    - `mlp_layers`: the layers with an MLP or experts.
    - `ssm_layers`: the layers with a state space model (SSM).

    Norms:

    - `norm`, `norm_epsilon`: the kind of norm, and the epsilon of all norms.
    - `norm_bias`, `norm_weight`: whether LayerNorms have a bias and a weight.
    - `norm_offset`: the value that norms add to their weights.
    - `pre_norms`: whether attention and MLP have a norm before them.
    - `attention_norms`: which layers have the norm before attention; None for all.
    - `post_norms`: whether the outputs of attention and MLP are normed before they are added;
      `post_attention_offset` and `post_mlp_offset` are `norm_offset` for these, if not None.
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
    - `attention_scales`: the factors of what attention reads, of its keys, and of its outputs.
    - `values_normed`: whether there is an RMSNorm without weights over the values of each KV head.
    - `values_from_keys`: the layers whose values are the keys before their norm and RoPE.
    - `temperature_scale`, `temperature_length`, `temperature_offset`: the factor of queries far
      into a text (`nn/temperature.py`), if the scale is not 0; with `temperature_without_rope`,
      only in layers without RoPE.
    - `attention_gate`: whether the outputs of the heads are multiplied by the sigmoid of another
      projection of the input, or the softplus if `gate_softplus`. The projection has a number for
      each head if `gate_by_head`, else for each element.
    - `layer_heads`: the number of query heads of each layer, if it is not `heads` in all.
    - `attention_chunk`, `chunked_layers`: the number of positions per chunk, and the layers in
      which a position only sees its own chunk.
    - `causal`: whether a position only sees those before it.
    - `latent_rank`: the size of the latent vector that keys and values are computed from (MLA), or
      0.
    - `query_rank`: the size of the latent vector that queries are computed from, or 0.
    - `plain_dimensions`: with latent vectors, the elements of a query or key without RoPE.
    - `indexer_heads`, `indexer_size`, `indexer_used`: with latent vectors, the sizes of the indexer
      that selects the keys which a query sees (DSA); 0 without one. `indexer_layers` are the layers
      that have an indexer; the others use the selection of the last layer before them that has one.
      `indexer_interleaved` is `rope_interleaved` for the indexer, `indexer_rotates_last` states
      that the last elements of its heads are rotated instead of the first, and `indexer_epsilon` is
      the epsilon of its norm. Without latent vectors, each head
      of the indexer selects `indexer_used` blocks of `indexer_block` keys for a group of heads;
      the last `indexer_local` blocks are among them.
    - `value_dimensions`: the number of elements of a value, `head_dim` if 0.

    State space models:

    - `ssm_version`: 1 for Mamba, in which each channel has its own step, and a rate for each state;
      2 for Mamba-2, in which the channels of a head have the same step and rate; `plamo2` for
      heads as in Mamba-2 whose steps, B and C are computed as in Mamba, with norms.
    - `ssm_inner`, `ssm_state`: the number of channels, and that of the states of a channel.
    - `ssm_heads`, `ssm_groups`: the numbers of heads, and of groups of heads that share the
      matrices B and C (Mamba-2).
    - `ssm_rank`: the size of the vector that steps are computed from (Mamba).
    - `ssm_length`: how many positions its convolution reads.
    - `ssm_bias`, `ssm_kernel_bias`: whether the projections and the convolution have a bias.
    - `ssm_scales`: the factors of what it reads, of the five parts of its projection, and of its
      outputs (Mamba-2); empty without factors.
    - `ssm_norm`: whether the channels of each group are normed (Mamba-2).
    - `ssm_inner_norms`, `ssm_inner_epsilon`: whether that vector, B and C have an RMSNorm, with
      weights or without, and its epsilon (Mamba).

    Positions:

    - `position`: how positions are encoded; `alibi_bias` is the largest exponent of ALiBi's slopes.
      A table of learned positions begins with `position_offset` rows that are never looked up.
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
    - `mlp_output_bias`: whether the last projection has a bias, if that differs; only with a gate.
    - `mlp_scales`: the factors of what the activation reads, and of the outputs.
    - `fused_gate_up`: whether one projection computes gate and up.
    - `transposed`: whether the weights of attention and MLP are stored as (inputs, outputs).
    - `mlp_limits`: what gate and up are at most in the MLP and in the MLP beside experts, and up is
      at least its negative; 0 without a limit. With `limits_activated`, it is the activation of the
      gate that is limited.
    - `xielu_*`: the numbers of the activation xIELU; `has_xielu_weights` states that they are
      tensors.

    Mixture of experts, in place of the MLP:

    - `experts`, `experts_used`: the number of experts, and how many compute a position.
    - `expert_intermediate`, `expert_bias`: the width of an expert, and whether experts and router
      have biases.
    - `expert_limits`: what `mlp_limits` is for experts.
    - `expert_latent`: the size of the latent vector that experts read and return; None if they
      read the hidden state.
    - `sparse_layers`: the layers with experts; None for all.
    - `router`, `router_correction`: how the routing weights of the experts follow from the router's
      values, and whether a tensor is added to the scores for the selection.
    - `experts_normalized`, `experts_scale`: whether the routing weights of the selected experts are
      divided by their sum, and the factor of these weights.
    - `expert_groups`, `expert_groups_used`: experts are selected from the best of these groups.
    - `shared_intermediate`, `shared_gate`: the width of the MLP that all positions also pass
      through, or 0, and whether it has a gate of its own. `shared_scale` is the factor of its
      outputs.
    - `expert_scales`: whether a tensor multiplies the routing weights of the selected experts.
    - `shares_scale_inputs`: whether the routing weights multiply the inputs of the experts instead
      of the outputs.

    Other factors:

    - `embedding_scale`: the factor of the embedding, times `sqrt(hidden)` if `embedding_by_root`.
    - `residual_scale`: the factor of the outputs of attention and MLP.
    - `logit_scale`, `logit_divisor`, `softcap`: the factor, the divisor and the bound of the
      logits.
    - `output_bias`: whether the output has a bias.
    - `loops`: how many times all layers are passed. Our modules pass them once.

    Multi-token prediction (MTP), for which layers follow those of the model:

    - `mtp_layers`: the number of these layers. Fields with a value for each layer include them.
    - `mtp_embedding`, `mtp_norm`, `mtp_output`: whether these layers have an embedding, a norm and
      an output of their own.
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
    delta_layers: LayerFlag = False
    delta_heads: int = 0
    delta_key_heads: int = 0
    delta_key_size: int = 0
    delta_value_size: int = 0
    delta_by_element: bool = False
    delta_low_rank: bool = True
    delta_bound: float | None = None
    lru_layers: LayerFlag = False
    lru_width: int = 0
    mlp_layers: LayerFlag = True
    ssm_layers: LayerFlag = False

    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = True
    norm_weight: bool = True
    norm_offset: float = 0.0
    pre_norms: bool = True
    attention_norms: tuple[bool, ...] | None = None
    post_norms: bool = False
    post_attention_offset: float | None = None
    post_mlp_offset: float | None = None
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
    attention_scales: tuple[float, float, float] = (1.0, 1.0, 1.0)
    values_normed: bool = False
    values_from_keys: LayerFlag = False
    temperature_scale: float = 0.0
    temperature_length: int = 0
    temperature_offset: int = 0
    temperature_without_rope: bool = False
    attention_gate: bool = False
    gate_by_head: bool = False
    gate_softplus: bool = False
    layer_heads: tuple[int, ...] | None = None
    attention_chunk: int | None = None
    chunked_layers: tuple[bool, ...] | None = None
    causal: bool = True
    latent_rank: int = 0
    query_rank: int = 0
    plain_dimensions: int = 0
    value_dimensions: int = 0
    indexer_heads: int = 0
    indexer_size: int = 0
    indexer_used: int = 0
    indexer_interleaved: bool = False
    indexer_rotates_last: bool = False
    indexer_epsilon: float = 1e-6
    indexer_block: int = 0
    indexer_local: int = 0
    indexer_layers: LayerFlag = True

    ssm_version: Literal[1, 2, "plamo2"] = 2
    ssm_inner: int = 0
    ssm_state: int = 0
    ssm_heads: int = 1
    ssm_groups: int = 1
    ssm_rank: int = 0
    ssm_length: int = 0
    ssm_bias: bool = False
    ssm_kernel_bias: bool = True
    ssm_scales: tuple[float, ...] = ()
    ssm_norm: bool = True
    ssm_inner_norms: Literal["weighted", "unweighted"] | None = None
    ssm_inner_epsilon: float = 1e-6

    position: Literal["rope", "learned", "alibi", "relative", "none"] = "rope"
    alibi_bias: float = 8.0
    position_offset: int = 0
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
    mlp_output_bias: bool | None = None
    gated: bool = True
    mlp_scales: tuple[float, float] = (1.0, 1.0)
    fused_gate_up: bool = False
    transposed: bool = False
    mlp_limits: tuple[float, ...] | float = 0.0
    limits_activated: bool = False
    has_xielu_weights: bool = False
    xielu_alpha_n: tuple[float, ...] | float = ()
    xielu_alpha_p: tuple[float, ...] | float = ()
    xielu_beta: tuple[float, ...] | float = ()
    xielu_eps: tuple[float, ...] | float = ()
    experts: int = 0
    experts_used: int = 0
    expert_intermediate: int = 0
    expert_limits: tuple[float, ...] | float = 0.0
    expert_latent: int | None = None
    sparse_layers: tuple[bool, ...] | None = None
    router: Literal["softmax", "sigmoid", "sparsemixer", "sqrtsoftplus"] = "softmax"
    router_correction: bool = False
    expert_bias: bool = False
    experts_normalized: bool = True
    experts_scale: float = 1.0
    expert_scales: bool = False
    expert_groups: int = 1
    expert_groups_used: int = 1
    shared_intermediate: int = 0
    shared_gate: bool = False
    shared_scale: float = 1.0
    shares_scale_inputs: bool = False

    embedding_scale: float = 1.0
    embedding_by_root: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_divisor: float = 1.0
    output_bias: bool = False
    loops: int = 1
    softcap: float | None = None

    mtp_layers: int = 0
    mtp_embedding: bool = False
    mtp_norm: bool = False
    mtp_output: bool = False

    @property
    def in_mtp(self) -> tuple[bool, ...]:
        """Whether each layer is for multi-token prediction."""
        return tuple(number >= self.layers for number in range(self.layers + self.mtp_layers))

    @property
    def expert_inputs(self) -> int:
        """The number of elements that an expert reads and returns."""
        return self.expert_latent or self.hidden

    @property
    def indexer_queries(self) -> int:
        """The number of elements of the indexer's queries."""
        return self.indexer_heads * self.indexer_size

    @property
    def position_rows(self) -> int:
        """The number of rows of the table of learned positions."""
        return self.context + self.position_offset

    @property
    def factor_pairs(self) -> int:
        """The number of pairs for which tensors have divisors of frequencies."""
        return max(self.rope_dimensions, self.local_rope_dimensions or 0) // 2

    @property
    def lru_size(self) -> int:
        """The number of channels in a block of a linear recurrent unit."""
        return self.lru_width // self.heads

    def window(self, layer: int) -> int | None:
        """Return the size of the sliding window of a layer, None if it has full attention."""
        windowed = self.windowed_layers
        return self.sliding_window if windowed is None or windowed[layer] else None

    def count_heads(self, layer: int) -> int:
        """Return the number of query heads of a layer."""
        return self.heads if self.layer_heads is None else self.layer_heads[layer]

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
        return self.experts > 0 and (self.sparse_layers is None or self.sparse_layers[layer])

    def is_rotated(self, layer: int) -> bool:
        return self.rotated_layers is None or self.rotated_layers[layer]


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

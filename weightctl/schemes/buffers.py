"""Tensors that are not trained weights: caches, masks, statistics, the state of optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weightctl.weights.info import TensorInfo

# Names of tensors that models create when they are built, or update in training without an
# optimizer.
_BUFFERS = frozenset({
    "inv_freq", "original_inv_freq", "inv_timescales", "cos_cached", "sin_cached",
    "cos_sin_cache", "freqs_cis", "freqs_cos", "freqs_sin", "_float_tensor",
    "mask", "attn_mask", "attention_mask", "causal_mask", "masked_bias",
    "position_ids", "token_type_ids", "relative_position_index", "relative_coords_table",
    "running_mean", "running_var", "num_batches_tracked",
    "betas", "alphas_cumprod", "alphas_cumprod_prev", "sqrt_alphas_cumprod",
    "sqrt_one_minus_alphas_cumprod", "log_one_minus_alphas_cumprod", "sqrt_recip_alphas_cumprod",
    "sqrt_recipm1_alphas_cumprod", "posterior_variance", "posterior_log_variance_clipped",
    "posterior_mean_coef1", "posterior_mean_coef2",
})  # fmt: skip
_GGUF_BUFFERS = frozenset({
    "rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight",
})  # fmt: skip
# Names of the tensors that torch's optimizers store for each parameter (`state` of `state_dict()`).
_OPTIMIZER = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg",
    "grad_avg", "acc_delta", "mu_product", "row_var", "col_var", "variance", "step", "sum",
})  # fmt: skip
# Endings of the names of scales of a quantized model's activations and cache.
_ACTIVATION_SCALES = (
    ".input_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale", ".kv_scale",
    ".prob_scale", ".input_zero_point", ".output_zero_point", ".k_zero_point", ".v_zero_point",
    ".input_global_scale", ".k_global_scale", ".v_global_scale", ".activation_scale",
    ".prob_output_scale", ".softmax_scale_quant",
)  # fmt: skip
# The maximum size of a scale of activations: one element for each channel of a cache.
_MOST_CHANNELS = 1 << 14
_STATE = ("state.", "optimizer.", "optim.")
_FREQUENCIES = ("rope.freqs", "rotary_emb.freqs")


def is_optimizer_state(info: TensorInfo) -> bool:
    """Whether a tensor is the state of an optimizer, such as the `exp_avg` of AdamW."""
    name = info.name
    return name.rpartition(".")[2] in _OPTIMIZER and (name.startswith(_STATE) or ".state." in name)


def is_buffer(info: TensorInfo) -> bool:
    """Whether a tensor is not a trained weight: a cache, mask, schedule, statistic, or the like.

    The state of an optimizer and the running statistics of batch norm are included. A model needs
    the latter, but no optimizer trains them, and published parameter counts do not include them.
    """
    name = info.name
    if name.endswith(".weight"):
        return name in _GGUF_BUFFERS
    last = name.rpartition(".")[2]
    if last == "bias":
        # GPT-2's causal mask has the name of an attention bias.
        size = info.shape[-1] if len(info.shape) == 4 else 0
        return info.shape == (1, 1, size, size) and name.endswith(("attn.bias", "attention.bias"))
    if last in _OPTIMIZER:
        return is_optimizer_state(info)
    return last in _BUFFERS or (last == "freqs" and name.endswith(_FREQUENCIES))


def is_activation_scale(info: TensorInfo) -> bool:
    """Whether a tensor of a quantized model scales activations or a cache, and not a weight."""
    return info.name.endswith(_ACTIVATION_SCALES) and info.size <= _MOST_CHANNELS

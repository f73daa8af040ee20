"""Faults of each kind of block: what is done to a GGUF file, and the cause that is to be named.

Each is a mistake of a tool in one tensor or key of a model that is sound otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from compressed_faults import COMPRESSED_KINDS
from faults import of
from mixer_faults import MIXER_KINDS
from part_faults import (
    BlockFault,
    add_one,
    change_key,
    change_layer_key,
    change_part,
    drop_part,
    exchange_parts,
    negate_part,
    opposite,
    swap_heads,
    times,
    zero_part,
)
from state_space_faults import STATE_SPACE_KINDS
from tensor_faults import changed, swapped_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from fault_files import Files

    Array = np.ndarray[Any, Any]
    Hurt = Callable[[Files], tuple[str, ...]]

__all__ = ["KINDS"]


def _rope_rows(part: str) -> BlockFault:
    def hurt(files: Files) -> tuple[str, ...]:
        heads = files.ours.heads if part == "q" else files.ours.kv_heads
        module = of(f"attention.{part}.weight")

        def halve(rows: Array) -> Array:
            split = rows.reshape(heads, -1, 2, rows.shape[-1])
            return split.swapaxes(1, 2).reshape(rows.shape)

        return changed(module, halve)(files)

    return BlockFault(hurt, "rope_rows")


_EXPERT = "mlp.experts.1."


def _stacked(part: str, cause: str | None, change: Callable[[Array], Array]) -> BlockFault:
    """Return the fault that changes the tensor with all experts of a layer."""
    return change_part(f"{_EXPERT}{part}", cause, change)


def _rows_permuted(experts: Array) -> Array:
    made = experts.copy()
    made[1] = made[1][np.random.default_rng(3).permutation(made.shape[1])]
    return made


def _experts_swapped(experts: Array) -> Array:
    return swapped_rows(experts, 0, 1, 1)


def _expert_copied(experts: Array) -> Array:
    made = experts.copy()
    made[1] = made[0]
    return made


def _turned(array: Array) -> Array:
    """Lay out each matrix of a stack by its other side, in the same shape."""
    return np.ascontiguousarray(array.swapaxes(-1, -2)).reshape(array.shape)


def _rolled(rows: Array) -> Array:
    return np.roll(rows, 1, 0)


def _rolled_far(rows: Array) -> Array:
    return np.roll(rows, 3, 0)


_DENSE = {
    "two heads swapped": swap_heads("q", "heads"),
    "norm with 1 added": add_one("mlp_norm.weight"),
    "gate and up swapped": exchange_parts(
        "mlp.gate.weight", "mlp.up.weight", "gate_and_up_swapped"
    ),
    "keys in the other order of RoPE": _rope_rows("k"),
    "RoPE base": change_key("rope.freq_base", times(10)),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(100)),
    "output transposed": change_part("attention.o.weight", "transposed", lambda rows: rows.T),
}
_SOFTMAX = {
    "rows of an expert permuted": _stacked("up.weight", "permuted", _rows_permuted),
    "experts in another order": _stacked("down.weight", "expert_order", _experts_swapped),
    "an expert copied": _stacked("gate.weight", "expert_copied", _expert_copied),
    "rows of the router swapped": change_part(
        "mlp.router.weight", "permuted", lambda rows: swapped_rows(rows, 0, 2, 1)
    ),
    "experts used": change_key("expert_used_count", lambda count: count - 1),
    "gate of the shared expert zero": zero_part("mlp.shared_gate.weight"),
    "shared gate and up swapped": exchange_parts(
        "mlp.shared.gate.weight", "mlp.shared.up.weight", "gate_and_up_swapped"
    ),
}
_SIGMOID = {
    "correction missing": drop_part("mlp.correction.weight", "bias_dropped"),
    "correction zero": zero_part("mlp.correction.weight"),
    "correction negated": negate_part("mlp.correction.weight"),
    "groups used": change_key("expert_group_used_count", lambda count: count + 1),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
    "shares not normalized": change_key("expert_weights_norm", opposite),
    "rows of an expert permuted": _stacked("gate.weight", "permuted", _rows_permuted),
}
_LATENT = {
    "keys of heads transposed": change_part("attention.k_b.weight", None, _turned),
    "values of two heads swapped": change_part(
        "attention.v_b.weight", None, lambda heads: swapped_rows(heads, 0, 1, 1)
    ),
    "norm of the latent vector with 1 added": add_one("attention.kv_a_norm.weight"),
    "norm of the queries' vector zero": zero_part("attention.q_a_norm.weight"),
    "rows of the latent vector rolled": change_part("attention.kv_a.weight", "rolled", _rolled_far),
    "RoPE base": change_key("rope.freq_base", times(10)),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
}
_SINKS = {
    "sinks negated": negate_part("attention.sinks.weight"),
    "sinks zero": zero_part("attention.sinks.weight"),
    "sinks missing": drop_part("attention.sinks.weight"),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "gate and up of experts swapped": exchange_parts(
        f"{_EXPERT}gate.weight", f"{_EXPERT}up.weight", "gate_and_up_swapped"
    ),
    "biases of experts zero": zero_part(f"{_EXPERT}down.bias"),
    "YaRN's factor": change_key("rope.scaling.factor", times(2)),
}
_WINDOWS = {
    "layers with a window": change_key(
        "attention.sliding_window_pattern", lambda period: period - 1
    ),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "RoPE base of layers with a window": change_key("rope.freq_base_swa", times(5)),
    "RoPE base of the others": change_key("rope.freq_base", times(0.1)),
    "norm of queries with 1 added": add_one("attention.q_norm.weight"),
    "norms swapped": exchange_parts(
        "post_attention_norm.weight", "post_mlp_norm.weight", "norms_exchanged"
    ),
    "value heads swapped": swap_heads("v", "kv_heads"),
}
_ENCODER = {
    "positions one too far": change_part("position_embedding.weight", "shifted", _rolled),
    "token types zero": zero_part("token_type_embedding.weight"),
    "norms swapped": exchange_parts("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "two heads swapped": swap_heads("v", "heads"),
    "output transposed": change_part("attention.o.weight", "transposed", lambda rows: rows.T),
    "epsilon": change_key("attention.layer_norm_epsilon", times(1e6)),
    "query and key swapped": exchange_parts(
        "attention.q.weight", "attention.k.weight", "query_and_key_swapped"
    ),
}
_PARALLEL = {
    "one by one": change_key("use_parallel_residual", opposite),
    "rotated dimensions": change_key("rope.dimension_count", lambda size: size // 2),
    "parts of the projection in another order": change_part(
        "attention.qkv.weight", "key_and_value_swapped",
        lambda rows: np.concatenate([rows[: len(rows) // 3], rows[2 * len(rows) // 3 :],
                                     rows[len(rows) // 3 : 2 * len(rows) // 3]]),
    ),
    "norms swapped": exchange_parts("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "norm with 1 added": add_one("attention_norm.weight"),
    "bias zero": zero_part("attention.qkv.bias"),
    "RoPE base": change_key("rope.freq_base", times(10)),
}  # fmt: skip
_MULTIPLIERS = {
    "embedding": change_key("embedding_scale", times(2)),
    "residual": change_key("residual_scale", times(2)),
    "attention": change_key("attention.scale", times(2)),
    "logits": change_key("logit_scale", times(2)),
    "embedding that was multiplied": change_part(
        "embedding.weight", "scaled", lambda rows: rows * 12
    ),
    "queries that were multiplied": change_part(
        "attention.q.weight", "scaled", lambda rows: rows * 2
    ),
}
_NORMS_APART = {
    "norm of queries with 1 added": add_one("attention.q_norm.weight"),
    "norm of keys zero": zero_part("attention.k_norm.weight"),
    "norm of queries negated": negate_part("attention.q_norm.weight"),
    "norms of two heads swapped": change_part(
        "attention.q_norm.weight", "permuted", lambda heads: swapped_rows(heads, 0, 1, 1)
    ),
    "norm of keys missing": drop_part("attention.k_norm.weight"),
    "logits": change_key("logit_scale", times(2)),
    "two heads swapped": swap_heads("q", "heads"),
}
_NORMS_AFTER = {
    "norms swapped": exchange_parts(
        "post_attention_norm.weight", "post_mlp_norm.weight", "norms_exchanged"
    ),
    "norm of all queries with 1 added": add_one("attention.q_norm.weight"),
    "norm of all keys zero": zero_part("attention.k_norm.weight"),
    "norm of all queries negated": negate_part("attention.q_norm.weight"),
    "norm missing": drop_part("post_mlp_norm.weight"),
    "two heads swapped": swap_heads("q", "heads"),
    "epsilon": change_key("attention.layer_norm_rms_epsilon", times(1e4)),
}
_INNER_NORMS = {
    "norm of attention's output with 1 added": add_one("attention.inner_norm.weight"),
    "norm of the MLP's product zero": zero_part("mlp.inner_norm.weight"),
    "norm of the MLP's product negated": negate_part("mlp.inner_norm.weight"),
    "norm missing": drop_part("attention.inner_norm.weight"),
    "gate and up swapped": exchange_parts(
        "mlp.gate.weight", "mlp.up.weight", "gate_and_up_swapped"
    ),
    "norms swapped": exchange_parts("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "value heads swapped": swap_heads("v", "kv_heads"),
}
_OUTPUT_GATE = {
    "gate of attention zero": zero_part("attention.gate.weight"),
    "gate of attention negated": negate_part("attention.gate.weight"),
    "gate of attention missing": drop_part("attention.gate.weight"),
    "gate of attention transposed": change_part(
        "attention.gate.weight", "transposed", lambda rows: rows.T
    ),
    "norm of keys with 1 added": add_one("attention.k_norm.weight"),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
}
_CHUNKED = {
    "keys in the other order of RoPE": _rope_rows("k"),
    "experts in another order": _stacked("down.weight", "expert_order", _experts_swapped),
    "an expert copied": _stacked("up.weight", "expert_copied", _expert_copied),
    "rows of the router swapped": _SOFTMAX["rows of the router swapped"],
    "shared gate and up swapped": _SOFTMAX["shared gate and up swapped"],
    "experts used": change_key("expert_used_count", lambda count: count - 1),
    "RoPE base": change_key("rope.freq_base", times(10)),
}
_XIELU = {
    "slopes above 0": change_layer_key("xielu.alpha_p", 0.5),
    "slopes below 0": change_layer_key("xielu.alpha_n", 0.5),
    "linear part": change_layer_key("xielu.beta", 0.5),
    "norm of queries with 1 added": add_one("attention.q_norm.weight"),
    "up zero": zero_part("mlp.up.weight"),
    "output transposed": change_part("attention.o.weight", "transposed", lambda rows: rows.T),
    "two heads swapped": swap_heads("v", "kv_heads"),
}
_DECODER = 3
_ENCODER_DECODER = {
    "distances of the decoder one too far": change_part("decoder_bias.weight", "shifted", _rolled),
    "distances of the encoder zero": zero_part("encoder_bias.weight"),
    "distances of the encoder negated": negate_part("encoder_bias.weight"),
    "query and key of cross-attention swapped": BlockFault(
        lambda files: files.exchange(
            of("cross.q.weight", _DECODER), of("cross.k.weight", _DECODER)
        ),
        "query_and_key_swapped",
    ),
    "norm of cross-attention with 1 added": BlockFault(
        changed(of("cross_norm.weight", _DECODER), lambda weight: weight + 1), "norm_offset"
    ),
    "cross-attention zero": BlockFault(
        changed(of("cross.o.weight", _DECODER), np.zeros_like), "zeroed"
    ),
    "gate and up swapped": exchange_parts(
        "mlp.gate.weight", "mlp.up.weight", "gate_and_up_swapped"
    ),
    "first token of the decoder": change_key("decoder_start_token_id", lambda token: token + 5),
}
_ALIBI = {
    "slopes": change_key("attention.max_alibi_bias", times(2)),
    "norm with 1 added": add_one("attention_norm.weight"),
    "parts of the projection in another order": _PARALLEL[
        "parts of the projection in another order"
    ],
    "norms swapped": exchange_parts("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "output transposed": change_part("attention.o.weight", "transposed", lambda rows: rows.T),
    "up zero": zero_part("mlp.up.weight"),
}
_LEARNED = {
    "positions one too far": change_part("position_embedding.weight", "shifted", _rolled),
    "positions zero": zero_part("position_embedding.weight"),
    "bias zero": zero_part("attention.qkv.bias"),
    "bias of the norm negated": negate_part("mlp_norm.bias"),
    "output transposed": change_part("attention.o.weight", "transposed", lambda rows: rows.T),
    "epsilon": change_key("attention.layer_norm_epsilon", times(1e4)),
}
_LAYER_INPUTS = {
    "embeddings of layers zero": zero_part("layer_inputs.embedding.weight"),
    "embeddings of layers one token too far": change_part(
        "layer_inputs.embedding.weight", "shifted", _rolled
    ),
    "norm of layers' embeddings with 1 added": add_one("layer_inputs.norm.weight"),
    "gate of a layer's embedding negated": negate_part("layer_input.gate.weight"),
    "norm of a layer's input zero": zero_part("layer_input.norm.weight"),
    "scale of a layer zero": zero_part("scale.weight"),
}
_SHARED_KEYS = {
    "shared keys zero": BlockFault(changed(of("attention.k.weight", 3), np.zeros_like), "zeroed"),
    "shared values negated": BlockFault(
        changed(of("attention.v.weight", 3), np.negative), "scaled"
    ),
    "norm of shared keys with 1 added": BlockFault(
        changed(of("attention.k_norm.weight", 3), lambda weight: weight + 1), "norm_offset"
    ),
    "queries that read shared keys negated": BlockFault(
        changed(of("attention.q.weight", 5), np.negative), "scaled"
    ),
    "window": change_key("attention.sliding_window", lambda size: size // 2),
    "RoPE base of layers with a window": change_key("rope.freq_base_swa", times(5)),
}
_STREAMS = {
    "coefficients of the prediction zero": zero_part("altup.prediction.weight"),
    "coefficients of the correction negated": negate_part("altup.correction.weight"),
    "norm of the router with 1 added": add_one("altup.norm.weight"),
    "rows of the router swapped": change_part(
        "altup.router.weight", "permuted", lambda rows: swapped_rows(rows, 0, 2, 1)
    ),
    "scale of the corrected stream zero": zero_part("corrected_scale.weight"),
    "projections of Laurel zero": zero_part("laurel.right.weight"),
    "norm of Laurel with 1 added": add_one("laurel.norm.weight"),
    "stream": change_key("altup.active_idx", lambda stream: stream + 1),
    "sparsity of a layer": change_layer_key("gemma3n.activation_sparsity_scale", 0.5),
}
_LATENT_EXPERTS = {
    "projection of the sum zero": zero_part("mlp.latent_out.weight"),
    "rows of the projection rolled": change_part("mlp.latent_in.weight", "rolled", _rolled_far),
    "projection of the sum negated": negate_part("mlp.latent_out.weight"),
    "experts used": change_key("expert_used_count", lambda count: count - 1),
    "scale of the shares": change_key("expert_weights_scale", times(2)),
    "correction zero": zero_part("mlp.correction.weight"),
}
# By the kind of block: a case of a family that has it, and the faults.
KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "grouped heads": ("llama", _DENSE),
    "experts by softmax": ("qwen2moe", _SOFTMAX),
    "experts by sigmoid": ("dots1", _SIGMOID),
    "experts of latent vectors": ("nemotron_h_moe-latent", _LATENT_EXPERTS),
    "latent attention": ("deepseek_v2", _LATENT),
    "sinks": ("gpt_oss", _SINKS),
    "windows by layer": ("gemma3", _WINDOWS),
    "embeddings by layer": ("gemma4", _LAYER_INPUTS),
    "shared keys and values": ("gemma4", _SHARED_KEYS),
    "streams": ("gemma3n", _STREAMS),
    "encoder": ("bert", _ENCODER),
    "parallel residual": ("gptneox", _PARALLEL),
    "multipliers": ("granite", _MULTIPLIERS),
    "norms after the parts": ("olmo2", _NORMS_AFTER),
    "norms inside the parts": ("bitnet", _INNER_NORMS),
    "output gate": ("afmoe", _OUTPUT_GATE),
    "chunked attention": ("llama4", _CHUNKED),
    "xIELU": ("apertus", _XIELU),
    "encoder and decoder": ("t5", _ENCODER_DECODER),
    "norms of each head": ("cohere-norms", _NORMS_APART),
    "ALiBi": ("mpt", _ALIBI),
    "learned positions": ("gpt2", _LEARNED),
    **MIXER_KINDS,
    **STATE_SPACE_KINDS,
    **COMPRESSED_KINDS,
}

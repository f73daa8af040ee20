"""Faults of each kind of block: what is done to a GGUF file, and the cause that is to be named.

Each is a mistake of a tool in one tensor or key of a model that is sound otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from faults import of
from tensor_faults import changed, swapped_rows
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from fault_files import Files

    Array = np.ndarray[Any, Any]
    Hurt = Callable[[Files], tuple[str, ...]]

__all__ = ["KINDS", "BlockFault"]


class BlockFault(NamedTuple):
    """What is done, and the cause that is to be named; None where no cause explains it."""

    hurt: Hurt
    cause: str | None


def _change(part: str, cause: str | None, change: Callable[[Array], Array]) -> BlockFault:
    """Return the fault that changes the numbers of a part of the second layer, or of the model."""
    module = part if part in _OF_MODEL else of(part)
    return BlockFault(changed(module, change), cause)


_OF_MODEL = {
    "decoder_bias.weight", "embedding.weight", "encoder_bias.weight",
    "layer_inputs.embedding.weight", "layer_inputs.norm.weight", "position_embedding.weight",
    "token_type_embedding.weight",
}  # fmt: skip


def _heads_swapped(part: str, heads: str) -> BlockFault:
    def hurt(files: Files) -> tuple[str, ...]:
        module = of(f"attention.{part}.weight")
        rows = files.numbers(module)
        size = len(rows) // getattr(files.ours, heads)
        return changed(module, lambda rows: swapped_rows(rows, 0, 1, size))(files)

    return BlockFault(hurt, "heads_exchanged")


def _exchanged(one: str, other: str, cause: str) -> BlockFault:
    return BlockFault(lambda files: files.exchange(of(one), of(other)), cause)


def _dropped(part: str, cause: str | None = None) -> BlockFault:
    return BlockFault(lambda files: (files.drop(of(part)),), cause)


def _key(name: str, change: Callable[[Any], Any]) -> BlockFault:
    """Return the fault of a key of the metadata that has another value."""

    def hurt(files: Files) -> tuple[str, ...]:
        key = f"{files.model.family.gguf_name}.{name}"
        old = files.metadata[key]
        files.metadata[key] = MetadataValue(old.type, change(old.content))
        return (key,)

    return BlockFault(hurt, "config")


def _of_layers(key: str, added: float) -> BlockFault:
    """Return the fault of a key with a value for each layer, of which the second is larger."""

    def hurt(files: Files) -> tuple[str, ...]:
        old = files.metadata[key]
        values = list(old.content)
        values[1] += added
        files.metadata[key] = MetadataValue(old.type, values)
        return (key,)

    return BlockFault(hurt, "config")


def _plus_one(part: str) -> BlockFault:
    return _change(part, "norm_offset", lambda weight: weight + 1)


def _zeroed(part: str) -> BlockFault:
    return _change(part, "zeroed", np.zeros_like)


def _negated(part: str) -> BlockFault:
    return _change(part, "scaled", np.negative)


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda value: type(value)(value * factor)


def _opposite(value: bool) -> bool:
    return not value


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
    return _change(f"{_EXPERT}{part}", cause, change)


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
    "two heads swapped": _heads_swapped("q", "heads"),
    "norm with 1 added": _plus_one("mlp_norm.weight"),
    "gate and up swapped": _exchanged("mlp.gate.weight", "mlp.up.weight", "gate_and_up_swapped"),
    "keys in the other order of RoPE": _rope_rows("k"),
    "RoPE base": _key("rope.freq_base", _times(10)),
    "epsilon": _key("attention.layer_norm_rms_epsilon", _times(100)),
    "output transposed": _change("attention.o.weight", "transposed", lambda rows: rows.T),
}
_SOFTMAX = {
    "rows of an expert permuted": _stacked("up.weight", "permuted", _rows_permuted),
    "experts in another order": _stacked("down.weight", "expert_order", _experts_swapped),
    "an expert copied": _stacked("gate.weight", "expert_copied", _expert_copied),
    "rows of the router swapped": _change(
        "mlp.router.weight", "permuted", lambda rows: swapped_rows(rows, 0, 2, 1)
    ),
    "experts used": _key("expert_used_count", lambda count: count - 1),
    "gate of the shared expert zero": _zeroed("mlp.shared_gate.weight"),
    "shared gate and up swapped": _exchanged(
        "mlp.shared.gate.weight", "mlp.shared.up.weight", "gate_and_up_swapped"
    ),
}
_SIGMOID = {
    "correction missing": _dropped("mlp.correction.weight", "bias_dropped"),
    "correction zero": _zeroed("mlp.correction.weight"),
    "correction negated": _negated("mlp.correction.weight"),
    "groups used": _key("expert_group_used_count", lambda count: count + 1),
    "scale of the shares": _key("expert_weights_scale", _times(2)),
    "shares not normalized": _key("expert_weights_norm", _opposite),
    "rows of an expert permuted": _stacked("gate.weight", "permuted", _rows_permuted),
}
_LATENT = {
    "keys of heads transposed": _change("attention.k_b.weight", None, _turned),
    "values of two heads swapped": _change(
        "attention.v_b.weight", None, lambda heads: swapped_rows(heads, 0, 1, 1)
    ),
    "norm of the latent vector with 1 added": _plus_one("attention.kv_a_norm.weight"),
    "norm of the queries' vector zero": _zeroed("attention.q_a_norm.weight"),
    "rows of the latent vector rolled": _change("attention.kv_a.weight", "rolled", _rolled_far),
    "RoPE base": _key("rope.freq_base", _times(10)),
    "scale of the shares": _key("expert_weights_scale", _times(2)),
}
_SINKS = {
    "sinks negated": _negated("attention.sinks.weight"),
    "sinks zero": _zeroed("attention.sinks.weight"),
    "sinks missing": _dropped("attention.sinks.weight"),
    "window": _key("attention.sliding_window", lambda size: size // 2),
    "gate and up of experts swapped": _exchanged(
        f"{_EXPERT}gate.weight", f"{_EXPERT}up.weight", "gate_and_up_swapped"
    ),
    "biases of experts zero": _zeroed(f"{_EXPERT}down.bias"),
    "YaRN's factor": _key("rope.scaling.factor", _times(2)),
}
_WINDOWS = {
    "layers with a window": _key("attention.sliding_window_pattern", lambda period: period - 1),
    "window": _key("attention.sliding_window", lambda size: size // 2),
    "RoPE base of layers with a window": _key("rope.freq_base_swa", _times(5)),
    "RoPE base of the others": _key("rope.freq_base", _times(0.1)),
    "norm of queries with 1 added": _plus_one("attention.q_norm.weight"),
    "norms swapped": _exchanged(
        "post_attention_norm.weight", "post_mlp_norm.weight", "norms_exchanged"
    ),
    "value heads swapped": _heads_swapped("v", "kv_heads"),
}
_ENCODER = {
    "positions one too far": _change("position_embedding.weight", "shifted", _rolled),
    "token types zero": _zeroed("token_type_embedding.weight"),
    "norms swapped": _exchanged("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "two heads swapped": _heads_swapped("v", "heads"),
    "output transposed": _change("attention.o.weight", "transposed", lambda rows: rows.T),
    "epsilon": _key("attention.layer_norm_epsilon", _times(1e6)),
    "query and key swapped": _exchanged(
        "attention.q.weight", "attention.k.weight", "query_and_key_swapped"
    ),
}
_PARALLEL = {
    "one by one": _key("use_parallel_residual", _opposite),
    "rotated dimensions": _key("rope.dimension_count", lambda size: size // 2),
    "parts of the projection in another order": _change(
        "attention.qkv.weight", "key_and_value_swapped",
        lambda rows: np.concatenate([rows[: len(rows) // 3], rows[2 * len(rows) // 3 :],
                                     rows[len(rows) // 3 : 2 * len(rows) // 3]]),
    ),
    "norms swapped": _exchanged("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "norm with 1 added": _plus_one("attention_norm.weight"),
    "bias zero": _zeroed("attention.qkv.bias"),
    "RoPE base": _key("rope.freq_base", _times(10)),
}  # fmt: skip
_MULTIPLIERS = {
    "embedding": _key("embedding_scale", _times(2)),
    "residual": _key("residual_scale", _times(2)),
    "attention": _key("attention.scale", _times(2)),
    "logits": _key("logit_scale", _times(2)),
    "embedding that was multiplied": _change("embedding.weight", "scaled", lambda rows: rows * 12),
    "queries that were multiplied": _change("attention.q.weight", "scaled", lambda rows: rows * 2),
}
_NORMS_APART = {
    "norm of queries with 1 added": _plus_one("attention.q_norm.weight"),
    "norm of keys zero": _zeroed("attention.k_norm.weight"),
    "norm of queries negated": _negated("attention.q_norm.weight"),
    "norms of two heads swapped": _change(
        "attention.q_norm.weight", "permuted", lambda heads: swapped_rows(heads, 0, 1, 1)
    ),
    "norm of keys missing": _dropped("attention.k_norm.weight"),
    "logits": _key("logit_scale", _times(2)),
    "two heads swapped": _heads_swapped("q", "heads"),
}
_NORMS_AFTER = {
    "norms swapped": _exchanged(
        "post_attention_norm.weight", "post_mlp_norm.weight", "norms_exchanged"
    ),
    "norm of all queries with 1 added": _plus_one("attention.q_norm.weight"),
    "norm of all keys zero": _zeroed("attention.k_norm.weight"),
    "norm of all queries negated": _negated("attention.q_norm.weight"),
    "norm missing": _dropped("post_mlp_norm.weight"),
    "two heads swapped": _heads_swapped("q", "heads"),
    "epsilon": _key("attention.layer_norm_rms_epsilon", _times(1e4)),
}
_INNER_NORMS = {
    "norm of attention's output with 1 added": _plus_one("attention.inner_norm.weight"),
    "norm of the MLP's product zero": _zeroed("mlp.inner_norm.weight"),
    "norm of the MLP's product negated": _negated("mlp.inner_norm.weight"),
    "norm missing": _dropped("attention.inner_norm.weight"),
    "gate and up swapped": _exchanged("mlp.gate.weight", "mlp.up.weight", "gate_and_up_swapped"),
    "norms swapped": _exchanged("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "value heads swapped": _heads_swapped("v", "kv_heads"),
}
_OUTPUT_GATE = {
    "gate of attention zero": _zeroed("attention.gate.weight"),
    "gate of attention negated": _negated("attention.gate.weight"),
    "gate of attention missing": _dropped("attention.gate.weight"),
    "gate of attention transposed": _change(
        "attention.gate.weight", "transposed", lambda rows: rows.T
    ),
    "norm of keys with 1 added": _plus_one("attention.k_norm.weight"),
    "window": _key("attention.sliding_window", lambda size: size // 2),
    "scale of the shares": _key("expert_weights_scale", _times(2)),
}
_CHUNKED = {
    "keys in the other order of RoPE": _rope_rows("k"),
    "experts in another order": _stacked("down.weight", "expert_order", _experts_swapped),
    "an expert copied": _stacked("up.weight", "expert_copied", _expert_copied),
    "rows of the router swapped": _SOFTMAX["rows of the router swapped"],
    "shared gate and up swapped": _SOFTMAX["shared gate and up swapped"],
    "experts used": _key("expert_used_count", lambda count: count - 1),
    "RoPE base": _key("rope.freq_base", _times(10)),
}
_XIELU = {
    "slopes above 0": _of_layers("xielu.alpha_p", 0.5),
    "slopes below 0": _of_layers("xielu.alpha_n", 0.5),
    "linear part": _of_layers("xielu.beta", 0.5),
    "norm of queries with 1 added": _plus_one("attention.q_norm.weight"),
    "up zero": _zeroed("mlp.up.weight"),
    "output transposed": _change("attention.o.weight", "transposed", lambda rows: rows.T),
    "two heads swapped": _heads_swapped("v", "kv_heads"),
}
_DECODER = 3
_ENCODER_DECODER = {
    "distances of the decoder one too far": _change("decoder_bias.weight", "shifted", _rolled),
    "distances of the encoder zero": _zeroed("encoder_bias.weight"),
    "distances of the encoder negated": _negated("encoder_bias.weight"),
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
    "gate and up swapped": _exchanged("mlp.gate.weight", "mlp.up.weight", "gate_and_up_swapped"),
    "first token of the decoder": _key("decoder_start_token_id", lambda token: token + 5),
}
_ALIBI = {
    "slopes": _key("attention.max_alibi_bias", _times(2)),
    "norm with 1 added": _plus_one("attention_norm.weight"),
    "parts of the projection in another order": _PARALLEL[
        "parts of the projection in another order"
    ],
    "norms swapped": _exchanged("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
    "output transposed": _change("attention.o.weight", "transposed", lambda rows: rows.T),
    "up zero": _zeroed("mlp.up.weight"),
}
_LEARNED = {
    "positions one too far": _change("position_embedding.weight", "shifted", _rolled),
    "positions zero": _zeroed("position_embedding.weight"),
    "bias zero": _zeroed("attention.qkv.bias"),
    "bias of the norm negated": _negated("mlp_norm.bias"),
    "output transposed": _change("attention.o.weight", "transposed", lambda rows: rows.T),
    "epsilon": _key("attention.layer_norm_epsilon", _times(1e4)),
}
_LAYER_INPUTS = {
    "embeddings of layers zero": _zeroed("layer_inputs.embedding.weight"),
    "embeddings of layers one token too far": _change(
        "layer_inputs.embedding.weight", "shifted", _rolled
    ),
    "norm of layers' embeddings with 1 added": _plus_one("layer_inputs.norm.weight"),
    "gate of a layer's embedding negated": _negated("layer_input.gate.weight"),
    "norm of a layer's input zero": _zeroed("layer_input.norm.weight"),
    "scale of a layer zero": _zeroed("scale.weight"),
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
}
# By the kind of block: a case of a family that has it, and the faults.
KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "grouped heads": ("llama", _DENSE),
    "experts by softmax": ("qwen2moe", _SOFTMAX),
    "experts by sigmoid": ("dots1", _SIGMOID),
    "latent attention": ("deepseek_v2", _LATENT),
    "sinks": ("gpt_oss", _SINKS),
    "windows by layer": ("gemma3", _WINDOWS),
    "embeddings by layer": ("gemma4", _LAYER_INPUTS),
    "shared keys and values": ("gemma4", _SHARED_KEYS),
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
}

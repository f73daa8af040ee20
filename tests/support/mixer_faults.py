"""Faults of parts that replace attention or select its keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from delta_faults import DELTA_NET, KIMI_DELTA
from part_faults import (
    add_one,
    change_key,
    change_part,
    drop_part,
    exchange_parts,
    negate_part,
    times,
    zero_part,
)
from tensor_faults import swapped_rows

if TYPE_CHECKING:
    from part_faults import BlockFault

    Array = np.ndarray[Any, Any]

__all__ = ["MIXER_KINDS"]


def _gates_swapped(rows: Array) -> Array:
    first, last, values = np.split(rows, 3)
    return np.concatenate([last, first, values])


_SHORT_CONVOLUTION = {
    "kernels reversed": change_part(
        "convolution.kernel.weight", "permuted", lambda kernels: kernels[:, ::-1].copy()
    ),
    "kernels of two channels swapped": change_part(
        "convolution.kernel.weight", "permuted", lambda kernels: swapped_rows(kernels, 0, 1, 1)
    ),
    "kernels zero": zero_part("convolution.kernel.weight"),
    "kernels negated": negate_part("convolution.kernel.weight"),
    "gates swapped": change_part("convolution.inputs.weight", "permuted", _gates_swapped),
    "output transposed": change_part(
        "convolution.outputs.weight", "transposed", lambda rows: rows.T
    ),
    "projection missing": drop_part("convolution.outputs.weight"),
    "norms swapped": exchange_parts("attention_norm.weight", "mlp_norm.weight", "norms_exchanged"),
}
_SPARSE_ATTENTION = {
    "factors of heads negated": negate_part("attention.indexer.factors.weight"),
    "keys of the indexer zero": zero_part("attention.indexer.k.weight"),
    "norm of keys with 1 added": add_one("attention.indexer.k_norm.weight"),
    "bias of the norm missing": drop_part("attention.indexer.k_norm.bias", "bias_dropped"),
    "heads of the indexer swapped": change_part(
        "attention.indexer.q_b.weight", "permuted", lambda rows: swapped_rows(rows, 0, 1, 64)
    ),
    "keys that are used": change_key("attention.indexer.top_k", lambda count: count // 2),
}
_LINEAR_UNIT = {
    "rates negated": negate_part("lru.rates.weight"),
    "rates of the first two channels swapped": change_part(
        "lru.rates.weight", None, lambda rates: swapped_rows(rates, 0, 1, 1)
    ),
    "gates of additions with inputs as rows": change_part(
        "lru.input_gate.weight", None, lambda blocks: blocks.transpose(0, 2, 1).copy()
    ),
    "gates of fading in another order of blocks": change_part(
        "lru.fade_gate.weight", None, lambda blocks: blocks[::-1].copy()
    ),
    "bias of the gates of fading zero": zero_part("lru.fade_gate_bias.weight"),
    "kernels reversed": change_part(
        "lru.kernel.weight", "permuted", lambda kernels: kernels[:, ::-1].copy()
    ),
    "gate and inputs swapped": exchange_parts("lru.gate.weight", "lru.inputs.weight"),
    "bias of the gate missing": drop_part("lru.gate.bias", "bias_dropped"),
    "projection missing": drop_part("lru.outputs.weight"),
    "positions that the convolution reads": change_key(
        "recurrent.conv_kernel", lambda count: count - 1
    ),
}
_TIME_MIX = {
    "offsets of decays zero": zero_part("rwkv.decay_offset.weight"),
    "offsets of rates negated": negate_part("rwkv.rate_offset.weight"),
    "shares of queries zero": zero_part("rwkv.mix_r.weight"),
    "share of the MLP negated": negate_part("mlp_mix.weight"),
    "offsets of shares of values negated": negate_part("rwkv.value_offset.weight"),
    "scales of keys zero": zero_part("rwkv.key_scale.weight"),
    "products of queries and keys zero": zero_part("rwkv.bonus.weight"),
    "norm of heads with 1 added": add_one("rwkv.norm.weight"),
    "bias of the norm of heads missing": drop_part("rwkv.norm.bias", "bias_dropped"),
    "projection missing": drop_part("rwkv.outputs.weight"),
    "epsilon": change_key("attention.layer_norm_epsilon", times(1e3)),
}
_DYNAMIC_MIX = {
    "weights of the first mix zero": zero_part("rwkv.mix_x.weight"),
    "projection of the shares zero": zero_part("rwkv.mixer_a.weight"),
    "shares in another order": change_part(
        "rwkv.mixer_b.weight", None, lambda each: each[::-1].copy()
    ),
    "offsets of decays negated": negate_part("rwkv.decay_offset.weight"),
    "products of queries and keys zero": zero_part("rwkv.bonus.weight"),
    "gate and queries swapped": exchange_parts("rwkv.gate.weight", "rwkv.r.weight"),
    "norm of heads with 1 added": add_one("rwkv.norm.weight"),
    "share of the gate of the MLP negated": negate_part("mlp_mix_gate.weight"),
    "gate of the MLP missing": drop_part("mlp.gate.weight"),
    "layers until outputs are halved": change_key(
        "rescale_every_n_layers", lambda count: count + 1
    ),
}
# By the kind of block: a case of a family that has it, and the faults.
MIXER_KINDS: dict[str, tuple[str, dict[str, BlockFault]]] = {
    "short convolution": ("lfm2", _SHORT_CONVOLUTION),
    "sparse attention": ("deepseek_v32", _SPARSE_ATTENTION),
    "gated delta net": ("qwen35", DELTA_NET),
    "Kimi delta attention": ("kimi_linear", KIMI_DELTA),
    "time mixing": ("rwkv7", _TIME_MIX),
    "time mixing by tokens": ("rwkv6", _DYNAMIC_MIX),
    "linear recurrent unit": ("recurrent_gemma", _LINEAR_UNIT),
}

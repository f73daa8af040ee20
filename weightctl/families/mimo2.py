"""MiMo-V2-Flash: windows with sinks and twice the KV heads, and values smaller than keys.

Names and keys: transformers' `modeling_mimo_v2_flash.py`; llama.cpp's `models/mimo2.cpp` and
`conversion/mimo.py`. Layers of multi-token prediction have a window, and an MLP in place of
experts; config.json does not state their number. llama.cpp loads these layers in any form, but
predicts with them only if queries, keys and values are one tensor.

A window has one position more than `sliding_window_size`: that many before a position, and the
position itself, as in transformers and in the code that was published with the model. llama.cpp's
own converter writes `sliding_window`, which is one less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import GLOBAL, LOCAL, Key, LayersWith, same, with_keys
from weightctl.families.config_values import HEADS, SIZE, Exactly, Real
from weightctl.families.decoder_keys import DECODER_KEYS, NO_BIASES, check_decoder
from weightctl.families.experts import (
    EXPERT_WIDTH,
    GROUP_KEYS,
    ROUTER_GATING,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType, MtpForm
from weightctl.families.fusions import Fusion, qkv_form
from weightctl.families.layers import ONES, WORDS, LayerChoice, Layered
from weightctl.families.mtp import mtp_keys, mtp_line, with_mtp_lines
from weightctl.families.rope import (
    PARTIAL_ROPE,
    find_rotary_size,
    find_rotated_share,
    keys_of_global_layers,
    rope_by_layer,
)
from weightctl.families.usual_names import DECODER, adapt
from weightctl.text.untyped import is_list, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields

_ROPE, _SHARE = "rope_parameters", "partial_rotary_factor"
_SPARSE, _DENSE = "sparse", "dense"
_PERIOD = 6
_QKV = ("attention.q", "attention.k", "attention.v")
# llama.cpp's own converter writes these tensors in layers for MTP.
_QKV_APART = tuple(
    Fusion(convention="gguf", name=f"blk.{{}}.{name}.{{kind}}", parts=(f"layers.{{}}.{part}",))
    for part, name in zip(_QKV, ("attn_q", "attn_k", "attn_v"), strict=True)
)
_MTP_LAYER = "model.mtp.layers.{}."
_MTP_LINES = (
    mtp_line("projection", "nextn.eh_proj", _MTP_LAYER + "eh_proj", restarts=True),
    mtp_line("embedding_norm", "nextn.enorm", _MTP_LAYER + "enorm", restarts=True),
    mtp_line("hidden_norm", "nextn.hnorm", _MTP_LAYER + "hnorm", restarts=True),
    mtp_line("norm", "layer_output_norm", _MTP_LAYER + "final_layernorm", restarts=True),
)
# The names of keys in the published config.json.
_CALLED = {"layernorm_epsilon": "rms_norm_eps"}
# The keys with a number for each layer in the published config.json, where transformers has words:
# 0 means the first word.
_WORDS = {
    "hybrid_layer_pattern": ("layer_types", (GLOBAL, LOCAL)),
    "moe_layer_freq": ("mlp_layer_types", (_DENSE, _SPARSE)),
}
# transformers' defaults if config.json does not have RoPE keys.
_BASES = {GLOBAL: 5000000.0, LOCAL: 10000.0}
_USUAL_SHARE = 0.334


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the published config.json in the form of transformers."""
    made = {new: document[old] for old, new in _CALLED.items() if old in document} | dict(document)
    for old, (new, words) in _WORDS.items():
        numbers: Any = document.get(old)
        if is_list(numbers) and made.get(new) is None:
            made[new] = [words[bool(number)] for number in numbers]
    if isinstance(document.get("sliding_window_size"), int):
        made["sliding_window"] = document["sliding_window_size"] + 1
    # A factor that is null in either of the forms is 1.
    for factor in ("routed_scaling_factor", "attention_value_scale"):
        if factor in made and made[factor] is None:
            made[factor] = 1.0
    if not made.get(_ROPE):
        share = document.get(_SHARE, _USUAL_SHARE)
        bases = {GLOBAL: document.get("rope_theta"), LOCAL: document.get("swa_rope_theta")}
        made[_ROPE] = {
            kind: {"rope_theta": base or _BASES[kind], _SHARE: share}
            for kind, base in bases.items()
        }
        made = {name: made[name] for name in made if name not in {"rope_theta", _SHARE}}
    near = object_of(object_of(made, _ROPE), LOCAL)
    rope = rope_by_layer(made)[_ROPE]
    rope[LOCAL][_SHARE] = near.get(_SHARE, _USUAL_SHARE)
    return {**made, _ROPE: rope}


def _mark_windows(fields: Fields) -> tuple[bool, ...]:
    return tuple(layer > 0 and (layer + 1) % _PERIOD != 0 for layer in range(fields["layers"]))


def _all_but_first(fields: Fields) -> tuple[bool, ...]:
    return tuple(layer > 0 for layer in range(fields["layers"]))


def _count_kv_heads(fields: Fields) -> tuple[int, ...]:
    """Return the number of KV heads of each layer, which depends on whether it has a window."""
    own, twice = fields["global_kv_heads"], fields["local_kv_heads"]
    return tuple(twice if windowed else own for windowed in fields["windowed_layers"])


def _find_kv_heads(fields: Fields) -> int:
    """Return the number of KV heads of layers without a window: half of those with a window."""
    counts = zip(fields["kv_heads"], fields["windowed_layers"], strict=False)
    found = (count if not windowed else count // 2 for count, windowed in counts)
    return int(next(found))


def _twice(fields: Fields) -> int:
    return int(2 * fields["global_kv_heads"])


def _check(fields: Fields) -> Fields:
    made = check_decoder(fields)
    if made["kv_heads"] != _count_kv_heads(fields):
        raise ValueError("sliding-window layers must have twice the KV heads of the other layers")
    share = fields.get("local_share", find_rotated_share(fields))
    if find_rotary_size({**fields, "rotated_share": share}) != made["rope_dimensions"]:
        raise ValueError(
            "sliding-window layers must have the rotary dimensions of the other layers"
        )
    return made


_KV_HEADS = (
    Key(field="kv_heads", kind=Layered(HEADS), gguf="{arch}.attention.head_count_kv"),
    Key(field="global_kv_heads", kind=HEADS, default=4, gguf_default=_find_kv_heads,
        hugging_face="num_key_value_heads", written=True),
    Key(field="local_kv_heads", kind=HEADS, default=_twice, gguf_default=_twice,
        hugging_face="swa_num_key_value_heads"),
    Key(field="kv_heads", kind=Layered(HEADS), default=_count_kv_heads),
)  # fmt: skip
_WINDOWS = (
    Key(field="sliding_window", kind=SIZE, default=129, gguf="{arch}.attention.sliding_window",
        hugging_face="sliding_window"),
    Key(field="windowed_layers", kind=WORDS, default=_mark_windows, hugging_face="layer_types",
        written=True),
    Key(field="windowed_layers", kind=ONES, gguf="{arch}.attention.sliding_window_pattern"),
    Key(field="sinks", kind=ONES, default=same("windowed_layers"),
        gguf_default=same("windowed_layers")),
)  # fmt: skip


_DECODER_KEYS = with_keys(
    keys_of_global_layers(mtp_keys(DECODER_KEYS, ""), _BASES[GLOBAL]),
    PARTIAL_ROPE,
    without=("kv_heads", "value_dim"),
)

FAMILY = Family(
    name="mimo2",
    model_types={
        "mimo_v2_flash": ModelType(
            class_name="MiMoV2FlashForCausalLM",
            defaults={
                "vocabulary": 152576,
                "context": 131072,
                "intermediate": 16384,
                "layers": 48,
                "heads": 64,
                "head_dim": 192,
                "norm_epsilon": 1e-5,
                "expert_intermediate": 2048,
                "rotated_share": _USUAL_SHARE,
            },
        )
    },
    blocks={"router": "sigmoid", "router_correction": True},
    keeps_window=True,
    names=with_mtp_lines(
        expert_lines(
            adapt(
                DECODER,
                {
                    "attention.v.sized": {},
                    "attention.o.latent": {},
                    "attention.sinks": {
                        "hugging_face": "model.layers.{}.self_attn.attention_sink_bias",
                        "when": ("sinks",),
                    },
                },
            ),
            dense=True,
            more={"mlp.correction": "gate.e_score_correction_bias"},
        ),
        _MTP_LINES,
    ),
    keys=expert_keys(
        (*_DECODER_KEYS, *_WINDOWS, *_KV_HEADS),
        "n_routed_experts",
        Key(field="value_dimensions", kind=SIZE, default=128, gguf_default=same("head_dim"),
            gguf="{arch}.attention.value_length", hugging_face="v_head_dim"),
        Key(field="value_scale", kind=Real(0, 1e6), default=0.707, gguf_default=1.0,
            gguf="{arch}.attention.value_scale", hugging_face="attention_value_scale"),
        NO_BIASES,
        Key(field="local_rope_base", kind=Real(1e-6, 1e12, is_closed=True), default=_BASES[LOCAL],
            gguf_default=same("rope_base"), gguf="{arch}.rope.freq_base_swa",
            hugging_face=f"{_ROPE}.{LOCAL}.rope_theta"),
        Key(field="local_share", kind=Real(0, 1), default=find_rotated_share,
            hugging_face=f"{_ROPE}.{LOCAL}.{_SHARE}", written=True),
        EXPERT_WIDTH,
        ROUTER_GATING,
        Key(field="experts_normalized", default=True, hugging_face="norm_topk_prob",
            kind=Exactly(True, "llama.cpp normalizes the shares of experts in this family")),
        Key(field="experts_scale", default=1.0, hugging_face="routed_scaling_factor",
            kind=Exactly(1.0, "llama.cpp does not scale the shares of experts in this family")),
        Key(field="sparse_layers", kind=LayerChoice(_SPARSE, _DENSE), default=_all_but_first,
            gguf_default=_all_but_first, hugging_face="mlp_layer_types", written=True,
            seen=LayersWith("blk.{}.ffn_gate_inp.weight", "blk.{}.attn_norm.weight",
                            _SPARSE, _DENSE)),
        *GROUP_KEYS,
        experts=256,
        used=8,
    ),
    fusions=(qkv_form(), *_QKV_APART, *expert_forms()),
    mtp=MtpForm(
        prefix=_MTP_LAYER,
        renamed={"mlp_norm": "pre_mlp_layernorm"},
        values={"sparse_layers": False, "windowed_layers": True, "sinks": True,
                "kv_heads": same("local_kv_heads")},
        fused=_QKV,
    ),
    older={"rope_local_base_freq": ""},
    standard=_standard,
    checked=checking_experts(_check),
)  # fmt: skip

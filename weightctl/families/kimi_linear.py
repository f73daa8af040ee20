"""Kimi Linear: Kimi delta attention in most layers, and latent attention in the others.

Names and keys: transformers' `modeling_kimi_linear.py` and `configuration_kimi_linear.py`;
llama.cpp's `models/kimi-linear.cpp` and `conversion/kimi_linear.py`. No layer has RoPE. In GGUF,
layers without attention have no KV heads.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from operator import not_
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import GLOBAL, Key, same, with_keys
from weightctl.families.config_values import FLAG, HEADS, LAYERS, SIZE, Exactly, WholeNumber
from weightctl.families.decoder import check_layers
from weightctl.families.decoder_keys import DECODER_KEYS, NO_BIASES, activation, rename_keys
from weightctl.families.experts import (
    ROUTED_KEYS,
    ROUTED_LINES,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.hybrid import hybrid_lines
from weightctl.families.latent import (
    LATENT_DECODER,
    LATENT_SIZES,
    joined_form,
    latent_keys,
)
from weightctl.families.layers import ONES, LayerChoice, LayerValues, from_layer
from weightctl.families.rope import ROPE_KEYS
from weightctl.families.steps import MINUS_EXP, extra_axes
from weightctl.families.usual_names import adapt
from weightctl.text.untyped import is_list, is_sequence, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields

_LINEAR, _DENSE, _SPARSE = "linear_attention", "dense", "sparse"
_TYPES, _MLP_TYPES = "layer_types", "mlp_layer_types"
_TIED = "neither transformers nor llama.cpp supports a tied output in this family"
_MOE = "block_sparse_moe."
# transformers' names for keys, and those in config.json.
_ALIASES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_local_experts": "num_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
}
_CALLED = {
    "context": "model_max_length",
    "experts_used": "num_experts_per_token",
    "experts_normalized": "moe_renormalize",
    "expert_groups": "num_expert_group",
    "shared_count": "num_shared_experts",
}


def _count_latent_heads(fields: Fields) -> Any:
    marked = fields.get("delta_layers")
    return 1 if marked is None else tuple(0 if has_delta else 1 for has_delta in marked)


def _find_delta_layers(fields: Fields) -> tuple[bool, ...]:
    counts = fields["latent_heads"]
    given = counts if is_sequence(counts) else [counts] * fields["layers"]
    return tuple(count == 0 for count in given)


def _mark_usual(fields: Fields) -> tuple[bool, ...]:
    """Return transformers' default: attention in every fourth layer after the first."""
    return tuple(not layer or layer % 4 != 0 for layer in range(fields["layers"]))


def _find_others(fields: Fields) -> tuple[bool, ...]:
    return tuple(not has_delta for has_delta in fields["delta_layers"])


def _count_dense(fields: Fields) -> int:
    """Return the number of layers before the first one with experts."""
    marked: tuple[bool, ...] = fields.get("sparse_layers", ())
    return len(list(takewhile(not_, marked)))


def _from_second(fields: Fields) -> tuple[bool, ...]:
    return tuple(layer > 0 for layer in range(fields["layers"]))


_SIZES = tuple(
    replace(key, kind=LayerValues(WholeNumber(0, 1)), gguf_default=_count_latent_heads)
    if key.field == "latent_heads"
    else key
    for key in LATENT_SIZES
)

_KEYS = latent_keys(
    with_keys(
        DECODER_KEYS,
        without=tuple(key.field for key in ROPE_KEYS if key.field != "rope_dimensions"),
    ),
    activation("silu"),
    NO_BIASES,
    Key(field="tied", kind=Exactly(False, _TIED), default=False, gguf_default=False,
        hugging_face="tie_word_embeddings"),
    Key(field="delta_layers", kind=ONES, gguf_default=_find_delta_layers),
    Key(field="delta_layers", kind=LayerChoice(_LINEAR, GLOBAL), default=_mark_usual,
        hugging_face=_TYPES, written=True),
    Key(field="attention_layers", kind=ONES, default=_find_others, gguf_default=_find_others),
    Key(field="convolution_length", kind=SIZE, default=4, gguf="{arch}.ssm.conv_kernel",
        hugging_face="linear_conv_kernel_dim"),
    Key(field="delta_key_size", kind=SIZE, default=128, gguf="{arch}.kda.head_dim",
        hugging_face="linear_head_dim"),
    Key(field="delta_value_size", kind=SIZE, default=same("delta_key_size"),
        gguf_default=same("delta_key_size")),
    Key(field="delta_heads", kind=HEADS, default=32, gguf_default=same("heads"),
        hugging_face="linear_num_heads"),
    Key(field="delta_key_heads", kind=HEADS, default=same("delta_heads"),
        gguf_default=same("delta_heads")),
    sizes=_SIZES,
)  # fmt: skip


def standard_kimi_linear(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in transformers' current form.

    Older files have an object for Kimi delta attention, in which layers are counted from 1.
    """
    found = {_ALIASES.get(key, key): value for key, value in document.items()}
    delta = object_of(document, "linear_attn_config")
    for old, new in {
        "head_dim": "linear_head_dim",
        "num_heads": "linear_num_heads",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }.items():
        if old in delta:
            found[new] = delta[old]
    layers = LAYERS.read(found.get("num_hidden_layers", 27))
    attended = delta.get("full_attn_layers")
    if found.get(_TYPES) is None and is_list(attended):
        found[_TYPES] = [GLOBAL if layer + 1 in attended else _LINEAR for layer in range(layers)]
    dense = found.get("first_k_dense_replace")
    if found.get(_MLP_TYPES) is None and dense is not None:
        first = WholeNumber(0, LAYERS.most).read(dense)
        found[_MLP_TYPES] = [_DENSE if layer < first else _SPARSE for layer in range(layers)]
    return found


def _check(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_layers(fields)
    heads, kv_heads = fields["heads"], fields["kv_heads"]
    if heads != kv_heads:
        raise ValueError(
            f"there are {heads} query heads and {kv_heads} KV heads; with latent attention (MLA), "
            "the numbers must be equal"
        )
    return {**fields, "query_rank": fields["query_rank"] or 0}


def _find_unlike(fields: Fields) -> str | None:
    """Return why llama.cpp does not load or run a model, None if it does."""
    if fields["query_rank"] is not None:
        return "its queries are computed from latent vectors (`q_lora_rank`)"
    return None


# transformers writes the MLPs of layers without experts under the names of those with experts.
_MLP_FORMS = tuple(
    Fusion(convention="hugging_face", name=f"model.layers.{{}}.{_MOE}{part}_proj.{{kind}}",
           parts=(f"layers.{{}}.mlp.{part}",))
    for part in ("gate", "up", "down")
)  # fmt: skip

FAMILY = Family(
    name="kimi_linear",
    gguf="kimi-linear",
    model_types={
        "kimi_linear": ModelType(
            class_name="KimiLinearForCausalLM",
            defaults={
                "vocabulary": 163840,
                "context": 1048576,
                "hidden": 2304,
                "layers": 27,
                "intermediate": 9216,
                "norm_epsilon": 1e-5,
                "expert_intermediate": 1024,
                "shared_count": 1,
                "experts_scale": 2.446,
            },
        )
    },
    blocks={
        "position": "none",
        "delta_by_element": True,
        "router": "sigmoid",
        "router_correction": True,
    },
    unloaded=_find_unlike,
    names=expert_lines(
        hybrid_lines(
            adapt(
                LATENT_DECODER,
                {
                    "delta.q": {},
                    "delta.k": {},
                    "delta.v": {},
                    "delta.q_kernel": {},
                    "delta.k_kernel": {},
                    "delta.v_kernel": {},
                    "delta.decay_a": {},
                    "delta.decay_b": {},
                    "delta.gate_a": {},
                    "delta.gate_b": {},
                    "delta.beta": "self_attn.b_proj",
                    "delta.rates": {
                        "hugging_face": "model.layers.{}.self_attn.A_log",
                        "change": extra_axes((1,), (0, 0, 3), MINUS_EXP),
                    },
                    "delta.offsets.apart": {"hugging_face": "model.layers.{}.self_attn.dt_bias"},
                    "delta.norm": "self_attn.o_norm",
                    "delta.outputs": {
                        "gguf": "blk.{}.attn_output",
                        "hugging_face": "model.layers.{}.self_attn.o_proj",
                    },
                },
            ),
            {"attention": "attention_layers"},
        ),
        _MOE,
        parts=("w1", "w3", "w2"),
        dense=True,
        more=ROUTED_LINES,
    ),
    keys=rename_keys(
        expert_keys(
            _KEYS,
            "num_experts",
            *with_keys(
                ROUTED_KEYS,
                # llama.cpp always normalizes.
                Key(field="experts_normalized", kind=FLAG, default=True, gguf_default=True,
                    hugging_face="moe_renormalize"),
                Key(field="dense_first", kind=WholeNumber(0, LAYERS.most), written=True,
                    gguf="{arch}.leading_dense_block_count", gguf_default=_count_dense),
                Key(field="sparse_layers", kind=LayerChoice(_SPARSE, _DENSE), written=True,
                    default=_from_second, gguf_default=from_layer("dense_first"),
                    hugging_face=_MLP_TYPES),
            ),
            experts=256,
            used=8,
        ),
        _CALLED,
    ),
    fusions=(joined_form(), *_MLP_FORMS, *expert_forms()),
    standard=standard_kimi_linear,
    checked=checking_experts(_check),
)  # fmt: skip

"""DeepSeek-V4: hyper-connections, and attention to the keys of a window and to compressed ones.

Names and keys: transformers' `modeling_deepseek_v4.py` and `configuration_deepseek_v4.py`;
llama.cpp's `models/deepseek4.cpp` and `conversion/deepseek.py`. Rotated pairs are neighbors in both
conventions, and the last elements of a head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.compressed import (
    HEAVY,
    LAYER_LINES,
    OTHER_FORMS,
    OUTPUT_LINES,
    OVERLAPPING,
)
from weightctl.families.config_keys import Key, same, with_keys
from weightctl.families.config_values import EPSILON, LAYERS, SIZE, Exactly, Real, WholeNumber
from weightctl.families.decoder import check_layers
from weightctl.families.decoder_keys import DECODER_KEYS, NO_BIASES, NO_MLP_BIASES, activation
from weightctl.families.experts import SHARED_COUNT_KEYS, checking_experts, expert_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.layers import Layered, Uniform
from weightctl.families.rope import TYPES_WITHOUT_LLAMA3, scaling
from weightctl.families.usual_names import line
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields

_RATIOS = {
    "sliding_attention": 0,
    "compressed_sparse_attention": OVERLAPPING,
    "heavily_compressed_attention": HEAVY,
}
_OLD_RATES = {"compress_rate_csa": OVERLAPPING, "compress_rate_hca": HEAVY}
_HASHED, _USUAL_HASHED = "hash_moe", 3
_ROPE, _SIZE, _SHARE = "rope_parameters", "qk_rope_head_dim", "partial_rotary_factor"
_ROUTER = "other routers are not supported in this family"
_STREAMS = 4


def _list_ratios(fields: Fields) -> tuple[int, ...]:
    """Return transformers' default: two layers with heavy compression, then both in turn."""
    return tuple(
        OVERLAPPING if layer > 1 and layer % 2 else HEAVY for layer in range(fields["layers"])
    )


def _count_hashed(fields: Fields) -> int:
    layers: int = fields["layers"]
    return min(layers, _USUAL_HASHED)


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in the form of published checkpoints.

    transformers writes types of layers in place of ratios and of the number of layers with a table,
    and the RoPE of both kinds of layers in objects. Raises `ValueError` for what the family does
    not have.
    """
    found = dict(document)
    rates = found.get("compress_rates")
    given = dict(rates) if is_object(rates) else {}
    given |= {kind: found[old] for old, rate in _OLD_RATES.items() if old in found
              for kind, usual in _RATIOS.items() if usual == rate}  # fmt: skip
    if any(_RATIOS.get(kind) != rate for kind, rate in given.items()):
        raise ValueError(f"only {OVERLAPPING} and {HEAVY} tokens for one key are supported")
    kinds = found.get("layer_types")
    if is_list(kinds):
        if not all(isinstance(kind, str) and kind in _RATIOS for kind in kinds):
            raise ValueError(f"`layer_types` must be one of {', '.join(_RATIOS)} for each layer")
        found["compress_ratios"] = [_RATIOS[str(kind)] for kind in kinds]
    if is_list(found.get("compress_ratios")):
        count = LAYERS.read(found.get("num_hidden_layers", 43))
        found["compress_ratios"] = found["compress_ratios"][:count]
    routed = found.get("mlp_layer_types")
    if is_list(routed):
        hashed = [kind == _HASHED for kind in routed]
        if hashed != sorted(hashed, reverse=True):
            raise ValueError("`mlp_layer_types` must list `hash_moe` first, and then `moe`")
        found["num_hash_layers"] = sum(hashed)
    share = found.get(_SHARE)
    if found.get(_SIZE) is None and isinstance(share, float):
        found[_SIZE] = int(SIZE.read(found.get("head_dim", 512)) * share)
    return found | _standard_rope(found)


def _standard_rope(document: Mapping[str, Any]) -> dict[str, Any]:
    rope: Any = document.get("rope_scaling") or document.get(_ROPE) or {}
    if not is_object(rope):
        raise ValueError(f"`{_ROPE}` is not a JSON object")
    made: dict[str, Any] = {}
    main, compressed = rope.get("main"), rope.get("compress")
    if is_object(main) and is_object(compressed):
        if main.get("rope_type", "default") != "default":
            raise ValueError("RoPE scaling of layers without compressed keys is not supported")
        made["rope_theta"] = main.get("rope_theta", document.get("rope_theta", 10000.0))
        usual = document.get("compress_rope_theta", 160000.0)
        made["compress_rope_theta"] = compressed.get("rope_theta", usual)
        rope = compressed
    given = {key: value for key, value in rope.items() if value is not None}
    if "type" in given:
        given.setdefault("rope_type", given["type"])
    if given.get("attention_factor", 1.0) != 1:
        raise ValueError("an `attention_factor` of RoPE scaling other than 1 is not supported")
    return {**made, _ROPE: given, "rope_scaling": None}


def _check(fields: Fields) -> Fields:
    """Return the fields as the config has them; raises `ValueError` if they contradict."""
    made = {**fields, "compress_ratios": tuple(fields["compress_ratios"][: fields["layers"]])}
    check_layers(made)
    if len(made["compress_ratios"]) != fields["layers"]:
        raise ValueError(
            f"the model has {fields['layers']} layers, but `compress_ratios` has "
            f"{len(made['compress_ratios'])} values"
        )
    if not set(made["compress_ratios"]) <= {0, OVERLAPPING, HEAVY}:
        raise ValueError(f"a compression other than 0, {OVERLAPPING} and {HEAVY} is not supported")
    rotated = fields["rope_dimensions"]
    if rotated % 2 or rotated > min(fields["head_dim"], fields["indexer_size"]):
        raise ValueError(f"{rotated} rotary dimensions are not valid for the size of a head")
    if fields["heads"] % fields["output_groups"]:
        raise ValueError(
            f"{fields['heads']} heads cannot be divided evenly among {fields['output_groups']} "
            "groups"
        )
    stretched = scaling(fields)
    if stretched is not None:
        # The published implementation leaves YaRN's factor of cosines and sines out.
        stretched = replace(stretched, attention_factor=1.0)
    return {**made, "rope_scaling": stretched}


def _find_other_streams(fields: Fields) -> str | None:
    if fields["streams"] != _STREAMS:
        return f"llama.cpp supports only {_STREAMS} streams of vectors (`hc_mult`)"
    return None


def _find_difference(fields: Fields) -> str:
    if fields["scaling.kind"] == "linear":
        return "it does not apply `linear` RoPE scaling as transformers does"
    return "if the scores of two compressed keys are equal, it may select the other one"


_LIMIT = Uniform(Real(0, 1e9))
_NOT_TIED = "an output matrix that is tied to the embedding is not supported"
_HIDDEN_KEYS = {
    "rotated_share", "scaling.attention_factor", "scaling.mscale", "scaling.mscale_all_dim",
    "scaling.attention_share", "scaling.low_frequency_factor", "scaling.high_frequency_factor",
    "intermediate",
}  # fmt: skip

_KEYS = expert_keys(
    with_keys(
        tuple(key for key in DECODER_KEYS if key.field not in _HIDDEN_KEYS),
        *TYPES_WITHOUT_LLAMA3,
        Key(field="kv_heads", kind=Exactly(1, "more than one KV head is not supported"), default=1,
            gguf="{arch}.attention.head_count_kv", gguf_default=1, written=True),
        Key(field="head_dim", kind=SIZE, default=512, gguf="{arch}.attention.key_length",
            hugging_face="head_dim"),
        Key(field="tied", kind=Exactly(False, _NOT_TIED), default=False, gguf_default=False,
            hugging_face="tie_word_embeddings"),
        Key(field="rope_base", kind=Real(1e-6, 1e12), default=10000.0, gguf_default=10000.0,
            gguf="{arch}.rope.freq_base", hugging_face="rope_theta"),
        Key(field="compress_rope_base", kind=Real(1e-6, 1e12), default=160000.0,
            gguf="{arch}.attention.compress_rope_freq_base", hugging_face="compress_rope_theta"),
        Key(field="rope_dimensions", kind=SIZE, default=64, gguf="{arch}.rope.dimension_count",
            hugging_face=_SIZE, written=True),
        activation("silu"),
        NO_BIASES,
    ),
    "n_routed_experts",
    NO_MLP_BIASES,
    Key(field="expert_intermediate", kind=SIZE, default=2048,
        gguf="{arch}.expert_feed_forward_length", hugging_face="moe_intermediate_size"),
    Key(field="intermediate", kind=SIZE, default=same("expert_intermediate"),
        gguf_default=same("expert_intermediate")),
    Key(field="router_gating", kind=Exactly(4, _ROUTER), gguf="{arch}.expert_gating_func",
        gguf_default=4, written=True),
    Key(field="scoring", kind=Exactly("sqrtsoftplus", _ROUTER), default="sqrtsoftplus",
        hugging_face="scoring_func"),
    Key(field="experts_normalized", kind=Exactly(True, _ROUTER), default=True, gguf_default=True,
        gguf="{arch}.expert_weights_norm", hugging_face="norm_topk_prob", written=True),
    Key(field="experts_scale", kind=Real(0, 1e9), default=1.5,
        gguf="{arch}.expert_weights_scale", hugging_face="routed_scaling_factor"),
    *SHARED_COUNT_KEYS,
    Key(field="query_rank", kind=SIZE, default=1024, gguf="{arch}.attention.q_lora_rank",
        hugging_face="q_lora_rank"),
    Key(field="sliding_window", kind=SIZE, default=128, gguf="{arch}.attention.sliding_window",
        hugging_face="sliding_window"),
    Key(field="compress_ratios", kind=Layered(WholeNumber(0, HEAVY)), default=_list_ratios,
        gguf="{arch}.attention.compress_ratios", hugging_face="compress_ratios", written=True),
    Key(field="output_groups", kind=SIZE, default=8,
        gguf="{arch}.attention.output_group_count", hugging_face="o_groups"),
    Key(field="output_rank", kind=SIZE, default=1024,
        gguf="{arch}.attention.output_lora_rank", hugging_face="o_lora_rank"),
    Key(field="indexer_heads", kind=SIZE, default=64, gguf="{arch}.attention.indexer.head_count",
        hugging_face="index_n_heads"),
    Key(field="indexer_size", kind=SIZE, default=128, gguf="{arch}.attention.indexer.key_length",
        hugging_face="index_head_dim"),
    Key(field="indexer_used", kind=SIZE, default=512, gguf="{arch}.attention.indexer.top_k",
        hugging_face="index_topk"),
    Key(field="streams", kind=WholeNumber(1, 64), default=_STREAMS,
        gguf="{arch}.hyper_connection.count", hugging_face="hc_mult"),
    Key(field="sinkhorn_steps", kind=WholeNumber(1, 1000), default=20,
        gguf="{arch}.hyper_connection.sinkhorn_iterations", hugging_face="hc_sinkhorn_iters"),
    Key(field="stream_epsilon", kind=EPSILON, default=1e-6,
        gguf="{arch}.hyper_connection.epsilon", hugging_face="hc_eps"),
    Key(field="hash_count", kind=WholeNumber(0, LAYERS.most), default=_count_hashed,
        gguf="{arch}.hash_layer_count", hugging_face="num_hash_layers", written=True),
    Key(field="expert_limit", kind=_LIMIT, default=10.0, gguf="{arch}.swiglu_clamp_exp",
        hugging_face="swiglu_limit"),
    Key(field="shared_limit", kind=_LIMIT, gguf_default=same("expert_limit"),
        gguf="{arch}.swiglu_clamp_shexp", written=True),
    experts=256,
    used=6,
)  # fmt: skip

FAMILY = Family(
    name="deepseek_v4",
    gguf="deepseek4",
    model_types={
        "deepseek_v4": ModelType(
            class_name="DeepseekV4ForCausalLM",
            defaults={
                "vocabulary": 129280,
                "context": 1048576,
                "hidden": 4096,
                "layers": 43,
                "heads": 64,
                "shared_count": 1,
            },
        )
    },
    config="weightctl.families.compressed:CompressedConfig",
    module="weightctl.nn.models.compressed_decoder:CompressedDecoder",
    blocks={"rope_interleaved": True, "router": "sqrtsoftplus", "router_correction": True},
    keeps_window=True,
    unloaded=_find_other_streams,
    differs=_find_difference,
    names=(
        line("embedding", hugging_face="embed"),
        *LAYER_LINES,
        line("norm", hugging_face="norm"),
        *OUTPUT_LINES,
        line("output", hugging_face="head"),
    ),
    fusions=OTHER_FORMS,
    # Layers for multi-token prediction, and the bias of routers that a table replaces.
    beside=(r"mtp\..+", r"layers\.\d+\.ffn\.gate\.bias(_vl)?", r"blk\.\d+\.exp_probs_b_vl\.bias"),
    keys=_KEYS,
    older=dict.fromkeys(("rope_theta", "partial_rotary_factor", "rope_scaling"), ""),
    standard=_standard,
    checked=checking_experts(_check),
)

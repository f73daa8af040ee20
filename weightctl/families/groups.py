"""What the files of families name: groups of keys and tensors, kinds of values, steps and rules.

Each name leads to an object of a module, which is imported on use.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = "weightctl.families."


def _refer(objects: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: _PACKAGE + reference for name, reference in objects.items()})


# Tensors: `tensors_from` in a file.
LINE_GROUPS = _refer({
    "decoder": "usual_names:DECODER",
    "delta": "delta:DELTA_LINES",
    "indexed": "latent:INDEXED_DECODER",
    "latent": "latent:LATENT_DECODER",
    "nothing": "usual_names:NOTHING",
})  # fmt: skip

# Tensors of experts: `tensors_from` in `experts`.
EXPERT_LINES = _refer({"routed": "experts:ROUTED_LINES", "shared": "experts:SHARED_LINES"})

# Keys: `keys_from` in a file. A group is a key, several, or a function that returns them for the
# words after its name.
#
# - `activation NAME WORD ...`: that of an image encoder, with the words for it in config.json.
# - `factors NAME ...`: some of the factors of `decoder_keys.MULTIPLIERS`.
# - `no_windows FAMILY`: models with sliding windows are refused.
# - `rope_sections TIME HEIGHT WIDTH [interleaved]`: the numbers of pairs.
# - `window_period PERIOD [SIZE]`: a window of this size in all layers except the last of each
#   period. GGUF states a period, or a flag for each layer, only if they differ from this.
# - `window_flags PERIOD`: such a window without its size. GGUF has a flag for each layer.
# - `window_pattern PERIOD`: only GGUF's key for the layers with a window, which is always written.
#   The key in config.json is a row of `last_keys`.
KEY_GROUPS = _refer({
    "activation": "towers.rules:activation_keys",
    "attention_bias": "decoder_keys:ATTENTION_BIAS",
    "attention_biases": "decoder_keys:ATTENTION_BIASES",
    "attention_temperature": "rope:TEMPERATURE_KEYS",
    "biases": "decoder_keys:BIASES",
    "clamp": "decoder_keys:KQV_CLAMP",
    "deci_heads": "deci:DECI_HEADS",
    "deci_widths": "deci:DECI_WIDTHS",
    "decoder": "decoder_keys:DECODER_KEYS",
    "decoder_without_rope": "decoder_keys:KEYS_WITHOUT_ROPE",
    "deepstack": "rules:DEEPSTACK_KEYS",
    "delta": "delta:DELTA_KEYS",
    "exaone4_pattern": "rules:EXAONE4_PATTERN",
    "expert_groups": "experts:GROUP_KEYS",
    "expert_shares": "experts:SHARE_KEYS",
    "expert_width": "experts:EXPERT_WIDTH",
    "factors": "decoder_keys:list_multipliers",
    "gemma": "decoder_keys:GEMMA_KEYS",
    "gemma3_pattern": "rules:GEMMA3_PATTERN",
    "gemma3_rope": "rules:GEMMA3_ROPE",
    "gemma_rope": "rope:GEMMA_ROPE",
    "glm_indexers": "rules:GLM_INDEXER_KEYS",
    "granite_position": "hybrid:POSITION_KEYS",
    "head": "heads:HEAD_KEYS",
    "head_multiplier": "rope:HEAD_MULTIPLIER",
    "hybrid_mamba": "state_space:HYBRID_MAMBA_KEYS",
    "hybrid_mamba2": "state_space:HYBRID_MAMBA2_KEYS",
    "indexer": "latent:INDEXER_KEYS",
    "jamba_attention": "rules:JAMBA_ATTENTION_KEYS",
    "jamba_experts": "rules:JAMBA_EXPERT_KEYS",
    "latent": "latent:LATENT_KEYS",
    "latent_in_all_heads": "latent:KEYS_OF_ALL_HEADS",
    "layer_norm": "decoder_keys:LAYER_NORM",
    "leading_dense": "experts:LEADING_DENSE_KEYS",
    "long_amplitude": "rope:LONG_AMPLITUDE",
    "long_rope_factors": "rope:LONG_ROPE_FACTORS",
    "longrope": "rope:LONGROPE_KEYS",
    "mamba": "state_space:mamba_keys",
    "mamba2": "state_space:mamba2_keys",
    "minicpm_factors": "rules:MINICPM_FACTORS",
    "no_attention_bias": "decoder_keys:NO_BIASES",
    "no_mlp_bias": "decoder_keys:NO_MLP_BIASES",
    "no_windows": "layers:no_windows",
    "only_states": "state_space:ONLY_STATES_KEYS",
    "partial_rope": "rope:PARTIAL_ROPE",
    "plain_heads": "decoder_keys:PLAIN_HEADS",
    "rope": "rope:ROPE_KEYS",
    "rope_factors": "rope:ROPE_FACTORS",
    "rope_flag": "hybrid:ROPE_FLAG",
    "rope_sections": "rope:section_keys",
    "routed": "experts:ROUTED_KEYS",
    "router_gating": "experts:ROUTER_GATING",
    "shared_count": "experts:SHARED_COUNT_KEYS",
    "shared_width": "experts:SHARED_WIDTH",
    "silu": "decoder_keys:SILU",
    "sliding_window": "decoder_keys:SLIDING_WINDOW",
    "stated_shared_width": "experts:STATED_SHARED_WIDTH",
    "window_flags": "layers:window_flags",
    "window_pattern": "layers:pattern_keys",
    "window_pattern_of_first": "layers:pattern_of_first",
    "window_period": "layers:window_keys",
    "windows": "layers:WINDOW_KEYS",
    "yarn_multiplier": "latent:YARN_MULTIPLIER",
})  # fmt: skip

# The kinds of values of keys.
KINDS = _refer({
    "activation": "config_values:ACTIVATION",
    "by_channel": "towers.rules:BY_CHANNEL",
    "epsilon": "config_values:EPSILON",
    "factor": "config_values:FACTOR",
    "flag": "config_values:FLAG",
    "flags": "towers.rules:FLAGS",
    "heads": "config_values:HEADS",
    "heads_by_layer": "layers:HEADS_BY_LAYER",
    "increasing_layers": "layers:INCREASING",
    "layer_flags": "layers:FLAGS",
    "layer_numbers": "layers:NUMBERS",
    "layer_ones": "layers:ONES",
    "layer_words": "layers:WORDS",
    "layers": "config_values:LAYERS",
    "limits_by_layer": "layers:LIMITS_BY_LAYER",
    "one_over": "towers.rules:ONE_OVER",
    "size": "config_values:SIZE",
    "sizes_by_layer": "layers:SIZES_BY_LAYER",
})  # fmt: skip

# How the values of a tensor differ between the naming conventions: a `Change`, or a function that
# returns it for the words after its name.
#
# - `leading_axes COUNT`: of 1, in both conventions.
# - `rope_halves FIELD`, `rope_rows FIELD`: `heads` or `kv_heads`.
# - `scaled FIELD`: multiplied by it in GGUF.
# - `scaled_queries LAYERS [norm]`: the number of layers of the model that llama.cpp scales by
#   another rule.
# - `squeeze AXIS`, `squeeze_all AXIS`: in GGUF only, and in our modules, too.
# - `turn_heads [FIELD]`: the number of heads, `heads` by default.
STEPS = _refer({
    "as_column": "steps:AS_COLUMN",
    "by_head": "steps:BY_HEAD",
    "exp": "steps:EXP",
    "leading_axes": "steps:leading_axes",
    "leading_rows": "steps:PADDING_ROWS",
    "minus_exp": "steps:MINUS_EXP",
    "patch_rows": "steps:PATCH_ROWS",
    "plus_one": "steps:PLUS_ONE",
    "rest_of_logit_scale": "steps:REST_OF_LOGIT_SCALE",
    "rope_halves": "steps:rope_halves",
    "rope_rows": "steps:rope_rows",
    "scaled": "steps:scaled_by_field",
    "scaled_queries": "rules:scale_queries",
    "squeeze": "steps:squeeze",
    "squeeze_all": "steps:squeeze_all",
    "tiled_columns": "steps:TILED_COLUMNS",
    "transpose": "steps:TRANSPOSED",
    "unit_rows": "rules:normalize_rows",
    "turn_heads": "steps:turn_heads",
})  # fmt: skip

# Fused tensors: `fusions` in a file. A group can be a function, as those of keys.
FUSIONS = _refer({
    "experts": "experts:expert_forms",
    "experts_apart": "experts:forms_apart",
    "gate_up_exps": "experts:stacked_gate_up",
    "gated_queries": "delta:GATED_QUERIES",
    "latent": "latent:joined_form",
    "qkv": "fusions:qkv_form",
    "tiled": "delta:TILED_FORMS",
})  # fmt: skip

# The orders of rows in fused tensors.
ORDERS = _refer({
    "alternating": "rules:alternate_gate_and_up",
    "by_kv_head": "steps:order_by_kv_head",
    "delta_by_group": "rules:order_by_group",
    "delta_by_key_head": "rules:order_by_key_head",
    "keys_and_values": "latent:by_head",
})  # fmt: skip

# The functions that make a tensor from a config, and those that find the settings in the tensor.
MADE = {
    name: (f"{_PACKAGE}rope_factors:{make}", f"{_PACKAGE}rope_factors:{add}")
    for name, make, add in (
        ("rope_factors", "rope_factors", "with_llama3"),
        ("long_rope_factors", "long_factors", "with_long_factors"),
        ("padded_rope_factors", "padded_factors", "with_padded_llama3"),
        ("short_rope_factors", "short_factors", "with_short_factors"),
    )
}

# The classes of configs and of whole models.
MODELS = MappingProxyType({
    "decoder_with_shared_selection": (
        "weightctl.families.decoder:DecoderConfig",
        "weightctl.nn.models.shared_selection:SharedSelectionDecoder",
    ),
    "decoder_with_independent_streams": (
        "weightctl.families.compressed:IndependentStreamsConfig",
        "weightctl.nn.models.shared_selection:StreamingDecoder",
    ),
    "decoder": ("weightctl.families.decoder:DecoderConfig", "weightctl.nn.models.decoder:Decoder"),
    "encoder": (
        "weightctl.families.encoder:EncoderConfig", "weightctl.nn.models.encoder:TextEncoder",
    ),
})  # fmt: skip

# What rows cannot say, by the field of the `Family`.
RULES: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "standard": _refer({
        "bailing_hybrid": "rules:standard_bailing_hybrid",
        "bailingmoe": "rules:standard_bailingmoe",
        "bamba": "rules:standard_bamba",
        "cohere2": "rules:standard_cohere2",
        "deci": "deci:standard_deci",
        "openelm": "rules:standard_openelm",
        "cohere2_moe": "rules:standard_cohere2_moe",
        "deepseek_v2": "rules:standard_deepseek_v2",
        "deepseek_v32": "rules:standard_deepseek_v32",
        "default_rope": "rope:with_default_rope",
        "delta": "delta:standard_delta",
        "dots1": "rules:standard_dots1",
        "ernie4_5_moe": "rules:standard_ernie4_5_moe",
        "exaone_moe": "rules:standard_exaone_moe",
        "gemma3": "rules:standard_gemma3",
        "glm_moe_dsa": "rules:standard_glm_moe_dsa",
        "gpt_oss": "rules:standard_gpt_oss",
        "granitehybrid": "rules:standard_granitehybrid",
        "head": "heads:read_head",
        "hunyuan": "rules:standard_hunyuan",
        "layer_bases": "rules:standard_layer_bases",
        "laguna": "rules:standard_laguna",
        "lfm2": "rules:standard_lfm2",
        "lfm2_width": "rules:adjust_lfm2_width",
        "llama": "multimodal:standard_llama",
        "llama4": "rules:standard_llama4",
        "minimax_m2": "rules:standard_minimax_m2",
        "minimax_m3": "rules:standard_minimax_m3",
        "mistral3": "rules:standard_mistral3",
        "mistral4": "rules:standard_mistral4",
        "modernbert": "rules:standard_modernbert",
        "nomic_bert": "rules:standard_nomic_bert",
        "qwen3moe": "rules:standard_qwen3moe",
        "paligemma": "rules:standard_paligemma",
        "recurrent_gemma": "rules:standard_recurrent_gemma",
        "rope": "rope:standard",
        "step35": "rules:standard_step35",
        "rope_by_layer": "rope:standard_rope_by_layer",
        "text": "multimodal:standard_text",
        "unused_window": "layers:without_unused_window",
        "vision_text": "rules:standard_vision_text",
        "window_period": "layers:standard_period",
        "windows": "layers:standard_windows",
        "without_auto": "state_space:without_auto",
    }),
    "checked": _refer({
        "deci": "deci:check_deci",
        "decoder": "decoder_keys:check_decoder",
        "delta": "delta:check_delta",
        "exaone4": "rules:check_exaone4",
        "gemma2": "rules:check_gemma2",
        "gemma3": "rules:check_gemma3",
        "glm_moe_dsa": "rules:check_glm_moe_dsa",
        "granitehybrid": "rules:check_granitehybrid",
        "head": "heads:check_head",
        "heads_of_states": "state_space:check_heads",
        "hybrid": "hybrid:check_hybrid",
        "indexer": "latent:check_indexer",
        "jamba": "rules:check_jamba",
        "latent": "latent:check_latent",
        "llama4": "rules:check_llama4",
        "minicpm3": "rules:check_minicpm3",
        "minimax_m3": "rules:check_minimax_m3",
        "mistral3": "rules:check_mistral3",
        "mistral4": "rules:check_mistral4",
        "modernbert": "rules:check_modernbert",
        "phimoe": "rules:check_phimoe",
        "recurrent_gemma": "rules:check_recurrent_gemma",
        "states": "rules:check_states",
        "step35": "rules:check_step35",
        "windows": "layers:check_windows",
    }),
    "unloaded": _refer({
        "afmoe": "rules:find_unlike_afmoe",
        "cohere": "rules:find_unlike_cohere",
        "deepseek_ocr": "rules:find_unlike_deepseek_ocr",
        "delta": "delta:find_unlike_delta",
        "empty_sections": "rope:find_empty_sections",
        "equal_heads": "experts:find_shared_heads",
        "ernie4_5_moe": "rules:find_layers_without_experts",
        "expansion": "state_space:find_expansion",
        "glm_moe_dsa": "rules:find_unlike_glm_moe_dsa",
        "latent": "latent:find_unlike_latent",
        "llama4": "rules:find_unlike_llama4",
        "minimax_m3": "rules:find_unlike_minimax_m3",
        "lone_attention": "deci:find_lone_attention",
        "paligemma": "rules:find_unlike_paligemma",
        "qwen35": "rules:find_unlike_qwen35",
        "step35": "rules:find_unlike_step35",
    }),
    "default": _refer({
        "all layers": "hybrid:mark_all",
        "baichuan positions": "rules:find_baichuan_positions",
        "bamba indices": "rules:list_indices",
        "bamba layers": "rules:mark_indices",
        "context of table": "rules:find_context",
        "deepseek method": "rules:find_method",
        "ernie layers": "rules:mark_ernie_layers",
        "every third layer": "rules:mark_every_third",
        "exaone4 rope": "rules:mark_exaone4_rope",
        "exaone4 window": "rules:find_exaone4_window",
        "exaone4 windows": "rules:mark_exaone4_windows",
        "gemma root": "rules:find_embedding_scale",
        "gemma2 scalar": "rules:scalar_of_gemma2",
        "gemma3 scalar": "rules:scalar_of_gemma3",
        "gemma3 window": "rules:find_gemma3_window",
        "glm4_moe head": "rules:find_glm_head",
        "granite sparse layers": "rules:mark_granite_layers",
        "first layer heads": "rules:find_first_heads",
        "gates by head": "rules:has_gates_by_head",
        "hy4 indexers": "rules:mark_hy4_indexers",
        "head scale": "rules:find_head_scale",
        "heads by window": "rules:list_heads_by_window",
        "heads with window": "rules:find_windowed_heads",
        "heads without window": "rules:find_full_heads",
        "last layer": "rules:find_last_layer",
        "equal heads": "rules:repeat_heads",
        "llama4 layers": "rules:mark_llama4_layers",
        "llama4 norm": "rules:find_llama4_norm",
        "llama4 norms": "rules:has_llama4_norms",
        "llama4 step": "rules:mark_by_step",
        "modernbert pooling": "rules:find_pooling",
        "local rotated share": "rope:find_local_share",
        "local rotated size": "rope:find_local_size",
        "no indices": "rules:list_no_indices",
        "no layers": "hybrid:mark_none",
        "no limits": "rules:list_no_limits",
        "refact width": "rules:find_refact_width",
        "rotated share": "rope:find_rotated_share",
        "rotated size": "rope:find_rotary_size",
        "rows of table": "rules:find_rows",
        "shared share": "rules:find_shared_share",
        "stated window": "rules:find_stated_window",
        "whole shared experts": "rules:count_shared_experts",
        "windowed or dense": "rules:mark_windowed_or_dense",
    }),
    "differs": _refer({
        "deepseek_v2": "rules:find_difference_of_deepseek_v2",
        "distilbert": "rules:find_other_head",
        "exaone4": "rules:find_other_windows",
        "latent_scaling": "latent:find_difference_of_scaling",
        "mistral4": "rules:find_difference_of_mistral4",
        "unrotated": "rope:find_unrotated",
    }),
    "completed": _refer({
        "deci": "deci:complete_deci",
        "openelm": "rules:complete_openelm",
        "cohere2_moe": "rules:complete_cohere2_moe",
        "head": "heads:complete_head",
        "layer_bases": "rules:complete_layer_bases",
        "lfm2": "rules:complete_lfm2",
        "recurrent_gemma": "rules:complete_recurrent_gemma",
    }),
    "is_of": _refer({
        "camembert": "rules:is_camembert",
        "deepseek_v2": "rules:is_deepseek_v2",
        "xlm_roberta": "rules:is_xlm_roberta",
    }),
    "is_of_config": _refer({
        "alibi": "rules:has_alibi",
        "bidirectional": "rules:is_bidirectional",
        "dense_granite": "rules:is_dense_granite",
        "not_causal": "rules:is_not_causal",
        "qwen2": "rules:is_qwen2",
    }),
    "not_run": _refer({"loops": "rules:find_loops"}),
    "copied": _refer({"tied_output": "rules:copy_tied_output"}),
})  # fmt: skip

# The same of towers.
TOWER_RULES: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "standard": _refer({
        "gemma4": "towers.rules:standard_gemma4",
        "one_side": "towers.rules:with_one_side",
        "rope": "towers.rules:with_rope",
        "usual_sizes": "towers.rules:with_usual_sizes",
        "whisper_sizes": "towers.rules:with_whisper_sizes",
    }),
    "completed": _refer({"qwen2_5vl": "towers.rules:complete_qwen2_5vl"}),
    "checked": _refer({
        "gemma3": "towers.rules:check_gemma3",
        "gemma4": "towers.rules:check_gemma4",
        "glm4v": "towers.rules:check_glm4v",
        "internvl": "towers.rules:check_internvl",
        "llama4": "towers.rules:check_llama4",
        "merged": "towers.rules:find_merged",
        "output": "towers.rules:check_output",
        "paddleocr": "towers.rules:check_paddleocr",
        "patches": "towers.rules:check_patches",
        "qwen2_5vl": "towers.rules:check_qwen2_5vl",
        "qwen3vl": "towers.rules:check_qwen3vl",
        "voxtral": "towers.rules:check_voxtral",
    }),
    "default": _refer({
        "deepstack flags": "towers.rules:flag_deepstack",
        "deepstack layers": "towers.rules:list_deepstack",
        "full layers": "towers.rules:list_full_layers",
        "full period": "towers.rules:find_full_period",
        "gemma3 merge": "towers.rules:state_gemma3_merge",
        "gemma3 tokens": "towers.rules:count_gemma3_tokens",
        "internvl norm": "towers.rules:find_internvl_norm",
        "internvl tokens": "towers.rules:count_internvl_tokens",
        "root of pixels": "towers.rules:find_root_of_pixels",
        "side of positions": "towers.rules:find_image_size",
    }),
    "differs": _refer({
        "pixtral": "towers.rules:find_difference_of_pixtral",
        "qwen2_5vl": "towers.rules:find_difference_of_qwen2_5vl",
    }),
    "added_tensors": _refer({"limits": "towers.rules:with_limits"}),
})  # fmt: skip

"""What a family takes where config.json leaves something out is what transformers takes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from each import each
from family_stand_ins import OWN_TYPES, STAND_INS
from lazy import LazyModule, transformers
from weightctl.families import FAMILIES
from weightctl.families.common_keys import HARMLESS, REFUSED
from weightctl.families.configs import from_hugging_face
from weightctl.families.towers import TOWERS

modeling_auto: Any = LazyModule("transformers.models.auto.modeling_auto")

# Types of checkpoints with code of their own, which transformers lacks or reads as another type.
REMOTE = {"kimi_k2", "kimi_vl", "minimax_m3", *OWN_TYPES, *STAND_INS}
TYPES = [
    (name, kind)
    for name in FAMILIES
    for kind in FAMILIES[name].model_types
    if not {name, kind} & REMOTE
]
# Families of which the default config is none, since the type has several.
OTHERS = {"gemma_embedding", "granite4", "nemotron_h", "nemotron_h_moe", "qwen2_embed"}
# Their own config classes fill in what is in a config of another text model.
NESTED = {
    "audioflamingo3", "deepseek_ocr2", "exaone4_5", "gemma3", "gemma3n", "gemma4", "gemma4_unified",
    "glm4v", "glm4v_moe", "glm_ocr", "idefics3", "internvl", "kimi_k25", "lfm2_vl", "llama4",
    "llava", "minimax_m3_vl", "mistral3", "paddleocr_vl", "paligemma", "qwen2_5_omni",
    "qwen2_5_omni_thinker", "qwen2_5_vl", "qwen2_audio", "qwen2_vl", "qwen3_5", "qwen3_5_moe",
    "qwen3_asr", "qwen3_omni_moe", "qwen3_omni_moe_thinker", "qwen3_vl", "qwen3_vl_moe", "smolvlm",
    "step3p7", "voxtral",
}  # fmt: skip


def stated(kind: str) -> dict[str, Any]:
    """Return a whole config.json of a type, as transformers writes it by default."""
    stated: dict[str, Any] = json.loads(json.dumps(transformers.CONFIG_MAPPING[kind]().to_dict()))
    return stated


@each("name, kind", [each for each in TYPES if each[1] not in NESTED and each[0] not in OTHERS])
def test_a_config_that_says_nothing_is_that_of_transformers_by_default(
    name: str, kind: str
) -> None:
    family = FAMILIES[name].load()
    ours: Any = from_hugging_face(family, {"model_type": kind}, "here").config
    theirs: Any = from_hugging_face(family, stated(kind), "here").config
    differing = {
        field.name: (getattr(ours, field.name), getattr(theirs, field.name))
        for field in dataclasses.fields(ours)
        if getattr(ours, field.name) != getattr(theirs, field.name)
    }
    assert differing == {}


@each("name_of_family, kind", TYPES)
def test_the_class_of_a_type_is_that_of_transformers(name_of_family: str, kind: str) -> None:
    family = FAMILIES[name_of_family].load()
    is_encoder = family.config.endswith("EncoderConfig")
    classes = (
        modeling_auto.MODEL_MAPPING_NAMES
        if is_encoder
        else modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    )
    # Some classes are not among those that its `AutoModelForCausalLM` finds.
    known = classes.get(kind) or modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.get(kind)
    name = family.model_types[kind].class_name
    assert name == known if known else hasattr(transformers, name)


@each("tower, kind", [(name, kind) for name in TOWERS for kind in TOWERS[name].model_types])
def test_the_class_of_a_multimodal_type_is_that_of_transformers(tower: str, kind: str) -> None:
    known = (
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES
        | modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES
    )
    assert TOWERS[tower].load().family.model_types[kind].class_name == known[kind]


# Keys of configs that say nothing of what a model computes, or that the tokenizer has.
UNREAD = HARMLESS | {
    "architectures", "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop",
    "classifier_dropout", "dtype", "embd_pdrop", "embedding_dropout", "hidden_dropout",
    "hidden_dropout_prob", "id2label", "initializer_range", "model_type", "output_router_logits",
    "pretraining_tp", "reorder_and_upcast_attn", "resid_dropout", "resid_pdrop",
    "residual_dropout", "rope_parameters", "router_aux_loss_coef", "router_jitter_noise",
    "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj",
    # What other keys say.
    "_sliding_window_pattern", "max_window_layers", "original_max_position_embeddings",
    "layer_types",
}  # fmt: skip
# And those that say nothing in one type.
_OF_STATES = {
    "chunk_size", "mamba_chunk_size", "num_logits_to_keep", "rescale_prenorm_residual",
    "residual_in_fp32", "time_step_floor", "time_step_init_scheme", "time_step_max",
    "time_step_min", "time_step_scale", "use_associative_scan", "use_mamba_kernels", "use_mambapy",
}  # fmt: skip
UNREAD_OF = {
    "phi4_multimodal": {"audio_config", "vision_config"},
    "recurrent_gemma": {"w_init_variance_scale", "final_w_init_variance_scale"},
    "bamba": {*_OF_STATES, "z_loss_coefficient"},
    "falcon_h1": {*_OF_STATES, "mamba_expand"},
    **{key: {*_OF_STATES, "intermediate_size"} for key in ("mamba", "falcon_mamba")},
    "mamba2": {*_OF_STATES, "time_step_rank"},
    "granitemoehybrid": _OF_STATES,
    "jamba": _OF_STATES,
    "bloom": {"slow_but_exact"},
    "falcon": {"multi_query"},
    "gpt_bigcode": {
        "attention_softmax_in_fp32",
        "scale_attention_softmax_in_fp32",
        "num_key_value_heads",
    },
    "gpt_neox": {"is_decoder"},
    "mpt": {
        "emb_pdrop",
        "embedding_fraction",
        "init_device",
        "learned_pos_emb",
        "logit_scale",
        "no_bias",
        "norm_type",
        "verbose",
    },
    **{
        kind: {"tie_word_embeddings"}
        for kind in ("bert", "roberta", "xlm-roberta", "camembert", "mpnet")
    },
    "distilbert": {
        "dropout",
        "is_decoder",
        "qa_dropout",
        "sinusoidal_pos_embds",
        "seq_classif_dropout",
        "tie_word_embeddings",
    },
    "eurobert": {"classifier_pooling", "mask_token_id", "tie_word_embeddings"},
    # They follow from the sizes of a head's parts.
    "deepseek_v2": {"head_dim", "qk_head_dim"},
    # The first three are read in the form of published checkpoints; there is always one KV head.
    "deepseek_v4": {
        "compress_rates",
        "mlp_layer_types",
        "partial_rotary_factor",
        "num_key_value_heads",
        "num_nextn_predict_layers",
    },
    # Its experts are in no groups, unless `topk_method` says so.
    "deepseek_ocr2_text": {"head_dim", "n_group", "topk_group"},
    "deepseek_v32": {"head_dim", "mlp_layer_types", "qk_head_dim"},
    "glm_moe_dsa": {"head_dim", "mlp_layer_types", "qk_head_dim"},
    "glm4_moe_lite": {"qk_head_dim"},
    "bailing_hybrid": {
        "layer_group_size",
        "linear_head_dim",
        "linear_conv_kernel_dim",
        "mtp_loss_scaling_factor",
        "qk_head_dim",
        "rope_theta",
    },
    "cohere2_moe": {
        "layer_norm_eps",
        "rms_norm_eps",
        "prefix_dense_intermediate_size",
        "rope_scaling",
        "rope_theta",
        "sliding_window_pattern",
    },
    "opt": {"dropout", "init_std", "layerdrop"},
    "mellum": {"mtp_layer_types", "mtp_mlp_layer_types", "num_nextn_predict_layers"},
    "youtu": {"embedding_initializer_range", "head_dim", "qk_head_dim"},
    "hy_v3": {"enable_moe_fp32_combine"},
    "lfm2": {
        "block_auto_adjust_ff_dim",
        "block_ffn_dim_multiplier",
        "block_multiple_of",
        "full_attn_idxs",
    },
    "deepseek_v3": {"head_dim", "num_nextn_predict_layers", "qk_head_dim"},
    "modernbert": {
        "classifier_activation",
        "classifier_bias",
        "classifier_pooling",
        "cls_token_id",
        "decoder_bias",
        "deterministic_flash_attn",
        "initializer_cutoff_factor",
        "mlp_dropout",
        "sep_token_id",
        "sparse_pred_ignore_index",
        "sparse_prediction",
        "tie_word_embeddings",
    },
    # Its `standard` makes types of layers of it.
    "dots1": {"sliding_window"},
    "exaone4": {"sliding_window_pattern"},
    "exaone_moe": {"sliding_window_pattern"},
    # A bound that only applies in training.
    "gemma3n_text": {"altup_coef_clip"},
    "glm4_moe": {"num_nextn_predict_layers"},
    "hunyuan_v1_dense": {"eod_token_id"},
    "jina_embeddings_v3": {"tie_word_embeddings"},
    "hunyuan_v1_moe": {"eod_token_id", "sep_token_id"},
    "kimi_linear": {"head_dim", "qk_head_dim"},
    "minimax_m3_vl_text": {"hidden_act"},
    "mistral4": {"head_dim", "qk_head_dim"},
    "minicpm3": {"head_dim", "qk_head_dim"},
    "phimoe": {"input_jitter_noise"},
    "qwen3_moe": {"num_local_experts"},
    "qwen3_vl_moe_text": {"num_local_experts"},
    "smollm3": {"sliding_window"},
    # What its `standard` and other keys say.
    "t5": {
        "dense_act_fn",
        "dropout_rate",
        "initializer_factor",
        "is_decoder",
        "is_gated_act",
        "scale_decoder_outputs",
    },
}


@each("name, kind", [each for each in TYPES if each[1] not in NESTED and each[0] not in OTHERS])
def test_every_key_that_transformers_reads_is_read(name: str, kind: str) -> None:
    family = FAMILIES[name].load()
    read = {key.hugging_face.partition(".")[0] for key in family.keys} | REFUSED.keys()
    fixed = family.model_types[kind].fixed
    aside = {key.hugging_face for key in family.keys if key.field in fixed}
    assert stated(kind).keys() - read - aside - UNREAD - UNREAD_OF.get(kind, set()) == set()

"""What tiny multimodal checkpoints are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

SIDE, PATCH = 56, 14
TINY_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": SIDE,
    "patch_size": PATCH,
}
TINY_TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}


class Multimodal(NamedTuple):
    """What a checkpoint is made of: its `model_type`, its config, and its image tokens.

    - `ids`: maps keys of config.json to tokens.
    - `processor`: the content of preprocessor_config.json.
    - `family`: the family of its text model, and `projector` the name of its tower.
    - `is_qwen`: whether the config of the image encoder has the keys of Qwen's models.
    """

    model_type: str
    text: dict[str, Any]
    vision: dict[str, Any]
    outer: dict[str, Any]
    ids: dict[str, str]
    processor: dict[str, Any]
    family: str
    projector: str
    more_tokens: tuple[str, ...] = ()
    is_qwen: bool = False


QWEN_VISION = {"depth": 4, "num_heads": 2, "patch_size": PATCH}
_QWEN_3 = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
_QWEN_IDS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_QWEN_TOWERS = {"qwen2_vl": "qwen2vl_merger", "qwen2_5_vl": "qwen2.5vl_merger"}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
# The text model of Qwen3.5: a gated delta net in one layer, and attention in the other.
_DELTA: dict[str, Any] = {
    "head_dim": 32,
    "rope_parameters": {**_SECTIONS, "partial_rotary_factor": 0.25},
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.25, 0.5]}


def _qwen(model_type: str, family: str, text: dict[str, Any], vision: dict[str, Any]) -> Multimodal:
    """Return a case of one of Qwen's models."""
    return Multimodal(
        model_type,
        {"rope_parameters": _SECTIONS, **text},
        vision,
        {},
        _QWEN_IDS,
        {**_HALF, "size": {"longest_edge": 3 * SIDE}},
        family,
        _QWEN_TOWERS.get(model_type, "qwen3vl_merger"),
        is_qwen=True,
    )


CASES = {
    "gemma3": Multimodal(
        "gemma3",
        {"query_pre_attn_scalar": 8, "sliding_window": 16},
        {"vision_use_head": False},
        {"mm_tokens_per_image": 4},
        {
            "boi_token_index": "<start_of_image>",
            "eoi_token_index": "<end_of_image>",
            "image_token_index": "<image_soft_token>",
        },
        {**_HALF, "image_seq_length": 4, "size": {"height": SIDE, "width": SIDE}},
        "gemma3",
        "gemma3",
    ),
    "mistral3": Multimodal(
        "mistral3",
        {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5},
        {"model_type": "pixtral", "head_dim": 16, "image_size": 2 * SIDE},
        {},
        {"image_token_index": "[IMG]"},
        {**_HALF, "size": {"longest_edge": 2 * SIDE}},
        "mistral3",
        "pixtral",
        ("[IMG_BREAK]", "[IMG_END]"),
    ),
    "llava": Multimodal(
        "llava",
        {"model_type": "mistral", "sliding_window": None},
        {
            "model_type": "pixtral",
            "head_dim": 16,
            "image_size": 2 * SIDE,
            "hidden_act": "silu",
        },
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        {"image_token_index": "[IMG]"},
        {**_HALF, "size": {"longest_edge": 2 * SIDE}},
        "llama",
        "pixtral",
        ("[IMG_BREAK]", "[IMG_END]"),
    ),
    "idefics3": Multimodal(
        "idefics3",
        {"model_type": "llama"},
        {},
        {"scale_factor": 2},
        {"image_token_id": "<image>"},
        {**_HALF, "size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE}},
        "llama",
        "idefics3",
        ("<fake_token_around_image>", "<global-img>", "<row_1_col_1>"),
    ),
    "smolvlm": Multimodal(
        "smolvlm",
        {"model_type": "llama"},
        {},
        {"scale_factor": 2},
        {"image_token_id": "<image>"},
        {**_HALF, "size": {"longest_edge": 2 * SIDE}},
        "llama",
        "idefics3",
        ("<fake_token_around_image>", "<global-img>", "<row_1_col_1>"),
    ),
    "llama4": Multimodal(
        "llama4",
        {
            "intermediate_size_mlp": 64,
            "num_hidden_layers": 4,
            "num_local_experts": 2,
            "layer_types": None,
        },
        {
            "intermediate_size": 128,
            "vision_output_dim": 32,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
        },
        {},
        {
            "boi_token_index": "<|image_start|>",
            "eoi_token_index": "<|image_end|>",
            "image_token_index": "<|patch|>",
        },
        {**_HALF, "size": {"height": SIDE, "width": SIDE}},
        "llama4",
        "llama4",
        ("<|image|>",),
    ),
    "gemma4": Multimodal(
        "gemma4",
        {"hidden_size_per_layer_input": 0, "sliding_window": 16},
        {
            "head_dim": 16,
            "num_key_value_heads": 2,
            "position_embedding_size": 64,
            "use_clipped_linears": True,
            "standardize": True,
        },
        {},
        {
            "boi_token_id": "<|image>",
            "eoi_token_id": "<image|>",
            "image_token_id": "<|image|>",
        },
        {"image_mean": [0.0] * 3, "image_std": [1.0] * 3, "size": {"longest_edge": 9 * 42}},
        "gemma4",
        "gemma4v",
    ),
    "internvl": Multimodal(
        "internvl",
        {"model_type": "qwen2"},
        {"attention_bias": True, "num_hidden_layers": 4},
        {
            "image_seq_length": 4,
            "tie_word_embeddings": False,
            "min_dynamic_patch": 1,
            "max_dynamic_patch": 6,
        },
        {"image_token_id": "<IMG_CONTEXT>"},
        {**_HALF, "size": {"height": SIDE, "width": SIDE}},
        "qwen2",
        "internvl",
        ("<img>", "</img>"),
    ),
    "internvl_plain": Multimodal(
        "internvl",
        {"model_type": "qwen3"},
        {"hidden_act": "silu", "num_hidden_layers": 4},
        {"image_seq_length": 16, "downsample_ratio": 1.0, "tie_word_embeddings": False},
        {"image_token_id": "<IMG_CONTEXT>"},
        {**_HALF, "size": {"height": SIDE, "width": SIDE}},
        "qwen3",
        "internvl",
        ("<img>", "</img>"),
    ),
    "qwen2_vl": _qwen("qwen2_vl", "qwen2vl", {}, {"embed_dim": 32, "hidden_size": 32}),
    "qwen2_5_vl": _qwen(
        "qwen2_5_vl",
        "qwen2vl",
        {},
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1, 3],
            "tokens_per_second": 2,
        },
    ),
    "qwen3_vl": _qwen(
        "qwen3_vl",
        "qwen3vl",
        {},
        {**_QWEN_3, "deepstack_visual_indexes": [0, 2]},
    ),
    "qwen3_vl_moe": _qwen(
        "qwen3_vl_moe",
        "qwen3vlmoe",
        {"num_local_experts": 4, "moe_intermediate_size": 24},
        {**_QWEN_3, "deepstack_visual_indexes": [1]},
    ),
    "qwen3_5": _qwen("qwen3_5", "qwen35", _DELTA, _QWEN_3),
    "qwen3_5_moe": _qwen(
        "qwen3_5_moe",
        "qwen35moe",
        {
            **_DELTA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 16,
        },
        _QWEN_3,
    ),
}

"""Tiny multimodal checkpoints, as transformers writes them, with their other files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import transformers
from transformers import AddedToken, PreTrainedTokenizerFast

from family_tokenizers import LLAMA3, byte_level

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

_SIDE, _PATCH = 56, 14
_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": _SIDE,
    "patch_size": _PATCH,
}
_TEXT = {
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


_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.25, 0.5]}

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
        {**_HALF, "image_seq_length": 4, "size": {"height": _SIDE, "width": _SIDE}},
        "gemma3",
        "gemma3",
    ),
    "mistral3": Multimodal(
        "mistral3",
        {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5},
        {"model_type": "pixtral", "head_dim": 16, "image_size": 2 * _SIDE},
        {},
        {"image_token_index": "[IMG]"},
        {**_HALF, "size": {"longest_edge": 2 * _SIDE}},
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
            "image_size": 2 * _SIDE,
            "hidden_act": "silu",
        },
        {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        {"image_token_index": "[IMG]"},
        {**_HALF, "size": {"longest_edge": 2 * _SIDE}},
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
        {**_HALF, "size": {"longest_edge": _SIDE}, "max_image_size": {"longest_edge": _SIDE}},
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
        {**_HALF, "size": {"longest_edge": 2 * _SIDE}},
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
        {**_HALF, "size": {"height": _SIDE, "width": _SIDE}},
        "llama4",
        "llama4",
        ("<|image|>",),
    ),
}


def make_multimodal(name: str, into: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a case's checkpoint into a new directory."""
    transformers.utils.logging.disable_progress_bar()
    case = CASES[name]
    tokenizer = _tokenizer(case)
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in case.ids.items()}
    config = transformers.CONFIG_MAPPING[case.model_type](
        text_config={**_TEXT, "vocab_size": len(tokenizer), **case.text},
        vision_config={**_VISION, **case.vision},
        **case.outer,
        **ids,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if parameter.dim() > 1 and "embed_tokens" not in key:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
            elif "norm" in key and key.endswith("weight"):
                parameter.add_(0.25 * noise)
            else:
                parameter.copy_(0.2 * noise)
        model.tie_weights()
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    (into / "preprocessor_config.json").write_text(json.dumps(case.processor))


def encode_in_transformers(path: Path, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the vectors of an image's tokens, [tokens, hidden]; `pixels` are [3, height, width].

    The pixels are already scaled and normalized.
    """
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    given: dict[str, Any] = {"pixel_values": torch.from_numpy(pixels)[None]}
    kind = model.config.model_type
    if kind in {"mistral3", "llava"}:
        given["image_sizes"] = torch.tensor([pixels.shape[1:]])
    if kind in {"idefics3", "smolvlm"}:
        given["pixel_values"] = given["pixel_values"][None]
    with torch.no_grad():
        if kind == "llama4":
            found = model.get_image_features(**given).last_hidden_state
            found = model.multi_modal_projector(found.reshape(-1, found.shape[-1]))
        else:
            found = model.model.get_image_features(**given)
    found = getattr(found, "pooler_output", found)
    if isinstance(found, list | tuple):
        found = torch.cat(list(found))
    return found.reshape(-1, model.config.get_text_config().hidden_size).numpy()


def _tokenizer(case: Multimodal) -> Any:
    made = byte_level(
        LLAMA3,
        *("<|begin_of_text|>", "<|eot_id|>", *case.ids.values(), *case.more_tokens),
        first="<|begin_of_text|>",
    )
    made.add_tokens([AddedToken("\n\n", normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )

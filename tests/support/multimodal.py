"""Tiny checkpoints with towers for images and for speech, as transformers writes them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any, NamedTuple

from family_tokenizers import LLAMA3, byte_level
from lazy import load_file, save_file, torch, transformers

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


# What tiny multimodal checkpoints are made of.

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


_MISTRAL_3 = Multimodal(
    "mistral3",
    {"model_type": "mistral", "sliding_window": None, "rms_norm_eps": 1e-5},
    {"model_type": "pixtral", "head_dim": 16, "image_size": 2 * SIDE},
    {},
    {"image_token_index": "[IMG]"},
    {**_HALF, "size": {"longest_edge": 2 * SIDE}},
    "mistral3",
    "pixtral",
    ("[IMG_BREAK]", "[IMG_END]"),
)
_IDEFICS_3 = Multimodal(
    "idefics3",
    {"model_type": "llama"},
    {},
    {"scale_factor": 2},
    {"image_token_id": "<image>"},
    {**_HALF, "size": {"longest_edge": SIDE}, "max_image_size": {"longest_edge": SIDE}},
    "llama",
    "idefics3",
    ("<fake_token_around_image>", "<global-img>", "<row_1_col_1>"),
)
_INTERN = Multimodal(
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
)
_GLM_4 = Multimodal(
    "glm4v",
    {"rope_parameters": _SECTIONS},
    {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32, "image_size": 6 * PATCH},
    {},
    {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    },
    {**_HALF, "size": {"longest_edge": 6 * PATCH}},
    "glm4v",
    "glm4v",
    is_qwen=True,
)
_LFM_2 = Multimodal(
    "lfm2_vl",
    {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]},
    {"patch_size": 16, "num_patches": 256, "vision_use_head": False},
    {"projector_hidden_size": 48},
    {"image_token_id": "<image>"},
    {**_HALF, "size": {"longest_edge": 256}},
    "lfm2",
    "lfm2",
    ("<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"),
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
    "mistral3": _MISTRAL_3,
    "llava": _MISTRAL_3._replace(
        model_type="llava",
        text={"model_type": "mistral", "sliding_window": None},
        vision={**_MISTRAL_3.vision, "hidden_act": "silu"},
        outer={"vision_feature_layer": -1, "vision_feature_select_strategy": "full"},
        family="llama",
    ),
    "idefics3": _IDEFICS_3,
    "smolvlm": _IDEFICS_3._replace(
        model_type="smolvlm", processor={**_HALF, "size": {"longest_edge": 2 * SIDE}}
    ),
    "lfm2_vl": _LFM_2,
    "lfm2_vl_plain": _LFM_2._replace(
        outer={"projector_hidden_size": 40, "projector_use_layernorm": False}
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
    "glm4v": _GLM_4,
    "glm4v_moe": _GLM_4._replace(
        model_type="glm4v_moe",
        text={**_GLM_4.text, "n_routed_experts": 4, "num_experts_per_tok": 2,
              "moe_intermediate_size": 24},
        family="glm4v_moe",
    ),
    "glm_ocr": _GLM_4._replace(model_type="glm_ocr"),
    "internvl": _INTERN,
    "internvl_plain": _INTERN._replace(
        text={"model_type": "qwen3"},
        vision={"hidden_act": "silu", "num_hidden_layers": 4},
        outer={"image_seq_length": 16, "downsample_ratio": 1.0, "tie_word_embeddings": False},
        family="qwen3",
    ),
    "paddleocr_vl": Multimodal(
        "paddleocr_vl",
        {"rope_parameters": _SECTIONS, "tie_word_embeddings": False},
        {},
        {"tie_word_embeddings": False},
        {
            "image_token_id": "<|IMAGE_PLACEHOLDER|>",
            "vision_start_token_id": "<|IMAGE_START|>",
            "vision_end_token_id": "<|IMAGE_END|>",
        },
        {**_HALF, "size": {"longest_edge": SIDE}, "min_pixels": SIDE**2, "max_pixels": 4 * SIDE**2},
        "paddleocr",
        "paddleocr",
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
    "qwen3_vl": _qwen("qwen3_vl", "qwen3vl", {}, {**_QWEN_3, "deepstack_visual_indexes": [0, 2]}),
    "qwen3_vl_moe": _qwen("qwen3_vl_moe", "qwen3vlmoe",
                          {"num_local_experts": 4, "moe_intermediate_size": 24},
                          {**_QWEN_3, "deepstack_visual_indexes": [1]}),
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
}  # fmt: skip


# Tiny multimodal checkpoints, as transformers writes them, with their other files.


def make_multimodal(name: str, into: Path, *, dtype: str = "bfloat16") -> None:
    """Write a case's checkpoint into a new directory."""
    transformers.utils.logging.disable_progress_bar()
    case = CASES[name]
    tokenizer = make_tokenizer(*case.ids.values(), *case.more_tokens)
    ids = {key: tokenizer.convert_tokens_to_ids(token) for key, token in case.ids.items()}
    config = transformers.CONFIG_MAPPING[case.model_type](
        text_config={**TINY_TEXT, "vocab_size": len(tokenizer), **case.text},
        vision_config={**(QWEN_VISION if case.is_qwen else TINY_VISION), **case.vision},
        **case.outer,
        **ids,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    fill(model, getattr(torch, dtype))
    model.save_pretrained(into)
    if case.model_type == "qwen3_vl_moe":
        _transpose_experts(into / "model.safetensors")
    tokenizer.save_pretrained(into)
    (into / "preprocessor_config.json").write_text(json.dumps(case.processor))


def fill(model: Any, dtype: torch.dtype) -> None:
    """Give the parameters of a model random values of a dtype."""
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
        stored = model.state_dict().keys()
        for key, buffer in model.named_buffers():
            if key.endswith(("_min", "_max")):  # limits of inputs and outputs
                buffer.copy_(torch.tensor(-1.5 if key.endswith("_min") else 1.25))
            elif "std_" in key:
                buffer.copy_(torch.randn_like(buffer))
            if key in stored:
                buffer.data = buffer.data.to(dtype)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)


def encode_in_transformers(path: Path, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the vectors of an image's tokens, [tokens, hidden]; `pixels` are [3, height, width].

    The pixels are already scaled and normalized.
    """
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    given: dict[str, Any] = {"pixel_values": torch.from_numpy(pixels)[None]}
    kind = model.config.model_type
    if kind.startswith(("qwen", "glm")):
        return _encode_frames(model, torch.from_numpy(pixels))
    if kind == "gemma4":
        return _encode_patches(model, torch.from_numpy(pixels))
    if kind == "paddleocr_vl":
        patches = _cut(torch.from_numpy(pixels), PATCH).permute(0, 1, 4, 2, 3)
        given = {
            "pixel_values": patches.flatten(0, 1),
            "image_grid_thw": torch.tensor([[1, *patches.shape[:2]]]),
        }
    if kind == "lfm2_vl":
        side = model.config.vision_config.patch_size
        patches = _cut(torch.from_numpy(pixels), side)
        given = {
            "pixel_values": patches.reshape(1, patches.shape[0] * patches.shape[1], -1),
            "spatial_shapes": torch.tensor([patches.shape[:2]]),
            "pixel_attention_mask": torch.ones(
                1, patches.shape[0] * patches.shape[1], dtype=torch.long
            ),
        }
    if kind == "internvl":  # llama.cpp adds the positions in another order, as the note says
        positions = model.model.vision_tower.embeddings.position_embeddings
        positions.data = positions.data.roll(1, dims=1)
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


def _encode_frames(model: Any, pixels: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the vectors of an image for Qwen's models, with those of deepstack beside them."""
    channels, height, width = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    frames = (
        pixels[None]
        .expand(2, -1, -1, -1)
        .reshape(2, channels, rows // 2, 2, PATCH, columns // 2, 2, PATCH)
    )
    patches = frames.permute(2, 5, 3, 6, 1, 0, 4, 7).reshape(rows * columns, -1)
    with torch.no_grad():
        found = model.model.get_image_features(patches, torch.tensor([[1, rows, columns]]))
    parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    return torch.cat([each[0] for each in parts], dim=-1).numpy()


def _cut(pixels: torch.Tensor, side: int) -> torch.Tensor:
    """Return the patches of an image, [rows, columns, height, width, channels]."""
    channels, height, width = pixels.shape
    cut = pixels.reshape(channels, height // side, side, width // side, side)
    return cut.permute(1, 3, 2, 4, 0)


def _encode_patches(model: Any, pixels: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the vectors of an image for Gemma 4, whose patches have the channels last."""
    channels, height, width = pixels.shape
    rows, columns = height // PATCH, width // PATCH
    patches = pixels.reshape(channels, rows, PATCH, columns, PATCH).permute(1, 3, 2, 4, 0)
    places = torch.tensor([[x, y] for y in range(rows) for x in range(columns)])
    with torch.no_grad():
        found = model.model.get_image_features(patches.reshape(1, rows * columns, -1), places[None])
    return torch.cat(list(found.pooler_output)).numpy()


def _transpose_experts(path: Path) -> None:
    """Store the matrices of experts as on the Hub; transformers writes them transposed."""
    tensors = load_file(path)
    for name in [each for each in tensors if ".experts." in each]:
        tensors[name] = tensors[name].mT.contiguous()
    save_file(tensors, path, {"format": "pt"})


def change_vision(model: Path, into: Path, **changes: Any) -> Path:
    """Return a copy of a model whose config.json has other values in `vision_config`."""
    shutil.copytree(model, into)
    document = json.loads((into / "config.json").read_text())
    document["vision_config"] |= changes
    (into / "config.json").write_text(json.dumps(document))
    return into


def make_tokenizer(*tokens: str) -> Any:
    made = byte_level(LLAMA3, "<|begin_of_text|>", "<|eot_id|>", *tokens, first="<|begin_of_text|>")
    made.add_tokens([transformers.AddedToken("\n\n", normalized=False)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )


# Tiny multimodal checkpoints with audio encoders, as transformers writes them.

_BINS, _SECONDS = 128, 30
_AUDIO = {
    "hidden_size": 32,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_mel_bins": _BINS,
}
_WHISPER = {
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "encoder_layers": 3,
    "encoder_attention_heads": 4,
    "num_mel_bins": _BINS,
}
_CLASSES = {
    "qwen2_audio": "Qwen2AudioForConditionalGeneration",
    "voxtral": "VoxtralForConditionalGeneration",
    "audioflamingo3": "AudioFlamingo3ForConditionalGeneration",
}


class Speech(NamedTuple):
    """What a checkpoint is made of; `ids` maps keys of config.json to tokens."""

    text: str
    audio: dict[str, Any]
    ids: dict[str, str]
    more_tokens: tuple[str, ...] = ()


SPEECH_CASES = {
    "qwen2_audio": Speech("qwen2", _WHISPER, {"audio_token_index": "<|AUDIO|>"},
                          ("<|audio_bos|>", "<|audio_eos|>")),
    "voxtral": Speech("llama", _AUDIO, {"audio_token_id": "[AUDIO]"}, ("[BEGIN_AUDIO]",)),
    "audioflamingo3": Speech("qwen2", _AUDIO, {"audio_token_id": "<sound>"}),
}  # fmt: skip


def make_speech(name: str, into: Path) -> None:
    """Write a case's checkpoint into a new directory."""
    transformers.utils.logging.disable_progress_bar()
    case = SPEECH_CASES[name]
    tokenizer = make_tokenizer(*case.ids.values(), *case.more_tokens)
    config = transformers.CONFIG_MAPPING[name](
        text_config={"model_type": case.text, **TINY_TEXT, "vocab_size": len(tokenizer)},
        audio_config=case.audio,
        **{key: tokenizer.convert_tokens_to_ids(token) for key, token in case.ids.items()},
    )
    torch.manual_seed(0)
    model = _class(config)._from_config(config, dtype=torch.float32, attn_implementation="eager")
    fill(model, torch.bfloat16)
    model.save_pretrained(into)
    tokenizer.save_pretrained(into)
    (into / "preprocessor_config.json").write_text(json.dumps({"feature_size": _BINS}))


def encode_speech_in_transformers(
    path: Path, samples: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the vectors of the tokens of 30 seconds, [tokens, hidden]."""
    config = transformers.AutoConfig.from_pretrained(path)
    model = _class(config).from_pretrained(path, dtype=torch.float32, attn_implementation="eager")
    extractor = transformers.WhisperFeatureExtractor(feature_size=_BINS, chunk_length=_SECONDS)
    spectrum = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features
    inner = model.model
    with torch.no_grad():
        if config.model_type == "audioflamingo3":
            encoded = inner.audio_tower(
                spectrum, input_features_mask=torch.ones(spectrum.shape[::2])
            )
        else:
            encoded = inner.audio_tower(spectrum)
        states = encoded.last_hidden_state
        if config.model_type == "voxtral":
            states = states.reshape(-1, config.audio_config.intermediate_size)
        return inner.multi_modal_projector(states).reshape(-1, TINY_TEXT["hidden_size"]).numpy()


def _class(config: Any) -> Any:
    return getattr(transformers, _CLASSES[config.model_type])

"""Tiny multimodal checkpoints, as transformers writes them, with their other files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AddedToken, PreTrainedTokenizerFast

from family_tokenizers import LLAMA3, byte_level
from multimodal_cases import CASES, PATCH, QWEN_VISION, TINY_TEXT, TINY_VISION

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np


def make_multimodal(name: str, into: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
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
    fill(model, dtype)
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
    if kind.startswith("qwen"):
        return _encode_frames(model, torch.from_numpy(pixels))
    if kind == "gemma4":
        return _encode_patches(model, torch.from_numpy(pixels))
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


def make_tokenizer(*tokens: str) -> Any:
    """Return a tokenizer that has these tokens."""
    made = byte_level(LLAMA3, "<|begin_of_text|>", "<|eot_id|>", *tokens, first="<|begin_of_text|>")
    made.add_tokens([AddedToken("\n\n", normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>"
    )

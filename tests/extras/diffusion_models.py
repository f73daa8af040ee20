"""Tiny diffusion transformers that diffusers makes, and its own conversion of original files."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from lazy import load_file, torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["MODELS", "TinyDiffusion", "convert_original", "load_directory", "load_gguf", "run"]

# The width of Flux in diffusers' conversion of original files, which does not read it from them.
_FLUX_WIDTH, _TINY_WIDTH = 3072, 256


class TinyDiffusion(NamedTuple):
    """A tiny model of a family: diffusers' class, its config, and the inputs of a step."""

    class_name: str
    config: Mapping[str, Any]
    inputs: Callable[[], Mapping[str, Any]]

    def save(self, directory: Path) -> Path:
        """Write the model with seeded random weights, in bfloat16."""
        torch.manual_seed(0)
        made = _class(self.class_name)(**self.config)
        # Some weights are zeros or ones at first.
        for value in made.parameters():
            torch.nn.init.normal_(value, std=0.05)
        made.bfloat16().save_pretrained(directory)
        return directory


def _class(name: str) -> Any:
    return getattr(pytest.importorskip("diffusers"), name)


def _flux_inputs() -> Mapping[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 4, 16),
        "encoder_hidden_states": torch.randn(1, 3, 32),
        "pooled_projections": torch.randn(1, 32),
        "timestep": torch.tensor([0.5]),
        "guidance": torch.tensor([3.5]),
        "img_ids": torch.zeros(4, 3),
        "txt_ids": torch.zeros(3, 3),
    }


def _sd3_inputs() -> Mapping[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 4, 8, 8),
        "encoder_hidden_states": torch.randn(1, 3, 32),
        "pooled_projections": torch.randn(1, 64),
        "timestep": torch.tensor([0.5]),
    }


def _qwen_inputs() -> Mapping[str, Any]:
    torch.manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 4, 16),
        "encoder_hidden_states": torch.randn(1, 3, 32),
        "encoder_hidden_states_mask": torch.ones(1, 3, dtype=torch.bool),
        "timestep": torch.tensor([0.5]),
        "img_shapes": [(1, 2, 2)],
    }


def _wan_inputs() -> Mapping[str, torch.Tensor]:
    torch.manual_seed(1)
    return {
        "hidden_states": torch.randn(1, 16, 1, 4, 4),
        "encoder_hidden_states": torch.randn(1, 3, 32),
        "timestep": torch.tensor([5]),
    }


def _wan_image_inputs() -> Mapping[str, torch.Tensor]:
    inputs = {**_wan_inputs(), "encoder_hidden_states_image": torch.randn(1, 5, 24)}
    return {**inputs, "hidden_states": torch.randn(1, 36, 1, 4, 4)}


_WAN = {"num_attention_heads": 2, "attention_head_dim": 128, "text_dim": 32, "freq_dim": 32,
        "ffn_dim": 512, "num_layers": 3}  # fmt: skip

MODELS = {
    "flux": TinyDiffusion(
        "FluxTransformer2DModel",
        {"in_channels": 16, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 128,
         "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
         "guidance_embeds": True},
        _flux_inputs,
    ),
    "sd3": TinyDiffusion(
        "SD3Transformer2DModel",
        {"in_channels": 4, "num_layers": 3, "attention_head_dim": 64, "num_attention_heads": 4,
         "joint_attention_dim": 32, "caption_projection_dim": 256, "pooled_projection_dim": 64,
         "out_channels": 4, "pos_embed_max_size": 8, "dual_attention_layers": (0, 1),
         "qk_norm": "rms_norm"},
        _sd3_inputs,
    ),
    "sd3-older": TinyDiffusion(
        "SD3Transformer2DModel",
        {"in_channels": 4, "num_layers": 2, "attention_head_dim": 64, "num_attention_heads": 4,
         "joint_attention_dim": 32, "caption_projection_dim": 256, "pooled_projection_dim": 64,
         "out_channels": 4, "pos_embed_max_size": 8},
        _sd3_inputs,
    ),
    "qwen_image": TinyDiffusion(
        "QwenImageTransformer2DModel",
        {"in_channels": 16, "out_channels": 4, "num_layers": 3, "attention_head_dim": 128,
         "num_attention_heads": 2, "joint_attention_dim": 32},
        _qwen_inputs,
    ),
    "wan": TinyDiffusion("WanTransformer3DModel", _WAN, _wan_inputs),
    "wan-images": TinyDiffusion(
        "WanTransformer3DModel",
        {**_WAN, "in_channels": 36, "image_dim": 24, "added_kv_proj_dim": 256},
        _wan_image_inputs,
    ),
}  # fmt: skip


def convert_original(family: str, path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of an original file as diffusers converts them to its own names."""
    return dict(_mapping(family)(load_file(path)))


def load_directory(family: str, directory: Path) -> Any:
    """Return the model of a directory, in float32."""
    made = _class(MODELS[family].class_name).from_pretrained(directory)
    return made.float().eval()


def load_gguf(family: str, path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the model of a GGUF file with the config of a directory, as diffusers loads it."""
    from diffusers import GGUFQuantizationConfig
    from diffusers.loaders import single_file_model

    name = MODELS[family].class_name
    line = single_file_model.SINGLE_FILE_LOADABLE_CLASSES[name]
    monkeypatch.setitem(line, "checkpoint_mapping_fn", _mapping(family))
    return (
        _class(name)
        .from_single_file(
            str(path),
            config=str(directory),
            quantization_config=GGUFQuantizationConfig(compute_dtype=torch.float32),
            torch_dtype=torch.float32,
        )
        .eval()
    )


def run(family: str, model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(**MODELS[family].inputs(), return_dict=False)[0]


def _mapping(family: str) -> Callable[..., Mapping[str, torch.Tensor]]:
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    found = SINGLE_FILE_LOADABLE_CLASSES[MODELS[family].class_name]["checkpoint_mapping_fn"]
    if family != "flux":
        return found
    code = found.__code__
    values = tuple(_TINY_WIDTH if each == _FLUX_WIDTH else each for each in code.co_consts)
    return types.FunctionType(code.replace(co_consts=values), found.__globals__)

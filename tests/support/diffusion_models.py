"""Tiny diffusion transformers that diffusers makes, and its own conversion of original files."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["MODELS", "TinyDiffusion", "convert_original", "load_directory", "load_gguf", "run"]

# The width of Flux in diffusers' conversion of original files, which does not read it from them.
_FLUX_WIDTH = 3072


class TinyDiffusion(NamedTuple):
    """A tiny model of a family: diffusers' class, its config, and the inputs of a step."""

    class_name: str
    config: Mapping[str, Any]
    inputs: Callable[[], Mapping[str, torch.Tensor]]
    width: int

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


MODELS = {
    "flux": TinyDiffusion(
        "FluxTransformer2DModel",
        {"in_channels": 16, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 128,
         "num_attention_heads": 2, "joint_attention_dim": 32, "pooled_projection_dim": 32,
         "guidance_embeds": True},
        _flux_inputs,
        256,
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
    """Return the output of a step."""
    with torch.no_grad():
        return model(**MODELS[family].inputs(), return_dict=False)[0]


def _mapping(family: str) -> Callable[..., Mapping[str, torch.Tensor]]:
    from diffusers.loaders.single_file_model import SINGLE_FILE_LOADABLE_CLASSES

    found = SINGLE_FILE_LOADABLE_CLASSES[MODELS[family].class_name]["checkpoint_mapping_fn"]
    if family != "flux":
        return found
    code = found.__code__
    width = MODELS[family].width
    values = tuple(width if each == _FLUX_WIDTH else each for each in code.co_consts)
    return types.FunctionType(code.replace(co_consts=values), found.__globals__)

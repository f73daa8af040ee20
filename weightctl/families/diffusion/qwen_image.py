"""Qwen-Image and Qwen-Image-Edit: the original files have the names of diffusers.

Names: diffusers' `transformer_qwenimage.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.diffusion.family import (
    DiffusionFamily,
    ModelSizes,
    linear,
    on_layers,
    pair,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.diffusion.family import TensorPair

# The size of heads in published models, and the dimensions of RoPE for the three axes in it.
_HEAD, _AXES = 128, [16, 56, 56]
_PATCH = 2
# Qwen-Image-Layered embeds whether an image is a layer; its config has more keys.
_LAYERED, _ADDITION = "layered", "time_text_embed.addition_t_embedding.weight"


def _same(name: str, **more: Any) -> tuple[TensorPair, ...]:
    return linear(name, name, **more)


def _vector(name: str, **more: Any) -> tuple[TensorPair, ...]:
    return pair(f"{name}.weight", f"{name}.weight", **more)


def _config(sizes: ModelSizes) -> dict[str, Any]:
    width, channels = sizes.shape("img_in.weight")
    (head,) = sizes.shape("transformer_blocks.0.attn.norm_q.weight", 1)
    return {
        "in_channels": channels,
        "num_layers": sizes.layers("transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": sizes.heads(width, head),
        "joint_attention_dim": sizes.shape("txt_in.weight")[1],
        "use_additional_t_cond": sizes.has(_ADDITION),
        "outputs": sizes.shape("proj_out.weight")[0],
    }


def _usual(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["attention_head_dim"] != _HEAD:
        raise ValueError(
            f"the size of heads is {config['attention_head_dim']} instead of {_HEAD}, so "
            "`axes_dims_rope` is not known"
        )
    if config["use_additional_t_cond"]:
        raise ValueError("the embedding of time has additional inputs, whose config is not known")
    outputs, rest = divmod(config["outputs"], _PATCH * _PATCH)
    if rest:
        raise ValueError(
            f"{config['outputs']} outputs are not those of {_PATCH} x {_PATCH} patches"
        )
    return {
        "patch_size": _PATCH,
        "out_channels": outputs,
        "axes_dims_rope": _AXES,
        "guidance_embeds": False,
    }


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    patch = document.get("patch_size", _PATCH)
    channels = document.get("out_channels") or document.get("in_channels")
    outputs = None
    if isinstance(patch, int) and isinstance(channels, int):
        outputs = patch * patch * channels
    return {**document, "outputs": outputs}


_LAYER = (
    *(line for stream in ("img", "txt") for line in (
        *_same(f"{stream}_mod.1"),
        *_same(f"{stream}_mlp.net.0.proj"),
        *_same(f"{stream}_mlp.net.2"),
    )),
    *(line for part in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj",
                        "add_v_proj", "to_add_out") for line in _same(f"attn.{part}")),
    *(line for norm in ("norm_q", "norm_k", "norm_added_q", "norm_added_k")
      for line in _vector(f"attn.{norm}")),
)  # fmt: skip

FAMILY = DiffusionFamily(
    name="qwen_image",
    class_name="QwenImageTransformer2DModel",
    tensors=(
        *_same("time_text_embed.timestep_embedder.linear_1"),
        *_same("time_text_embed.timestep_embedder.linear_2"),
        *pair(_ADDITION, _ADDITION, of=_LAYERED),
        *_vector("txt_norm"),
        *_same("img_in"),
        *_same("txt_in"),
        *on_layers("transformer_blocks", "transformer_blocks", *_LAYER),
        *_same("norm_out.linear"),
        *_same("proj_out"),
    ),
    config=_config,
    usual=_usual,
    standard=_standard,
    internal=frozenset({"outputs"}),
)

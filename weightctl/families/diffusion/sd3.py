"""Stable Diffusion 3 and 3.5: transformers that attend to texts and images together.

Names: diffusers' `single_file_utils.py` and `transformer_sd3.py`, and the published files.
"""

from __future__ import annotations

from dataclasses import replace
from math import isqrt
from typing import TYPE_CHECKING, Any

from weightctl.families.diffusion.family import (
    DiffusionFamily,
    ModelSizes,
    fused_linear,
    linear,
    on_layers,
    pair,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.diffusion.family import TensorPair

# The size of heads in all published models, and the size of images in patches of the VAE.
_HEAD, _IMAGE = 64, 128
_NORM, _DUAL, _DUAL_NORM = "norms of queries and keys", "second attention", "its norms"


def _attention(original: str, diffusers: str, norm: str, of: str = "") -> tuple[TensorPair, ...]:
    """Return the lines of an attention of images; `norm` is the part with its norms."""
    return (
        *fused_linear(f"{original}.qkv", tuple(f"{diffusers}.to_{part}" for part in "qkv"), of=of),
        *pair(f"{original}.ln_q.weight", f"{diffusers}.norm_q.weight", of=norm),
        *pair(f"{original}.ln_k.weight", f"{diffusers}.norm_k.weight", of=norm),
        *linear(f"{original}.proj", f"{diffusers}.to_out.0", of=of),
    )


def _only(layers: str, *lines: TensorPair) -> tuple[TensorPair, ...]:
    return tuple(replace(line, layers=layers) for line in lines)


_CONTEXT = (
    *fused_linear("context_block.attn.qkv", tuple(f"attn.add_{part}_proj" for part in "qkv")),
    *pair("context_block.attn.ln_q.weight", "attn.norm_added_q.weight", of=_NORM),
    *pair("context_block.attn.ln_k.weight", "attn.norm_added_k.weight", of=_NORM),
    # The last layer computes no texts. Its modulation has only two parts, in another order.
    *_only(
        "others",
        *linear("context_block.attn.proj", "attn.to_add_out"),
        *linear("context_block.adaLN_modulation.1", "norm1_context.linear"),
        *linear("context_block.mlp.fc1", "ff_context.net.0.proj"),
        *linear("context_block.mlp.fc2", "ff_context.net.2"),
    ),
    *_only(
        "last",
        *linear("context_block.adaLN_modulation.1", "norm1_context.linear", is_swapped=True),
    ),
)


def _config(sizes: ModelSizes) -> dict[str, Any]:
    width, channels, patch, _ = sizes.shape("x_embedder.proj.weight", 4)
    outputs = sizes.shape("final_layer.linear.weight")[0]
    places = sizes.shape("pos_embed", 3)[1]
    norm = "joint_blocks.0.x_block.attn.ln_q.weight"
    head = sizes.shape(norm, 1)[0] if sizes.has(norm) else _HEAD
    count = sizes.layers("joint_blocks")
    if outputs % (patch * patch) or isqrt(places) ** 2 != places:
        raise ValueError(
            f"{outputs} outputs for patches of {patch} x {patch}, or {places} positions, are not "
            "those of a square"
        )
    return {
        "patch_size": patch,
        "in_channels": channels,
        "out_channels": outputs // (patch * patch),
        "num_layers": count,
        "attention_head_dim": head,
        "num_attention_heads": sizes.heads(width, head),
        "joint_attention_dim": sizes.shape("context_embedder.weight")[1],
        "caption_projection_dim": sizes.shape("context_embedder.weight")[0],
        "pooled_projection_dim": sizes.shape("y_embedder.mlp.0.weight")[1],
        "pos_embed_max_size": isqrt(places),
        "dual_attention_layers": [
            layer
            for layer in range(count)
            if sizes.has(f"joint_blocks.{layer}.x_block.attn2.qkv.weight")
        ],
        "qk_norm": "rms_norm" if sizes.has(norm) else None,
    }


def _usual(_: Mapping[str, Any]) -> dict[str, Any]:
    return {"sample_size": _IMAGE}


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    channels = document.get("out_channels")
    return {
        **document,
        "out_channels": document.get("in_channels") if channels is None else channels,
        "qk_norm": document.get("qk_norm"),
        "dual_attention_layers": document.get("dual_attention_layers") or [],
    }


FAMILY = DiffusionFamily(
    name="sd3",
    class_name="SD3Transformer2DModel",
    tensors=(
        *pair("pos_embed", "pos_embed.pos_embed"),
        *linear("x_embedder.proj", "pos_embed.proj"),
        *linear("t_embedder.mlp.0", "time_text_embed.timestep_embedder.linear_1"),
        *linear("t_embedder.mlp.2", "time_text_embed.timestep_embedder.linear_2"),
        *linear("y_embedder.mlp.0", "time_text_embed.text_embedder.linear_1"),
        *linear("y_embedder.mlp.2", "time_text_embed.text_embedder.linear_2"),
        *linear("context_embedder", "context_embedder"),
        *on_layers(
            "joint_blocks", "transformer_blocks",
            *_attention("x_block.attn", "attn", _NORM),
            *_attention("x_block.attn2", "attn2", _DUAL_NORM, _DUAL),
            *linear("x_block.adaLN_modulation.1", "norm1.linear"),
            *linear("x_block.mlp.fc1", "ff.net.0.proj"),
            *linear("x_block.mlp.fc2", "ff.net.2"),
            *_CONTEXT,
        ),
        *linear("final_layer.linear", "proj_out"),
        *linear("final_layer.adaLN_modulation.1", "norm_out.linear", is_swapped=True),
    ),
    config=_config,
    usual=_usual,
    standard=_standard,
)  # fmt: skip

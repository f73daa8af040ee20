"""How the config.json of a diffusion transformer follows from the shapes of its tensors."""

from __future__ import annotations

from math import isqrt, prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.extras.diffusion.family import ModelSizes

# Flux

# The size of heads in published models of Flux and Qwen-Image, and the dimensions of RoPE for the
# three axes in it.
_HEAD, _AXES = 128, [16, 56, 56]


def _find_axes(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["attention_head_dim"] != _HEAD:
        raise ValueError(
            f"the size of heads is {config['attention_head_dim']} instead of {_HEAD}, so "
            "`axes_dims_rope` is not known"
        )
    return {"axes_dims_rope": _AXES}


def config_of_flux(sizes: ModelSizes) -> dict[str, Any]:
    """Return the keys of config.json that the shapes define."""
    width, channels = sizes.shape("img_in.weight")
    (head,) = sizes.shape("double_blocks.0.img_attn.norm.query_norm.scale", 1)
    return {
        "patch_size": 1,
        "in_channels": channels,
        "out_channels": sizes.shape("final_layer.linear.weight")[0],
        "num_layers": sizes.layers("double_blocks"),
        "num_single_layers": sizes.layers("single_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": sizes.heads(width, head),
        "joint_attention_dim": sizes.shape("txt_in.weight")[1],
        "pooled_projection_dim": sizes.shape("vector_in.in_layer.weight")[1],
        "guidance_embeds": sizes.has("guidance_in.in_layer.weight"),
    }


def usual_of_flux(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other keys of config.json, with the values of the published models."""
    return _find_axes(config)


def standard_flux(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with what `config` returns."""
    return {**document, "out_channels": document.get("out_channels") or document.get("in_channels")}


# Stable Diffusion 3

# The size of heads in all published models, and the size of images in patches of the VAE.
_SD3_HEAD, _SD3_IMAGE = 64, 128


def config_of_sd3(sizes: ModelSizes) -> dict[str, Any]:
    """Return the keys of config.json that the shapes define."""
    width, channels, patch, _ = sizes.shape("x_embedder.proj.weight", 4)
    outputs = sizes.shape("final_layer.linear.weight")[0]
    places = sizes.shape("pos_embed", 3)[1]
    norm = "joint_blocks.0.x_block.attn.ln_q.weight"
    head = sizes.shape(norm, 1)[0] if sizes.has(norm) else _SD3_HEAD
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


def usual_of_sd3(_: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other keys of config.json, with the values of the published models."""
    return {"sample_size": _SD3_IMAGE}


def standard_sd3(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with what `config` returns."""
    channels = document.get("out_channels")
    return {
        **document,
        "out_channels": document.get("in_channels") if channels is None else channels,
        "qk_norm": document.get("qk_norm"),
        "dual_attention_layers": document.get("dual_attention_layers") or [],
    }


# Wan

# The size of heads in all published models.
_WAN_HEAD = 128


def config_of_wan(sizes: ModelSizes) -> dict[str, Any]:
    """Return the keys of config.json that the shapes define."""
    width, channels, *patch = sizes.shape("patch_embedding.weight", 5)
    outputs = sizes.shape("head.head.weight")[0]
    has_images = sizes.has("blocks.0.cross_attn.k_img.weight")
    embedder, positions = "img_emb.proj.1.weight", "img_emb.emb_pos"
    if outputs % prod(patch):
        raise ValueError(f"{outputs} outputs are not those of patches of {patch}")
    return {
        "patch_size": patch,
        "in_channels": channels,
        "out_channels": outputs // prod(patch),
        "width": width,
        "text_dim": sizes.shape("text_embedding.0.weight")[1],
        "freq_dim": sizes.shape("time_embedding.0.weight")[1],
        "ffn_dim": sizes.shape("blocks.0.ffn.0.weight")[0],
        "num_layers": sizes.layers("blocks"),
        "cross_attn_norm": sizes.has("blocks.0.norm3.weight"),
        "image_dim": sizes.shape(embedder)[1] if sizes.has(embedder) else None,
        "added_kv_proj_dim": width if has_images else None,
        "pos_embed_seq_len": sizes.shape(positions, 3)[1] if sizes.has(positions) else None,
    }


def usual_of_wan(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other keys of config.json, with the values of the published models."""
    heads, rest = divmod(config["width"], _WAN_HEAD)
    if rest:
        raise ValueError(
            f"the width {config['width']} is not a multiple of {_WAN_HEAD}, so the size of heads "
            "is not known"
        )
    return {
        "num_attention_heads": heads,
        "attention_head_dim": _WAN_HEAD,
        "qk_norm": "rms_norm_across_heads",
        "eps": 1e-6,
        "rope_max_seq_len": 1024,
    }


def standard_wan(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with what `config` returns."""
    heads, size = document.get("num_attention_heads"), document.get("attention_head_dim")
    width = heads * size if isinstance(heads, int) and isinstance(size, int) else None
    channels = document.get("out_channels") or document.get("in_channels")
    return {**document, "width": width, "out_channels": channels}


# Qwen-Image

_PATCH = 2


def config_of_qwen_image(sizes: ModelSizes) -> dict[str, Any]:
    """Return the keys of config.json that the shapes define."""
    width, channels = sizes.shape("img_in.weight")
    (head,) = sizes.shape("transformer_blocks.0.attn.norm_q.weight", 1)
    return {
        "in_channels": channels,
        "num_layers": sizes.layers("transformer_blocks"),
        "attention_head_dim": head,
        "num_attention_heads": sizes.heads(width, head),
        "joint_attention_dim": sizes.shape("txt_in.weight")[1],
        "use_additional_t_cond": sizes.has("time_text_embed.addition_t_embedding.weight"),
        "outputs": sizes.shape("proj_out.weight")[0],
    }


def usual_of_qwen_image(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the other keys of config.json, with the values of the published models."""
    axes = _find_axes(config)
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
        **axes,
        "guidance_embeds": False,
    }


def standard_qwen_image(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with what `config` returns."""
    patch = document.get("patch_size", _PATCH)
    channels = document.get("out_channels") or document.get("in_channels")
    outputs = None
    if isinstance(patch, int) and isinstance(channels, int):
        outputs = patch * patch * channels
    return {**document, "outputs": outputs}

"""Wan 2.1 and 2.2: transformers for videos, from texts, and from images where the model has them.

Names: diffusers' `single_file_utils.py` and `transformer_wan.py`, and the published files.
"""

from __future__ import annotations

from math import prod
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

# The size of heads in all published models.
_HEAD = 128
_IMAGES, _POSITIONS, _NORM = "images", "positions of images", "norm before attention to texts"


def _attention(original: str, diffusers: str) -> tuple[TensorPair, ...]:
    return (
        *linear(f"{original}.q", f"{diffusers}.to_q"),
        *linear(f"{original}.k", f"{diffusers}.to_k"),
        *linear(f"{original}.v", f"{diffusers}.to_v"),
        *linear(f"{original}.o", f"{diffusers}.to_out.0"),
        *pair(f"{original}.norm_q.weight", f"{diffusers}.norm_q.weight"),
        *pair(f"{original}.norm_k.weight", f"{diffusers}.norm_k.weight"),
    )


_IMAGE_EMBEDDER = "condition_embedder.image_embedder"


def _config(sizes: ModelSizes) -> dict[str, Any]:
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


def _usual(config: Mapping[str, Any]) -> dict[str, Any]:
    heads, rest = divmod(config["width"], _HEAD)
    if rest:
        raise ValueError(
            f"the width {config['width']} is not a multiple of {_HEAD}, so the size of heads is "
            "not known"
        )
    return {
        "num_attention_heads": heads,
        "attention_head_dim": _HEAD,
        "qk_norm": "rms_norm_across_heads",
        "eps": 1e-6,
        "rope_max_seq_len": 1024,
    }


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    heads, size = document.get("num_attention_heads"), document.get("attention_head_dim")
    width = heads * size if isinstance(heads, int) and isinstance(size, int) else None
    channels = document.get("out_channels") or document.get("in_channels")
    return {**document, "width": width, "out_channels": channels}


FAMILY = DiffusionFamily(
    name="wan",
    class_name="WanTransformer3DModel",
    tensors=(
        *linear("patch_embedding", "patch_embedding"),
        *linear("text_embedding.0", "condition_embedder.text_embedder.linear_1"),
        *linear("text_embedding.2", "condition_embedder.text_embedder.linear_2"),
        *linear("time_embedding.0", "condition_embedder.time_embedder.linear_1"),
        *linear("time_embedding.2", "condition_embedder.time_embedder.linear_2"),
        *linear("time_projection.1", "condition_embedder.time_proj"),
        *linear("img_emb.proj.0", f"{_IMAGE_EMBEDDER}.norm1", of=_IMAGES),
        *linear("img_emb.proj.1", f"{_IMAGE_EMBEDDER}.ff.net.0.proj", of=_IMAGES),
        *linear("img_emb.proj.3", f"{_IMAGE_EMBEDDER}.ff.net.2", of=_IMAGES),
        *linear("img_emb.proj.4", f"{_IMAGE_EMBEDDER}.norm2", of=_IMAGES),
        *pair("img_emb.emb_pos", f"{_IMAGE_EMBEDDER}.pos_embed", of=_POSITIONS),
        *on_layers(
            "blocks", "blocks",
            *_attention("self_attn", "attn1"),
            *_attention("cross_attn", "attn2"),
            *linear("cross_attn.k_img", "attn2.add_k_proj", of=_IMAGES),
            *linear("cross_attn.v_img", "attn2.add_v_proj", of=_IMAGES),
            *pair("cross_attn.norm_k_img.weight", "attn2.norm_added_k.weight", of=_IMAGES),
            # diffusers numbers the norms by their order.
            *linear("norm3", "norm2", of=_NORM),
            *linear("ffn.0", "ffn.net.0.proj"),
            *linear("ffn.2", "ffn.net.2"),
            *pair("modulation", "scale_shift_table"),
        ),
        *linear("head.head", "proj_out"),
        *pair("head.modulation", "scale_shift_table"),
    ),
    config=_config,
    usual=_usual,
    standard=_standard,
    internal=frozenset({"width"}),
)  # fmt: skip

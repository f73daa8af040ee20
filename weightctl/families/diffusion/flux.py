"""Flux.1 (dev, schnell, Kontext, Fill, Krea): the transformer of Black Forest Labs' models.

Names: diffusers' `single_file_utils.py` and `transformer_flux.py`, and the published files.
"""

from __future__ import annotations

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

# The size of heads in published models, and the dimensions of RoPE for the three axes in it.
_HEAD, _AXES = 128, [16, 56, 56]
# An MLP is four times as wide as the model.
_WITH_MLP = (1, 1, 1, 4)


def _embedder(original: str, diffusers: str, of: str = "") -> tuple[TensorPair, ...]:
    diffusers = f"time_text_embed.{diffusers}"
    return (
        *linear(f"{original}.in_layer", f"{diffusers}.linear_1", of=of),
        *linear(f"{original}.out_layer", f"{diffusers}.linear_2", of=of),
    )


def _stream(original: str, *, norm: str, mlp: str, attention: Mapping[str, str]) -> Any:
    """Return the lines of one of the two streams of a layer, images or texts."""
    names = {key: f"attn.{name}" for key, name in attention.items()}
    return (
        *linear(f"{original}_mod.lin", f"{norm}.linear"),
        *fused_linear(f"{original}_attn.qkv", (names["q"], names["k"], names["v"])),
        *pair(f"{original}_attn.norm.query_norm.scale", f"{names['norm_q']}.weight"),
        *pair(f"{original}_attn.norm.key_norm.scale", f"{names['norm_k']}.weight"),
        *linear(f"{original}_attn.proj", names["o"]),
        *linear(f"{original}_mlp.0", f"{mlp}.net.0.proj"),
        *linear(f"{original}_mlp.2", f"{mlp}.net.2"),
    )


_IMAGE = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0", "norm_q": "norm_q",
          "norm_k": "norm_k"}  # fmt: skip
_TEXT = {"q": "add_q_proj", "k": "add_k_proj", "v": "add_v_proj", "o": "to_add_out",
         "norm_q": "norm_added_q", "norm_k": "norm_added_k"}  # fmt: skip


def _config(sizes: ModelSizes) -> dict[str, Any]:
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


def _usual(config: Mapping[str, Any]) -> dict[str, Any]:
    if config["attention_head_dim"] != _HEAD:
        raise ValueError(
            f"the size of heads is {config['attention_head_dim']} instead of {_HEAD}, so "
            "`axes_dims_rope` is not known"
        )
    return {"axes_dims_rope": _AXES}


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**document, "out_channels": document.get("out_channels") or document.get("in_channels")}


FAMILY = DiffusionFamily(
    name="flux",
    class_name="FluxTransformer2DModel",
    tensors=(
        *_embedder("time_in", "timestep_embedder"),
        *_embedder("vector_in", "text_embedder"),
        *_embedder("guidance_in", "guidance_embedder", of="guidance"),
        *linear("img_in", "x_embedder"),
        *linear("txt_in", "context_embedder"),
        *on_layers(
            "double_blocks", "transformer_blocks",
            *_stream("img", norm="norm1", mlp="ff", attention=_IMAGE),
            *_stream("txt", norm="norm1_context", mlp="ff_context", attention=_TEXT),
        ),
        *on_layers(
            "single_blocks", "single_transformer_blocks",
            *linear("modulation.lin", "norm.linear"),
            *fused_linear(
                "linear1", ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), _WITH_MLP
            ),
            *pair("norm.query_norm.scale", "attn.norm_q.weight"),
            *pair("norm.key_norm.scale", "attn.norm_k.weight"),
            *linear("linear2", "proj_out"),
        ),
        *linear("final_layer.linear", "proj_out"),
        *linear("final_layer.adaLN_modulation.1", "norm_out.linear", is_swapped=True),
    ),
    config=_config,
    usual=_usual,
    standard=_standard,
)  # fmt: skip

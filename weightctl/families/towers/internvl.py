"""The image encoder of InternVL: a class token, scaled layers, and an MLP of merged patches.

Names and keys: transformers' `modeling_internvl.py` and `configuration_internvl.py`; llama.cpp's
`conversion/internvl.py` and `tools/mtmd/models/internvl.cpp`. llama.cpp puts the class token after
the patches, and not before them, but adds the learned positions in their order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, Present
from weightctl.families.kinds import FLAG, SIZE, Choice, Exactly, OrNone, Real
from weightctl.families.model import CLIP
from weightctl.families.steps import extra_axes
from weightctl.families.towers.tower import (
    Tower,
    activation_keys,
    block,
    count_patches,
    part,
    vision_keys,
)
from weightctl.text.untyped import is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_EMBEDDINGS = "vision_tower.embeddings."
_LAYERS = "vision_tower.encoder.layer."
_PROJECTOR = "multi_modal_projector."
_BLOCK = {
    "ln1": "layernorm_before",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.projection_layer",
    "ln2": "layernorm_after",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_BIAS = {
    "ln1": "has_norm_bias",
    "ln2": "has_norm_bias",
    "attn_q": "has_attention_bias",
    "attn_k": "has_attention_bias",
    "attn_v": "has_attention_bias",
}
# The hidden size and the number of layers for which llama.cpp computes RMS norms.
_WITH_RMS = (3200, 45)
_USUAL_MERGE, _USUAL_RATIO = 2, 0.5


def _layer_part(gguf: str, name: str, **more: Any) -> Any:
    return part(f"layers.{{}}.{gguf}", f"v.blk.{{}}.{gguf}", f"{_LAYERS}{{}}.{name}", **more)


def _find_norm(fields: Fields) -> str:
    return "rms" if (fields["hidden"], fields["layers"]) == _WITH_RMS else "layer"


def _find_merge(fields: Fields) -> int:
    """Return how many patches along each side become one token."""
    return int(1 / fields["ratio"]) if "ratio" in fields else _USUAL_MERGE


def _count_tokens(fields: Fields) -> int:
    """Return the number of tokens of an image."""
    merge = fields["merge"] if "merge" in fields else _find_merge(fields)
    patches = count_patches(fields)
    return int(patches // merge**2)


def _with_one_side(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document whose images and patches have one size in place of height and width."""
    vision = document.get("vision_config")
    if not is_object(vision):
        return document
    made = dict(vision)
    for name in ("image_size", "patch_size"):
        sides = made.get(name)
        if is_sequence(sides) and len(sides) == 2:
            if sides[0] != sides[1]:
                raise ValueError(f"`vision_config.{name}`: llama.cpp only has squares")
            made[name] = sides[0]
    return {**document, "vision_config": made}


def _check(fields: Fields) -> Fields:
    merge = fields["merge"] if "merge" in fields else _find_merge(fields)
    ratio = fields.get("ratio", 1 / merge)
    if ratio != 1 / merge:
        raise ValueError(f"`downsample_ratio` is {ratio:g}, which is not 1 divided by an integer")
    if fields["norm"] != _find_norm(fields):
        hidden, layers = _WITH_RMS
        raise ValueError(
            f"`vision_config.norm_type`: llama.cpp computes RMS norms for a hidden size of {hidden}"
            f" and {layers} layers, and layer norms otherwise"
        )
    if fields["has_query_norm"] and fields["norm"] != "rms":
        raise ValueError(
            "`vision_config.use_qk_norm`: llama.cpp norms queries and keys like the layers, but "
            "transformers computes RMS norms"
        )
    patches = count_patches(fields)
    side = fields["image_size"] // fields["patch_size"]
    if side % merge:
        raise ValueError(
            f"{side} x {side} patches cannot be merged by squares of {merge} x {merge}"
        )
    tokens = patches // merge**2
    if fields["image_tokens"] != tokens:
        raise ValueError(
            f"`image_seq_length` is {fields['image_tokens']}, but an image has {tokens} tokens"
        )
    return {
        **fields,
        "positions": patches + 1,
        "merge": merge,
        "merged": fields["hidden"] * merge**2,
        "has_norm_bias": fields["norm"] == "layer",
    }


def _describe_processor(fields: Fields) -> Mapping[str, Any]:
    return {
        "image_processor_type": "GotOcr2ImageProcessor",
        "processor_class": "InternVLProcessor",
        "size": {"height": fields["image_size"], "width": fields["image_size"]},
    }


def _find_difference(_: Fields) -> str:
    return (
        "it puts the class token after the patches, so that each of them gets the learned position "
        "before its own"
    )


TOWER = Tower(
    family=Family(
        name="the image encoder of internvl",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={"internvl": ModelType(class_name="InternVLForConditionalGeneration")},
        prefix="",
        other_prefixes=("model.",),
        # The token of masked patches, which is only for training.
        beside=(r"vision_tower\.embeddings\.mask_token",),
        names=(
            part("class", "v.class_embd", f"{_EMBEDDINGS}cls_token", is_float32=True,
                 ends={"gguf": "", "hugging_face": ""}, change=extra_axes((0, 0), (0, 0))),
            part("patches", "v.patch_embd", f"{_EMBEDDINGS}patch_embeddings.projection", "hidden",
                 "channels", kernel=("patch_size", "patch_size"), bias=True, is_float32=True),
            part("positions", "v.position_embd", f"{_EMBEDDINGS}position_embeddings", "positions",
                 "hidden", is_float32=True, ends={"hugging_face": ""},
                 change=extra_axes((0,), (0,))),
            *(replace(line, bias=_BIAS.get(line.module.rpartition(".")[2], True))
              for line in block(_LAYERS, _BLOCK, bias=True)),
            _layer_part("attn_q_norm", "attention.q_norm", when=("has_query_norm",)),
            _layer_part("attn_k_norm", "attention.k_norm", when=("has_query_norm",)),
            _layer_part("ls1", "lambda_1", ends={"hugging_face": ""}),
            _layer_part("ls2", "lambda_2", ends={"hugging_face": ""}),
            part("projector.norm", "mm.model.mlp.0", f"{_PROJECTOR}layer_norm", "merged",
                 bias=True),
            part("projector.1", "mm.model.mlp.1", f"{_PROJECTOR}linear_1", "text_hidden", "merged",
                 bias=True),
            part("projector.2", "mm.model.mlp.3", f"{_PROJECTOR}linear_2", "text_hidden",
                 "text_hidden", bias=True),
        ),
        keys=(
            *vision_keys("internvl", hidden=1024, intermediate=4096, layers=24, heads=16,
                         image_size=448, patch_size=14, norm_epsilon=1e-6),
            *activation_keys({"gelu": "gelu", "silu": "silu"}, "gelu"),
            Key(field="merge", kind=SIZE, gguf="clip.vision.projector.scale_factor",
                gguf_default=_find_merge),
            Key(field="ratio", kind=Real(0, 1), default=_USUAL_RATIO,
                gguf_default=lambda fields: 1 / fields["merge"], hugging_face="downsample_ratio"),
            Key(field="image_tokens", kind=SIZE, default=256, gguf_default=_count_tokens,
                hugging_face="image_seq_length"),
            *(Key(field=f"{each}_tiles", kind=OrNone(SIZE), default=None, gguf_default=None,
                  gguf=f"clip.vision.preproc_{each}_tiles", hugging_face=f"{each}_dynamic_patch")
              for each in ("min", "max")),
            Key(field="norm", kind=Choice({"layer_norm": "layer", "rms_norm": "rms"}),
                default="layer", gguf_default=_find_norm, hugging_face="vision_config.norm_type"),
            Key(field="has_attention_bias", kind=FLAG, default=False,
                seen=Present("v.blk.0.attn_q.bias"), hugging_face="vision_config.attention_bias"),
            Key(field="has_query_norm", kind=FLAG, default=False,
                seen=Present("v.blk.0.attn_q_norm.weight"),
                hugging_face="vision_config.use_qk_norm"),
            Key(field="has_mask_token", kind=FLAG, default=False, gguf_default=False,
                hugging_face="vision_config.use_mask_token", is_in_weights=True),
            Key(field="has_positions", default=True, gguf_default=True,
                hugging_face="vision_config.use_absolute_position_embeddings",
                kind=Exactly(True, "llama.cpp needs learned positions")),
            Key(field="has_pooling", default=True, gguf_default=True,
                hugging_face="vision_config.use_mean_pooling",
                kind=Exactly(True, "llama.cpp has no norm after the last layer")),
            Key(field="projector_activation", default="gelu", gguf_default="gelu",
                hugging_face="projector_hidden_act",
                kind=Exactly("gelu", "llama.cpp has another activation in its projection")),
            Key(field="feature_layer", default=-1, gguf_default=-1,
                hugging_face="vision_feature_layer",
                kind=Exactly(-1, "llama.cpp takes the features of the last layer")),
            Key(field="selection", default="default", gguf_default="default",
                hugging_face="vision_feature_select_strategy",
                kind=Exactly("default", "llama.cpp leaves out the class token")),
        ),
        standard=_with_one_side,
        checked=_check,
    ),
    texts=("qwen2", "qwen3", "qwen3moe", "llama"),
    text_prefixes={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    mean=(0.485, 0.456, 0.406),
    deviation=(0.229, 0.224, 0.225),
    processor=_describe_processor,
    tokens={"image_token_id": "<IMG_CONTEXT>"},
    differs=_find_difference,
)  # fmt: skip

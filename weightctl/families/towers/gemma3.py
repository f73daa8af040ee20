"""The image encoder of Gemma 3: SigLIP, and an average of patches that is normed and projected.

Names and keys: transformers' `modeling_siglip.py`, `modeling_gemma3.py` and their configs;
llama.cpp's `conversion/gemma.py` (`Gemma3VisionModel`) and `tools/mtmd/clip.cpp`.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG, SIZE, Choice
from weightctl.families.model import CLIP
from weightctl.families.steps import PLUS_ONE
from weightctl.families.towers.tower import (
    Tower,
    activation_keys,
    block,
    count_patches,
    part,
    vision_keys,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_USUAL_MERGE = 4

SIGLIP_ACTIVATION = {"gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu"}
SIGLIP_BLOCK = {
    "ln1": "layer_norm1",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.out_proj",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}


def _find_merge(fields: Fields) -> int:
    """Return how many patches along each side become one token."""
    side, tokens = isqrt(count_patches(fields)), isqrt(fields["image_tokens"])
    if tokens**2 != fields["image_tokens"] or side % tokens:
        raise ValueError(
            f"cannot be computed: {side} x {side} patches do not become "
            f"{fields['image_tokens']} tokens by averages of squares"
        )
    return side // tokens


def _state_merge(fields: Fields) -> int | None:
    """Return what GGUF states: None for the usual number, which llama.cpp assumes."""
    merge = _find_merge(fields) if "image_tokens" in fields else _USUAL_MERGE
    return None if merge == _USUAL_MERGE else merge


def _count_tokens(fields: Fields) -> int:
    side = isqrt(count_patches(fields)) // (fields["stated_merge"] or _USUAL_MERGE)
    return max(1, side * side)


def _check(fields: Fields) -> Fields:
    merge = _find_merge(fields)
    return {**fields, "positions": count_patches(fields), "merge": merge}


def _describe_processor(fields: Fields) -> Mapping[str, Any]:
    return {
        "image_processor_type": "Gemma3ImageProcessor",
        "processor_class": "Gemma3Processor",
        "size": {"height": fields["image_size"], "width": fields["image_size"]},
        "image_seq_length": fields["image_tokens"],
    }


TOWER = Tower(
    family=Family(
        name="the image encoder of gemma3",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={"gemma3": ModelType(class_name="Gemma3ForConditionalGeneration")},
        prefix="",
        other_prefixes=(
            "vision_tower.vision_model.",
            "vision_tower.",
            "model.vision_tower.vision_model.",
            "model.vision_tower.",
            "model.",
        ),
        # The attention pooling of SigLIP, which Gemma 3 does not use.
        beside=(r"head\..+",),
        names=(
            part("patches", "v.patch_embd", "vision_tower.vision_model.embeddings.patch_embedding",
                 "hidden", "channels", kernel=("patch_size", "patch_size"), bias=True,
                 is_float32=True),
            part("positions", "v.position_embd",
                 "vision_tower.vision_model.embeddings.position_embedding", "positions", "hidden",
                 is_float32=True),
            *block("vision_tower.vision_model.encoder.layers.", SIGLIP_BLOCK, bias=True),
            part("norm", "v.post_ln", "vision_tower.vision_model.post_layernorm", bias=True),
            part("projector.norm", "mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm",
                 change=PLUS_ONE),
            # llama.cpp's converter stores it as F16, which rounds bfloat16.
            part("projector", "mm.input_projection", "multi_modal_projector.mm_input_projection",
                 "hidden", "text_hidden", is_float32=True, ends={"hugging_face": "_weight"}),
        ),
        keys=(
            *vision_keys("gemma3", hidden=768, intermediate=3072, layers=12, heads=12,
                         image_size=224, patch_size=16, norm_epsilon=1e-6),
            Key(field="encoder", kind=Choice({"siglip_vision_model": "siglip"}), default="siglip",
                gguf_default="siglip", hugging_face="vision_config.model_type", written=True),
            *activation_keys(SIGLIP_ACTIVATION, "gelu"),
            Key(field="stated_merge", kind=SIZE, gguf_default=_state_merge,
                gguf="clip.vision.projector.scale_factor"),
            Key(field="image_tokens", kind=SIZE, default=256, gguf_default=_count_tokens,
                hugging_face="mm_tokens_per_image", written=True),
            Key(field="has_pooling", kind=FLAG, default=True, gguf_default=False, written=True,
                hugging_face="vision_config.vision_use_head", is_in_weights=True),
        ),
        checked=_check,
    ),
    texts=("gemma3",),
    text_prefixes={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
    processor=_describe_processor,
    tokens={
        "boi_token_index": "<start_of_image>",
        "eoi_token_index": "<end_of_image>",
        "image_token_index": "<image_soft_token>",
    },
)  # fmt: skip

"""The image encoder of Pixtral and Mistral Small 3.1: two-dimensional RoPE, and an MLP.

Names and keys: transformers' `modeling_pixtral.py`, `modeling_mistral3.py`, `modeling_llava.py` and
their configs; llama.cpp's `conversion/llava.py` and `tools/mtmd/models/pixtral.cpp`. llama.cpp
inserts the vector of the token [IMG_BREAK] after each row of patches, so its file has that vector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, Present
from weightctl.families.kinds import EPSILON, FLAG, SIZE, Choice, Exactly
from weightctl.families.model import CLIP
from weightctl.families.steps import rope_rows
from weightctl.families.towers.tower import (
    TEXT_EPSILON,
    BreakToken,
    Tower,
    activation_keys,
    block,
    part,
    rope_key,
    vision_keys,
    with_rope,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

# It is not in config.json: transformers and llama.cpp's converter have it in their code.
_EPSILON = 1e-5
_BREAK = "v.token_embd.img_break"
_BLOCK = {
    "ln1": "attention_norm",
    "attn_q": "attention.q_proj",
    "attn_k": "attention.k_proj",
    "attn_v": "attention.v_proj",
    "attn_out": "attention.o_proj",
    "ln2": "ffn_norm",
    "ffn_gate": "feed_forward.gate_proj",
    "ffn_up": "feed_forward.up_proj",
    "ffn_down": "feed_forward.down_proj",
}
_ROTATED = ("layers.{}.attn_q", "layers.{}.attn_k")
_MERGER = "mm.patch_merger.weight"
_SELECTION = Exactly("full", "the image encoder has no class token that could be left out")


def _check(fields: Fields) -> Fields:
    return {**fields, "merged": fields["hidden"] * fields["merge"] ** 2}


def _find_difference(fields: Fields) -> str:
    epsilon = fields.get("text_epsilon", _EPSILON)
    if not fields["has_merger"] or epsilon == _EPSILON:
        return ""
    return f"it norms the merged patches with the epsilon {_EPSILON:g} instead of {epsilon:g}"


def _describe_processor(fields: Fields) -> Mapping[str, Any]:
    side = fields["patch_size"] * fields["merge"]
    return {
        "image_processor_type": "PixtralImageProcessor",
        "processor_class": "PixtralProcessor",
        "size": {"longest_edge": fields["image_size"]},
        "patch_size": {"height": side, "width": side},
    }


_LINES = (
    part("patches", "v.patch_embd", "vision_tower.patch_conv", "hidden", "channels",
         kernel=("patch_size", "patch_size"), is_float32=True),
    part("norm", "v.pre_ln", "vision_tower.ln_pre"),
    *block("vision_tower.transformer.layers.", _BLOCK, bias=False,
           changes={module: rope_rows("heads") for module in _ROTATED}),
    part("projector.norm", "mm.input_norm", "multi_modal_projector.norm", when=("has_merger",)),
    part("projector.merger", "mm.patch_merger", "multi_modal_projector.patch_merger.merging_layer",
         "hidden", "merged", when=("has_merger",), is_float32=True),
    part("projector.1", "mm.1", "multi_modal_projector.linear_1", "text_hidden", "hidden",
         bias="has_projector_bias"),
    part("projector.2", "mm.2", "multi_modal_projector.linear_2", "text_hidden", "text_hidden",
         bias="has_projector_bias"),
)  # fmt: skip

TOWER = Tower(
    family=Family(
        name="the image encoder of pixtral",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={
            "mistral3": ModelType(
                class_name="Mistral3ForConditionalGeneration",
                fixed={"has_merger": True, "selection": "full"},
                defaults={"image_size": 1540, "patch_size": 14},
            ),
            "llava": ModelType(
                class_name="LlavaForConditionalGeneration",
                fixed={"has_merger": False, "merge": 1},
                defaults={
                    "has_projector_bias": True,
                    "feature_layer": -2,
                    "selection": "default",
                },
            ),
        },
        prefix="",
        other_prefixes=("model.",),
        beside=(_BREAK.replace(".", r"\."),),
        names=_LINES,
        keys=(
            *vision_keys("pixtral", epsilon="", hidden=1024, intermediate=4096, layers=24, heads=16,
                         image_size=1024, patch_size=16, norm_epsilon=_EPSILON),
            Key(field="encoder", kind=Choice({"pixtral": "pixtral"}), default="pixtral",
                gguf_default="pixtral", hugging_face="vision_config.model_type", written=True),
            *activation_keys({"gelu": "gelu", "silu": "silu"}, "gelu"),
            rope_key(10000.0),
            Key(field="has_merger", kind=FLAG, seen=Present(_MERGER), default=True,
                gguf_default=False),
            Key(field="merge", kind=SIZE, default=2, gguf_default=1,
                gguf="clip.vision.spatial_merge_size", hugging_face="spatial_merge_size"),
            Key(field="has_projector_bias", kind=FLAG, default=False, seen=Present("mm.1.bias"),
                hugging_face="multimodal_projector_bias"),
            Key(field="projector_activation", default="gelu", gguf_default="gelu",
                hugging_face="projector_hidden_act",
                kind=Exactly("gelu", "llama.cpp has another activation in its projection")),
            Key(field="feature_layer", default=-1, gguf_default=-1,
                hugging_face="vision_feature_layer",
                kind=Exactly(-1, "llama.cpp takes the features of the last layer")),
            Key(field="selection", kind=_SELECTION, default="full", gguf_default="full",
                hugging_face="vision_feature_select_strategy"),
            Key(field="text_epsilon", kind=EPSILON, default=_EPSILON, hugging_face=TEXT_EPSILON),
        ),
        standard=with_rope,
        checked=_check,
    ),
    texts=("mistral3", "mistral4", "llama"),
    text_prefixes={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    mean=(0.48145466, 0.4578275, 0.40821073),
    deviation=(0.26862954, 0.26130258, 0.27577711),
    processor=_describe_processor,
    tokens={"image_token_index": "[IMG]"},
    break_token=BreakToken(_BREAK, "[IMG_BREAK]"),
    differs=_find_difference,
)  # fmt: skip

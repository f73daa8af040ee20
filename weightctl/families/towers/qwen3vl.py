"""The image encoder of Qwen3-VL and Qwen3.5: learned positions, RoPE, and merged patches.

Names and keys: transformers' `modeling_qwen3_vl.py`, `modeling_qwen3_5.py` and their configs;
llama.cpp's `conversion/qwen3vl.py` and `tools/mtmd/models/qwen3vl.cpp`. In Qwen3-VL the outputs of
some layers are projected, too (deepstack). Hugging Face's names number these projections from 0,
and GGUF's names have the numbers of the layers. The text model decides about the `model_type`.
"""

from __future__ import annotations

from math import isqrt
from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, RowCount
from weightctl.families.kinds import FLAG, SIZE, Exactly
from weightctl.families.layers import Layered
from weightctl.families.model import CLIP
from weightctl.families.towers.gemma3 import SIGLIP_ACTIVATION
from weightctl.families.towers.qwen2_5vl import LayerNumbers
from weightctl.families.towers.qwen2vl import (
    CALLED,
    EPSILON,
    IMAGE_TOKENS,
    MERGE_KEYS,
    check_merged,
    describe_processor,
    frame_fusion,
    frame_lines,
    output_key,
)
from weightctl.families.towers.tower import (
    Tower,
    activation_keys,
    block,
    part,
    vision_keys,
    with_rope,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_USUAL_DEEPSTACK = (8, 16, 24)
_MERGE = 2
_BLOCK = {
    "ln1": "norm1",
    "attn_qkv": "attn.qkv",
    "attn_out": "attn.proj",
    "ln2": "norm2",
    "ffn_up": "mlp.linear_fc1",
    "ffn_down": "mlp.linear_fc2",
}
_VISUAL = "model.visual."
# Qwen3.5 has no deepstack.
_PLAIN = {"deepstack": ()}


def _list_deepstack(fields: Fields) -> tuple[int, ...]:
    """Return the layers whose outputs are projected."""
    if "has_deepstack" not in fields:
        return _USUAL_DEEPSTACK
    return tuple(number for number, each in enumerate(fields["has_deepstack"]) if each)


def _flag_deepstack(fields: Fields) -> tuple[bool, ...]:
    """Return for each layer whether its output is projected."""
    chosen, layers = fields.get("deepstack", ()), fields["layers"]
    if chosen and chosen[-1] >= layers:
        raise ValueError(f"cannot be computed: there is no layer {chosen[-1]} of {layers} layers")
    return tuple(number in chosen for number in range(layers))


def _find_image_size(fields: Fields) -> int:
    side = isqrt(fields["positions"])
    if side**2 != fields["positions"]:
        raise ValueError(f"the {fields['positions']} learned positions are not those of a square")
    return int(side * fields["patch_size"])


def _check(fields: Fields) -> Fields:
    if len(fields["has_deepstack"]) != fields["layers"]:
        raise ValueError(
            f"`clip.vision.is_deepstack_layers` has {len(fields['has_deepstack'])} elements "
            f"instead of {fields['layers']}"
        )
    _find_image_size(fields)
    return check_merged(fields)


def _describe_processor(fields: Fields) -> Mapping[str, Any]:
    return {**describe_processor(fields), "processor_class": "Qwen3VLProcessor"}


def _deepstack_line(gguf: str, name: str, *axes: str) -> Any:
    return part(
        f"layers.{{}}.deepstack.{gguf}",
        f"v.deepstack.{{}}.{gguf}",
        f"{_VISUAL}deepstack_merger_list.{{}}.{name}",
        *axes,
        bias=True,
        when=("has_deepstack",),
        counted=True,
    )


TOWER = Tower(
    family=Family(
        name="the image encoder of qwen3vl",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={
            "qwen3_vl": ModelType(class_name="Qwen3VLForConditionalGeneration"),
            "qwen3_vl_moe": ModelType(class_name="Qwen3VLMoeForConditionalGeneration"),
            "qwen3_5": ModelType(class_name="Qwen3_5ForConditionalGeneration", fixed=_PLAIN),
            "qwen3_5_moe": ModelType(class_name="Qwen3_5MoeForConditionalGeneration", fixed=_PLAIN),
        },
        prefix="",
        other_prefixes=("model.",),
        names=(
            *frame_lines(),
            part("frame.bias", "v.patch_embd", f"{_VISUAL}patch_embed.proj",
                 ends={"gguf": ".bias", "hugging_face": ".bias"}),
            part("positions", "v.position_embd", f"{_VISUAL}pos_embed", "positions", "hidden",
                 is_float32=True),
            *block(f"{_VISUAL}blocks.", _BLOCK, bias=True),
            _deepstack_line("norm", "norm", "merged"),
            _deepstack_line("fc1", "linear_fc1", "merged", "merged"),
            _deepstack_line("fc2", "linear_fc2", "text_hidden", "merged"),
            part("norm", "v.post_ln", f"{_VISUAL}merger.norm", bias=True),
            part("merger.1", "mm.0", f"{_VISUAL}merger.linear_fc1", "merged", "merged", bias=True),
            part("merger.2", "mm.2", f"{_VISUAL}merger.linear_fc2", "text_hidden", "merged",
                 bias=True),
        ),
        fusions=(frame_fusion(f"{_VISUAL}patch_embed.proj"),),
        keys=(
            *vision_keys("qwen3vl_merger", epsilon="", called=CALLED, hidden=1152,
                         intermediate=4304, layers=27, heads=16, patch_size=16,
                         norm_epsilon=EPSILON),
            output_key("out_hidden_size"),
            *activation_keys(SIGLIP_ACTIVATION, "gelu"),
            Key(field="positions", kind=SIZE, default=2304, gguf_default=0,
                seen=RowCount("v.position_embd.weight"),
                hugging_face="vision_config.num_position_embeddings"),
            Key(field="image_size", kind=SIZE, gguf="clip.vision.image_size",
                gguf_default=_find_image_size),
            Key(field="merge", default=_MERGE, gguf_default=_MERGE, written=True,
                gguf="clip.vision.spatial_merge_size",
                hugging_face="vision_config.spatial_merge_size",
                kind=Exactly(_MERGE, "llama.cpp merges squares of 2 x 2 patches")),
            Key(field="deepstack", kind=LayerNumbers(), default=_list_deepstack, written=True,
                hugging_face="vision_config.deepstack_visual_indexes"),
            Key(field="has_deepstack", kind=Layered(FLAG), default=_flag_deepstack,
                gguf_default=_flag_deepstack, gguf="clip.vision.is_deepstack_layers"),
            *MERGE_KEYS,
        ),
        standard=with_rope,
        checked=_check,
    ),
    texts=("qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"),
    text_prefixes={"model.": "model.language_model."},
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
    processor=_describe_processor,
    tokens=IMAGE_TOKENS,
    types={
        "qwen3vl": ("qwen3_vl", "qwen3_vl_text"),
        "qwen3vlmoe": ("qwen3_vl_moe", "qwen3_vl_moe_text"),
        "qwen35": ("qwen3_5", "qwen3_5_text"),
        "qwen35moe": ("qwen3_5_moe", "qwen3_5_moe_text"),
    },
)  # fmt: skip

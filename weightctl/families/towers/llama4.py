"""The image encoder of Llama 4: two-dimensional RoPE, a class token, and a pixel shuffle.

Names and keys: transformers' `modeling_llama4.py` and `configuration_llama4.py`; llama.cpp's
`conversion/llama4.py` and `tools/mtmd/models/llama4.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, RowCount, same
from weightctl.families.kinds import SIZE, Exactly, show_value
from weightctl.families.model import CLIP
from weightctl.families.towers.tower import (
    Tower,
    activation_keys,
    block,
    count_patches,
    part,
    rope_key,
    vision_keys,
    with_rope,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_BLOCK = {
    "ln1": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ln2": "post_attention_layernorm",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
_ADAPTER = "vision_model.vision_adapter.mlp."
_ALONE = {"hugging_face": ""}
_MOST = 64


class _OneOver(NamedTuple):
    """An integer that is stored as its reciprocal."""

    def read(self, content: object) -> int:
        """Return the integer."""
        if isinstance(content, int | float) and 1 / _MOST <= content <= 1:
            number = round(1 / content)
            if abs(number * content - 1) < 1e-6:
                return number
        raise ValueError(f"is {show_value(content)}; it must be 1 / an integer of at most {_MOST}")

    @property
    def gguf_type(self) -> str:
        """`f32`."""
        return "f32"

    def write(self, value: int) -> float:
        """Return the reciprocal."""
        return 1 / value


def _check(fields: Fields) -> Fields:
    merged = fields["hidden"] * fields["merge"] ** 2
    if fields["adapter_inner"] != fields["adapter_outer"]:
        raise ValueError("`projector_input_dim` and `projector_output_dim` differ")
    if fields["vision_output"] != fields["adapter_outer"]:
        raise ValueError("`vision_output_dim` and `projector_output_dim` differ")
    return {**fields, "positions": count_patches(fields) + 1, "merged": merged}


def _describe_processor(fields: Fields) -> Mapping[str, Any]:
    return {
        "image_processor_type": "Llama4ImageProcessorFast",
        "processor_class": "Llama4Processor",
        "size": {"height": fields["image_size"], "width": fields["image_size"]},
    }


TOWER = Tower(
    family=Family(
        name="the image encoder of llama4",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={"llama4": ModelType(class_name="Llama4ForConditionalGeneration")},
        prefix="",
        other_prefixes=("model.",),
        names=(
            part("class", "v.class_embd", "vision_model.class_embedding",
                 ends={"gguf": "", "hugging_face": ""}),
            part("positions", "v.position_embd", "vision_model.positional_embedding_vlm",
                 "positions", "hidden", is_float32=True, ends=_ALONE),
            part("patches", "v.patch_embd", "vision_model.patch_embedding.linear", "hidden",
                 "patch", is_float32=True),
            part("norm_before", "v.pre_ln", "vision_model.layernorm_pre", bias=True),
            *block("vision_model.model.layers.", _BLOCK, bias=True),
            part("norm_behind", "v.post_ln", "vision_model.layernorm_post", bias=True),
            part("adapter.1", "mm.model.mlp.1", f"{_ADAPTER}fc1", "adapter_inner", "merged"),
            part("adapter.2", "mm.model.mlp.2", f"{_ADAPTER}fc2", "adapter_outer", "adapter_inner"),
            part("projector", "mm.model.fc", "multi_modal_projector.linear_1", "text_hidden",
                 "adapter_outer"),
        ),
        keys=(
            *vision_keys("llama4", epsilon="norm_eps", hidden=768, intermediate=5632, layers=34,
                         heads=16, image_size=448, patch_size=14, norm_epsilon=1e-5),
            *activation_keys({"gelu": "gelu"}, "gelu"),
            rope_key(10000.0),
            Key(field="merge", kind=SIZE, gguf_default=1,
                gguf="clip.vision.projector.scale_factor"),
            Key(field="merge", kind=_OneOver(), default=2,
                hugging_face="vision_config.pixel_shuffle_ratio"),
            Key(field="adapter_inner", kind=SIZE, default=4096,
                gguf_default=0, seen=RowCount("mm.model.mlp.1.weight"),
                hugging_face="vision_config.projector_input_dim"),
            Key(field="adapter_outer", kind=SIZE, default=4096,
                gguf_default=0, seen=RowCount("mm.model.mlp.2.weight"),
                hugging_face="vision_config.projector_output_dim"),
            Key(field="vision_output", kind=SIZE, default=7680, gguf_default=same("adapter_outer"),
                hugging_face="vision_config.vision_output_dim", is_in_weights=True),
            Key(field="projector_bias", default=False, gguf_default=False,
                hugging_face="vision_config.multi_modal_projector_bias",
                kind=Exactly(False, "llama.cpp's projection has no biases")),
        ),
        standard=with_rope,
        checked=_check,
    ),
    texts=("llama4",),
    text_prefixes={"model.": "language_model.model.", "lm_head.": "language_model.lm_head."},
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
    processor=_describe_processor,
    differs=lambda _: "it orders the vectors of an image by columns instead of rows",
    tokens={
        "boi_token_index": "<|image_start|>",
        "eoi_token_index": "<|image_end|>",
        "image_token_index": "<|patch|>",
    },
)  # fmt: skip

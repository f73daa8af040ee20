"""The image encoder of Qwen2-VL: patches of two frames, two-dimensional RoPE, and merged patches.

Names and keys: transformers' `modeling_qwen2_vl.py` and `configuration_qwen2_vl.py`; llama.cpp's
`conversion/qwenvl.py` and `tools/mtmd/models/qwen2vl.cpp`. The converter states the width of the
text model as that of the MLP (`clip.vision.feed_forward_length`), which llama.cpp does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE, Exactly, WholeNumber
from weightctl.families.model import CLIP
from weightctl.families.towers.tower import (
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

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields

# The mean and deviation of the pixels that CLIP was trained with.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
# It is not in config.json: transformers has it in its code.
EPSILON = 1e-6
CALLED = {"layers": "depth", "heads": "num_heads", "channels": "in_channels"}
IMAGE_TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}
_FRAMES, _MERGE = 2, 2
_RATIO = 4
_USUAL_SIDE = 560
_FRAME = "frame.{}"

# Hugging Face's convention has queries, keys and values in one tensor.
FUSED_QKV: dict[str, str | None] = {"attn_q": None, "attn_k": None, "attn_v": None}
FUSED_QUERIES = Fusion(
    convention="hugging_face",
    name="visual.blocks.{}.attn.qkv.{kind}",
    parts=tuple(f"layers.{{}}.{name}" for name in FUSED_QKV),
)
_NORMS: dict[str, str | None] = {"ln1": "norm1", "ln2": "norm2"}
_BLOCK = {
    **_NORMS,
    **FUSED_QKV,
    "attn_out": "attn.proj",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
MERGER_LINES = (
    part("merger.1", "mm.0", "visual.merger.mlp.0", "merged", "merged", bias=True),
    part("merger.2", "mm.2", "visual.merger.mlp.2", "text_hidden", "merged", bias=True),
)


def frame_lines() -> tuple[Name, ...]:
    """Return the lines of the patch embedding: GGUF has a tensor for each frame."""
    return tuple(
        part(_FRAME.format(number), "v.patch_embd", None, "hidden", "channels",
             kernel=("patch_size", "patch_size"), is_float32=True,
             ends={"gguf": f".weight.{number}" if number else ".weight"})
        for number in range(_FRAMES)
    )  # fmt: skip


def frame_fusion(name: str) -> Fusion:
    """Return the tensor that contains both frames in Hugging Face's convention."""
    parts = tuple(f"frame.{number}" for number in range(_FRAMES))
    return Fusion(convention="hugging_face", name=f"{name}.{{kind}}", parts=parts, axis=2)


def output_key(name: str) -> Key:
    """Return the key of the width of the vectors in config.json, which must be the text model's."""
    return Key(field="output", kind=SIZE, default=3584, gguf_default=same("text_hidden"),
               hugging_face=f"vision_config.{name}")  # fmt: skip


MERGE_KEYS = (
    Key(field="frames", default=_FRAMES, gguf_default=_FRAMES,
        hugging_face="vision_config.temporal_patch_size",
        kind=Exactly(_FRAMES, "llama.cpp has patches of two frames")),
    rope_key(10000.0),
)  # fmt: skip
# It has no meaning: images keep their size, and no position is learned.
IMAGE_SIZE = (
    Key(field="image_size", kind=SIZE, gguf="clip.vision.image_size", gguf_default=_USUAL_SIDE,
        written=True),
    Key(field="merge", default=_MERGE, gguf_default=_MERGE,
        hugging_face="vision_config.spatial_merge_size",
        kind=Exactly(_MERGE, "llama.cpp merges squares of 2 x 2 patches")),
)  # fmt: skip


def check_merged(fields: Fields) -> Fields:
    """Return the fields with the width of merged patches; raises `ValueError` if sizes differ."""
    if fields["output"] != fields["text_hidden"]:
        raise ValueError(
            f"the image encoder returns vectors of {fields['output']} values, but the hidden size "
            f"of the text model is {fields['text_hidden']}"
        )
    return {**fields, "merged": fields["hidden"] * fields["merge"] ** 2}


def _check(fields: Fields) -> Fields:
    return {**check_merged(fields), "intermediate": fields["hidden"] * fields["ratio"]}


def describe_processor(fields: Fields) -> Mapping[str, Any]:
    """Return what GGUF does not state of preprocessor_config.json."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2VLProcessor",
        "patch_size": fields["patch_size"],
        "temporal_patch_size": _FRAMES,
        "merge_size": _MERGE,
    }


TOWER = Tower(
    family=Family(
        name="the image encoder of qwen2vl",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={"qwen2_vl": ModelType(class_name="Qwen2VLForConditionalGeneration")},
        prefix="",
        other_prefixes=("model.",),
        names=(
            *frame_lines(),
            *block("visual.blocks.", _BLOCK, bias=True),
            part("norm", "v.post_ln", "visual.merger.ln_q", bias=True),
            *MERGER_LINES,
        ),
        fusions=(FUSED_QUERIES, frame_fusion("visual.patch_embed.proj")),
        keys=(
            *vision_keys("qwen2vl_merger", epsilon="", called={**CALLED, "hidden": "embed_dim"},
                         hidden=1280, layers=32, heads=16, patch_size=14, norm_epsilon=EPSILON),
            output_key("hidden_size"),
            Key(field="ratio", default=_RATIO, gguf_default=_RATIO,
                hugging_face="vision_config.mlp_ratio",
                kind=Exactly(_RATIO, "GGUF does not state another ratio of the MLP's width")),
            Key(field="stated_inner", kind=WholeNumber(0, SIZE.most),
                gguf="clip.vision.feed_forward_length", gguf_default=same("text_hidden")),
            *activation_keys({"quick_gelu": "gelu_quick"}, "gelu_quick"),
            *IMAGE_SIZE,
            *MERGE_KEYS,
        ),
        standard=with_rope,
        checked=_check,
    ),
    texts=("qwen2vl",),
    text_prefixes={},
    mean=CLIP_MEAN,
    deviation=CLIP_DEVIATION,
    processor=describe_processor,
    tokens=IMAGE_TOKENS,
    types={"qwen2vl": ("qwen2_vl", "qwen2_vl_text")},
)  # fmt: skip

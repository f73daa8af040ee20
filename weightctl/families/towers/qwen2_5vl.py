"""The image encoder of Qwen2.5-VL: that of Qwen2-VL with windows of attention and RMS norms.

Names and keys: transformers' `modeling_qwen2_5_vl.py` and `configuration_qwen2_5_vl.py`;
llama.cpp's `conversion/qwenvl.py` and `tools/mtmd/models/qwen2vl.cpp`. GGUF states of the layers
without windows that every n-th layer is one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import LAYERS, SIZE, Exactly, WholeNumber, show_value
from weightctl.families.model import CLIP
from weightctl.families.towers.qwen2vl import (
    CALLED,
    CLIP_DEVIATION,
    CLIP_MEAN,
    EPSILON,
    FUSED_QKV,
    FUSED_QUERIES,
    IMAGE_SIZE,
    IMAGE_TOKENS,
    MERGE_KEYS,
    MERGER_LINES,
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
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_USUAL_FULL = (7, 15, 23, 31)
# The published models have this value, and transformers' default is another one.
_FRAMES_PER_SECOND = "tokens_per_second"
_USUAL_FRAMES = 2
_NORMS = {"ln1": "norm1", "ln2": "norm2"}
_BLOCK: dict[str, str | None] = {
    **FUSED_QKV,
    "attn_out": "attn.proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class LayerNumbers(NamedTuple):
    """A list of layer numbers, in order."""

    def read(self, content: object) -> tuple[int, ...]:
        """Return the numbers."""
        if not is_sequence(content) or len(content) > LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must be a list of layer numbers")
        found = tuple(WholeNumber(0, LAYERS.most).read(each) for each in content)
        if any(left >= right for left, right in pairwise(found)):
            raise ValueError(f"is {show_value(content)}; the numbers must increase")
        return found

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[i32]"

    def write(self, value: tuple[int, ...]) -> list[int]:
        """Return the numbers as a list."""
        return list(value)


def _list_full(fields: Fields) -> tuple[int, ...]:
    """Return the layers without windows."""
    if "full_every" not in fields:
        return _USUAL_FULL
    every = fields["full_every"]
    return tuple(range(every - 1, fields["layers"], every))


def _find_pattern(fields: Fields) -> int:
    """Return the n of the layers without windows, which are every n-th one."""
    if "full_layers" not in fields:
        raise ValueError("is missing")
    full, layers = fields["full_layers"], fields["layers"]
    every = int(full[0]) + 1 if full else int(layers) + 1
    if full != tuple(range(every - 1, layers, every)):
        raise ValueError(
            f"does not follow from `fullatt_block_indexes` = {show_value(full)}: llama.cpp has "
            f"attention without windows in every n-th of the {layers} layers"
        )
    return every


def _check(fields: Fields) -> Fields:
    _find_pattern({"full_layers": _list_full(fields), **fields})
    return check_merged(fields)


def _complete(document: Mapping[str, Any]) -> Mapping[str, Any]:
    vision = document["vision_config"]
    return {**document, "vision_config": {_FRAMES_PER_SECOND: _USUAL_FRAMES, **vision}}


def _find_difference(fields: Fields) -> str:
    frames = fields.get("frames_per_second", _USUAL_FRAMES)
    if frames == _USUAL_FRAMES:
        return ""
    return f"it does not get `{_FRAMES_PER_SECOND}` ({frames}), which is about the frames of videos"


TOWER = Tower(
    family=Family(
        name="the image encoder of qwen2.5vl",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={"qwen2_5_vl": ModelType(class_name="Qwen2_5_VLForConditionalGeneration")},
        prefix="",
        other_prefixes=("model.",),
        names=(
            *frame_lines(),
            *block("visual.blocks.", _NORMS, bias=False),
            *block("visual.blocks.", _BLOCK, bias=True),
            part("norm", "v.post_ln", "visual.merger.ln_q"),
            *MERGER_LINES,
        ),
        fusions=(FUSED_QUERIES, frame_fusion("visual.patch_embed.proj")),
        keys=(
            *vision_keys("qwen2.5vl_merger", epsilon="", called=CALLED, hidden=3584,
                         intermediate=3420, layers=32, heads=16, patch_size=14,
                         norm_epsilon=EPSILON),
            output_key("out_hidden_size"),
            *activation_keys({"silu": "silu", "swish": "silu"}, "silu"),
            Key(field="full_layers", kind=LayerNumbers(), default=_list_full, written=True,
                hugging_face="vision_config.fullatt_block_indexes"),
            Key(field="full_every", kind=WholeNumber(1, LAYERS.most + 1),
                gguf="clip.vision.n_wa_pattern", gguf_default=_find_pattern),
            Key(field="window", default=112, gguf_default=112,
                hugging_face="vision_config.window_size",
                kind=Exactly(112, "llama.cpp has windows of 112 x 112 pixels")),
            Key(field="frames_per_second", kind=SIZE, default=4,
                hugging_face=f"vision_config.{_FRAMES_PER_SECOND}"),
            *IMAGE_SIZE,
            *MERGE_KEYS,
        ),
        standard=with_rope,
        completed=_complete,
        checked=_check,
    ),
    texts=("qwen2vl",),
    text_prefixes={},
    mean=CLIP_MEAN,
    deviation=CLIP_DEVIATION,
    processor=describe_processor,
    tokens=IMAGE_TOKENS,
    types={"qwen2vl": ("qwen2_5_vl", "qwen2_5_vl_text")},
    differs=_find_difference,
)  # fmt: skip

"""The image encoder of Gemma 4: two-dimensional RoPE, learned positions of x and y, and averages.

Names and keys: transformers' `modeling_gemma4.py` and `configuration_gemma4.py`; llama.cpp's
`conversion/gemma.py` (`Gemma4VisionAudioModel`) and `tools/mtmd/models/gemma4v.cpp`. The audio
encoder is not supported. The converter does not state the activation, so that llama.cpp takes
another GELU; it is stated here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, Present, RowCount, quotient, same
from weightctl.families.kinds import FLAG, HEADS, SIZE, Exactly
from weightctl.families.model import CLIP
from weightctl.families.steps import AS_SCALAR, PATCH_ROWS
from weightctl.families.towers.tower import (
    Tower,
    activation_keys,
    block,
    part,
    rope_key,
    vision_keys,
    with_rope,
)
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields

_LAYERS = "model.vision_tower.encoder.layers."
_VISION = "model.vision_tower."
_PROJECTIONS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {
    "ln1": "input_layernorm",
    "attn_post_norm": "post_attention_layernorm",
    "ln2": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_POOLED = 3
# It has no meaning: images keep their shape.
_IMAGE_SIZE = 224


def _list_layer_lines() -> tuple[Name, ...]:
    projections = {gguf: f"{name}.linear" for gguf, name in _PROJECTIONS.items()}
    norms = tuple(
        part(f"layers.{{}}.{gguf}", f"v.blk.{{}}.{gguf}", f"{_LAYERS}{{}}.{name}",
             "head_dim" if gguf in _HEAD_NORMS else "hidden")
        for gguf, name in {**_NORMS, **_HEAD_NORMS}.items()
    )  # fmt: skip
    limits = tuple(
        part(f"layers.{{}}.{gguf}.{limit}", f"v.blk.{{}}.{gguf}", f"{_LAYERS}{{}}.{name}", "single",
             change=AS_SCALAR, when=("has_limits",),
             ends={"gguf": f".{limit}", "hugging_face": f".{limit}"})
        for gguf, name in _PROJECTIONS.items()
        for limit in ("input_min", "input_max", "output_min", "output_max")
    )  # fmt: skip
    return (*block(_LAYERS, projections, bias=False), *norms, *limits)


def _check(fields: Fields) -> Fields:
    if fields["head_dim"] * fields["heads"] != fields["hidden"]:
        raise ValueError(
            f"{fields['heads']} heads of {fields['head_dim']} elements are not as wide as the "
            f"hidden size {fields['hidden']}, as llama.cpp assumes"
        )
    if fields["kv_heads"] != fields["heads"]:
        raise ValueError("llama.cpp needs as many heads of keys and values as of queries")
    return fields


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document with the base of RoPE as a float, and an encoder of images."""
    if not is_object(document.get("vision_config")):
        raise ValueError("`vision_config` is missing: the model has no image encoder")
    return with_rope(document)


def _describe_processor(fields: Fields) -> Mapping[str, Any]:
    return {
        "image_processor_type": "Gemma4ImageProcessor",
        "processor_class": "Gemma4Processor",
        "patch_size": fields["patch_size"],
        "pooling_kernel_size": _POOLED,
    }


TOWER = Tower(
    family=Family(
        name="the image encoder of gemma4",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={"gemma4": ModelType(class_name="Gemma4ForConditionalGeneration")},
        prefix="",
        other_prefixes=("model.",),
        beside=(r"(audio_tower|embed_audio)\..+",),
        names=(
            part("patches", "v.patch_embd", f"{_VISION}patch_embedder.input_proj", "hidden",
                 "channels", kernel=("patch_size", "patch_size"), change=PATCH_ROWS,
                 is_float32=True),
            part("positions", "v.position_embd",
                 f"{_VISION}patch_embedder.position_embedding_table", "directions", "positions",
                 kernel=("hidden",), is_float32=True, ends={"hugging_face": ""}),
            *_list_layer_lines(),
            *(part(f"standard.{name}", f"v.std_{name}", f"{_VISION}std_{name}",
                   ends={"gguf": "", "hugging_face": ""}, when=("has_standard",))
              for name in ("bias", "scale")),
            part("projector", "mm.input_projection", "model.embed_vision.embedding_projection",
                 "text_hidden", "hidden"),
        ),
        keys=(
            *vision_keys("gemma4v", epsilon="rms_norm_eps", called={"channels": ""}, hidden=768,
                         intermediate=3072,
                         layers=16, heads=12, patch_size=16, norm_epsilon=1e-6,
                         projector_key="clip.vision.projector_type"),
            Key(field="image_size", kind=SIZE, gguf="clip.vision.image_size",
                gguf_default=_IMAGE_SIZE, written=True),
            *activation_keys({"gelu_pytorch_tanh": "gelu"}, "gelu", "hidden_activation"),
            Key(field="head_dim", kind=SIZE, default=64, gguf_default=quotient("hidden", "heads"),
                hugging_face="vision_config.head_dim"),
            Key(field="kv_heads", kind=HEADS, default=12, gguf_default=same("heads"),
                hugging_face="vision_config.num_key_value_heads"),
            Key(field="positions", kind=SIZE, default=10240,
                seen=RowCount("v.position_embd.weight", 1), gguf_default=0,
                hugging_face="vision_config.position_embedding_size"),
            Key(field="has_biases", default=False, gguf_default=False,
                hugging_face="vision_config.attention_bias",
                kind=Exactly(False, "attention biases are not supported")),
            Key(field="pooled", default=_POOLED, gguf_default=_POOLED,
                hugging_face="vision_config.pooling_kernel_size",
                kind=Exactly(_POOLED, "llama.cpp averages squares of 3 x 3 patches")),
            Key(field="has_limits", kind=FLAG, default=False,
                seen=Present("v.blk.0.attn_q.input_min"),
                hugging_face="vision_config.use_clipped_linears"),
            Key(field="has_standard", kind=FLAG, default=False, seen=Present("v.std_bias"),
                hugging_face="vision_config.standardize"),
            rope_key(100.0),
        ),
        standard=_standard,
        checked=_check,
    ),
    texts=("gemma4",),
    text_prefixes={"model.": "model.language_model."},
    mean=(0.0, 0.0, 0.0),
    deviation=(1.0, 1.0, 1.0),
    processor=_describe_processor,
    tokens={
        "boi_token_id": "<|image>",
        "eoi_token_id": "<image|>",
        "image_token_id": "<|image|>",
    },
)  # fmt: skip

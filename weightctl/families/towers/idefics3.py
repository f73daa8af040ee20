"""The image encoder of Idefics 3 and SmolVLM: SigLIP, and a projection of merged patches.

Names and keys: transformers' `modeling_idefics3.py`, `modeling_smolvlm.py` and their configs;
llama.cpp's `conversion/smolvlm.py` and `tools/mtmd/models/siglip.cpp`. GGUF does not tell the two
model types apart; their tensors and computations are the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, same
from weightctl.families.kinds import SIZE
from weightctl.families.model import CLIP
from weightctl.families.towers.gemma3 import SIGLIP_ACTIVATION, SIGLIP_BLOCK
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

_EMBEDDINGS = "model.vision_model.embeddings."


def _check(fields: Fields) -> Fields:
    merged = fields["hidden"] * fields["merge"] ** 2
    return {**fields, "positions": count_patches(fields), "merged": merged}


def _describe_processor(fields: Fields) -> Mapping[str, Any]:
    return {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "max_image_size": {"longest_edge": fields["image_size"]},
    }


TOWER = Tower(
    family=Family(
        name="the image encoder of idefics3",
        gguf=CLIP,
        module="",
        config="weightctl.families.towers.tower:VisionConfig",
        model_types={
            "idefics3": ModelType(class_name="Idefics3ForConditionalGeneration"),
            "smolvlm": ModelType(class_name="SmolVLMForConditionalGeneration"),
        },
        prefix="",
        other_prefixes=("model.vision_model.", "vision_model.", "model."),
        names=(
            part("patches", "v.patch_embd", f"{_EMBEDDINGS}patch_embedding", "hidden", "channels",
                 kernel=("patch_size", "patch_size"), bias=True, is_float32=True),
            part("positions", "v.position_embd", f"{_EMBEDDINGS}position_embedding", "positions",
                 "hidden", is_float32=True),
            *block("model.vision_model.encoder.layers.", SIGLIP_BLOCK, bias=True),
            part("norm", "v.post_ln", "model.vision_model.post_layernorm", bias=True),
            part("projector", "mm.model.fc", "model.connector.modality_projection.proj",
                 "text_hidden", "merged"),
        ),
        keys=(
            *vision_keys("idefics3", hidden=1152, intermediate=3072, layers=12, heads=16,
                         image_size=224, patch_size=32, norm_epsilon=1e-6),
            *activation_keys(SIGLIP_ACTIVATION, "gelu"),
            Key(field="merge", kind=SIZE, default=2, gguf_default=1,
                gguf="clip.vision.projector.scale_factor", hugging_face="scale_factor"),
            Key(field="longest_edge", kind=SIZE, default=same("image_size"),
                gguf_default=same("image_size"), gguf="clip.vision.preproc_image_size",
                hugging_face="preprocessor.size.longest_edge", written=True),
        ),
        checked=_check,
    ),
    texts=("llama",),
    text_prefixes={"model.": "model.text_model."},
    mean=(0.5, 0.5, 0.5),
    deviation=(0.5, 0.5, 0.5),
    processor=_describe_processor,
    tokens={"image_token_id": "<image>"},
)  # fmt: skip

"""llama, and the families with the same layers: Mistral, InternLM3, SmolLM, TinyLlama.

Names and keys: transformers' `modeling_llama.py` and `configuration_llama.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.changes import RopeRows
from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    SLIDING_WINDOW,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.kinds import show_value
from weightctl.families.layer_rope import object_of
from weightctl.families.lines import DECODER, adapt
from weightctl.families.multimodal import TOWER_TENSORS
from weightctl.families.rope_factors import LLAMA3_LINES
from weightctl.families.rope_keys import ROPE_FACTORS, standard_of

if TYPE_CHECKING:
    from collections.abc import Mapping

# In GGUF, the two rows of each rotated pair are neighbors.
ROPE_ROWS = {
    "attention.q": {"change": RopeRows("heads")},
    "attention.k": {"change": RopeRows("kv_heads")},
}

_MISTRAL_DEFAULTS = {
    "context": 131072,
    "intermediate": 14336,
    "kv_heads": 8,
    "sliding_window": 4096,
}
_VOXTRAL_DEFAULTS = {
    "vocabulary": 131072,
    "hidden": 3072,
    "intermediate": 8192,
    "layers": 30,
    "kv_heads": 8,
    "context": 131072,
    "norm_epsilon": 1e-5,
    "rope_base": 1e8,
    "head_dim": 128,
}
_WITHOUT_BIASES = {"attention_bias": False, "attention_output_bias": False, "mlp_bias": False}
# The type of the text model in multimodal models of these types.
_TEXTS = {
    "idefics3": "llama",
    "smolvlm": "llama",
    "llava": "mistral",
    "internvl": "llama",
    "voxtral": "llama",
}
_TIED = "tie_word_embeddings"
# The names in InternLM's own code.
_usual_standard = standard_of({"attention_bias": "qkv_bias", "mlp_bias": "bias"})


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the standard config.json of the text model, which multimodal models contain."""
    usual = _TEXTS.get(document["model_type"])
    if usual is None:
        return _usual_standard(document)
    text = object_of(document, "text_config")
    kind = text.get("model_type", usual)
    if kind != usual:
        raise ValueError(
            f"`text_config.model_type` is {show_value(kind)}, a text model that weightctl does not "
            f"support in models of the type {document['model_type']}; it supports {usual}"
        )
    tied = {_TIED: document[_TIED]} if _TIED in document else {}
    return _usual_standard({**text, **tied})


FAMILY = Family(
    name="llama",
    model_types={
        "llama": ModelType(class_name="LlamaForCausalLM", fixed={"sliding_window": None}),
        "mistral": ModelType(
            class_name="MistralForCausalLM",
            defaults=_MISTRAL_DEFAULTS,
            fixed=_WITHOUT_BIASES,
        ),
        # transformers and GGUF treat it as a llama.
        "internlm3": ModelType(
            class_name="LlamaForCausalLM",
            defaults={
                "vocabulary": 128512,
                "context": 32768,
                "intermediate": 10240,
                "layers": 48,
                "kv_heads": 2,
                "head_dim": 128,
                "norm_epsilon": 1e-5,
            },
            fixed={"sliding_window": None},
        ),
        # Multimodal models, whose text model is a llama.
        "idefics3": ModelType(
            class_name="Idefics3ForConditionalGeneration", fixed={"sliding_window": None}
        ),
        "smolvlm": ModelType(
            class_name="SmolVLMForConditionalGeneration", fixed={"sliding_window": None}
        ),
        "llava": ModelType(
            class_name="LlavaForConditionalGeneration",
            defaults=_MISTRAL_DEFAULTS,
            fixed=_WITHOUT_BIASES,
        ),
        "internvl": ModelType(
            class_name="InternVLForConditionalGeneration", fixed={"sliding_window": None}
        ),
        "voxtral": ModelType(
            class_name="VoxtralForConditionalGeneration",
            defaults=_VOXTRAL_DEFAULTS,
            fixed={"sliding_window": None},
        ),
    },
    # The prefixes of the text model in multimodal checkpoints.
    other_prefixes=(
        "model.text_model.",
        "language_model.model.",
        "model.language_model.",
        "language_model.",
    ),
    names=adapt(
        DECODER,
        {**ROPE_ROWS, **LLAMA3_LINES},
    ),
    keys=with_keys(
        DECODER_KEYS,
        *BIASES,
        ROPE_FACTORS,
        SLIDING_WINDOW,
    ),
    fusions=(qkv_form(),),
    # Frequencies of RoPE in the first GGUF files, and image encoders with their projections.
    beside=(
        r"blk\.\d+\.attn_rot_embd\.weight",
        TOWER_TENSORS,
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip

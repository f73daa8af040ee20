"""Qwen3, dense models: a Qwen2 with a norm of each head of queries and keys.

Names and keys: transformers' `modeling_qwen3.py` and `configuration_qwen3.py`; llama.cpp's
`convert_hf_to_gguf.py` and `llama-model.cpp`.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import BIASES, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.keys import Key
from weightctl.families.kinds import FLAG
from weightctl.families.lines import DECODER, adapt
from weightctl.families.multimodal import in_multimodal
from weightctl.families.qwen2 import KEYS, check_fields, standard

FAMILY = in_multimodal(
    Family(
        name="qwen3",
        model_types={
            "qwen3": ModelType(
                class_name="Qwen3ForCausalLM",
                defaults={
                    "vocabulary": 151936,
                    "context": 32768,
                    "intermediate": 22016,
                    "kv_heads": 32,
                    "head_dim": 128,
                },
            )
        },
        blocks={"qk_norm": "head"},
        names=adapt(DECODER, {"attention.q_norm": {}, "attention.k_norm": {}}),
        keys=with_keys(
            KEYS,
            BIASES[0],
            # llama.cpp does not support a bias of the output projection.
            Key(field="attention_output_bias", kind=FLAG, default=False, gguf_default=False,
                hugging_face="attention_bias"),
        ),
        fusions=(qkv_form(),),
        standard=standard,
        checked=check_fields,
    ),
    {"internvl": "InternVLForConditionalGeneration"},
)  # fmt: skip

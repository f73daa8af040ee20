"""EuroBERT: a llama that also attends to later tokens, and that has no output matrix.

Names and keys: transformers' `modeling_eurobert.py`; llama.cpp's `models/eurobert.cpp`.
"""

from __future__ import annotations

from weightctl.families.decoder_keys import BIASES, DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import Exactly
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

FAMILY = Family(
    name="eurobert",
    model_types={
        "eurobert": ModelType(
            class_name="EuroBertModel",
            defaults={
                "vocabulary": 128256,
                "context": 8192,
                "hidden": 768,
                "layers": 12,
                "heads": 12,
                "intermediate": 3072,
                "norm_epsilon": 1e-5,
            },
        )
    },
    config="weightctl.families.encoder:EncoderConfig",
    module="weightctl.nn.models.encoder:TextEncoder",
    names=adapt(DECODER, {"output": None}),
    keys=with_keys(
        DECODER_KEYS,
        *(
            Key(field=key.field, default=False, gguf_default=False, hugging_face=key.hugging_face,
                kind=Exactly(False, "llama.cpp does not load biases in EuroBERT"))
            for key in BIASES
        ),
        Key(field="is_causal", kind=Exactly(False, "EuroBERT attends to later tokens"),
            gguf_default=False, gguf="{arch}.attention.causal", written=True),
        without=("tied",),
    ),
    beside=(r"lm_head\..*",),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip

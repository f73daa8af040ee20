"""The first Gemma: a llama with scaled embeddings, whose norm weights are stored minus 1.

Names and keys: transformers' `modeling_gemma.py`; llama.cpp's `conversion/gemma.py`.
"""

from __future__ import annotations

from weightctl.families.changes import PLUS_ONE
from weightctl.families.decoder_keys import check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.gemma2 import GEMMA_KEYS, ROPE, SCALING
from weightctl.families.keys import Key
from weightctl.families.kinds import ACTIVATION, FLAG, Choice
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

_NORM = {"change": PLUS_ONE}

FAMILY = Family(
    name="gemma",
    model_types={
        "gemma": ModelType(
            class_name="GemmaForCausalLM",
            defaults={
                "vocabulary": 256000,
                "context": 8192,
                "hidden": 3072,
                "layers": 28,
                "heads": 16,
                "kv_heads": 16,
                "head_dim": 256,
                "intermediate": 24576,
            },
        )
    },
    blocks={"embedding_by_root": True},
    # llama.cpp always uses the embedding as the output.
    names=adapt(
        DECODER,
        {"attention_norm": _NORM, "mlp_norm": _NORM, "norm": _NORM, "output": {"gguf": None}},
    ),
    keys=with_keys(
        (*GEMMA_KEYS, *SCALING, *ROPE),
        # Releases say `gelu` and mean the one with tanh, as transformers has it.
        Key(field="activation", gguf_default="gelu_tanh", default="gelu_tanh",
            kind=Choice({"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATION.meanings,
                         "gelu": "gelu_tanh"}), hugging_face="hidden_act"),
        Key(field="tied", kind=FLAG, default=True, gguf_default=True,
            hugging_face="tie_word_embeddings"),
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip

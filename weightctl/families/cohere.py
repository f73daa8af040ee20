"""Command R: attention and MLP share a LayerNorm without bias, and logits are scaled.

In Command R+, queries and keys are normed, each head with its own weights.

Names and keys: transformers' `modeling_cohere.py`; llama.cpp's `conversion/command_r.py`. Rotated
pairs are neighbors in both conventions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    LAYER_NORM,
    MULTIPLIERS,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key, PresentAs
from weightctl.families.kinds import FLAG
from weightctl.families.layers import FlagMeaning
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_LAYERS_WITH_NORMS = 64
_IF_NORMED = {"when": ("qk_norm",)}


def _find_unlike(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model, None if it does.

    llama.cpp infers from the number of layers whether queries and keys are normed.
    """
    if (fields["qk_norm"] is not None) == (fields["layers"] >= _LAYERS_WITH_NORMS):
        return None
    found = "norms" if fields["qk_norm"] else "no norms"
    return (
        f"it has {fields['layers']} layers and {found} of queries and keys, but llama.cpp expects "
        f"these norms in models of {_LAYERS_WITH_NORMS} layers or more, and in no others"
    )


FAMILY = Family(
    name="cohere",
    gguf="command-r",
    model_types={
        "cohere": ModelType(
            class_name="CohereForCausalLM",
            defaults={
                "vocabulary": 256000,
                "context": 8192,
                "hidden": 8192,
                "intermediate": 22528,
                "layers": 40,
                "heads": 64,
                "logit_scale": 0.0625,
                "rope_base": 500000.0,
                "tied": True,
            },
        )
    },
    blocks={
        "norm": "layer",
        "norm_bias": False,
        "parallel": True,
        "shared_norm": True,
        "rope_interleaved": True,
    },
    heads_fill_hidden=True,
    unloaded=_find_unlike,
    # llama.cpp always uses the embedding as the output.
    names=adapt(
        DECODER,
        {
            "attention.q_norm.apart": _IF_NORMED,
            "attention.k_norm.apart": _IF_NORMED,
            "mlp_norm": None,
            "output": {"gguf": None},
        },
    ),
    keys=with_keys(
        DECODER_KEYS,
        LAYER_NORM,
        MULTIPLIERS["logit_scale"],
        Key(field="tied", kind=FLAG, default=True, gguf_default=True,
            hugging_face="tie_word_embeddings"),
        *BIASES[:2],
        Key(field="qk_norm", kind=FlagMeaning("apart"), default=None, gguf_default=None,
            hugging_face="use_qk_norm", seen=PresentAs("blk.0.attn_q_norm.weight", "apart")),
    ),
    standard=standard,
    checked=check_decoder,
)  # fmt: skip

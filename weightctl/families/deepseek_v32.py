"""DeepSeek-V3.2: a DeepSeek-V3 in which an indexer selects the keys that a query sees (DSA).

Names and keys: transformers' `modeling_deepseek_v32.py`; llama.cpp's `models/deepseek32.cpp` and
`conversion/deepseek.py`. Rotated pairs of the attention are neighbors in both conventions, and
those of the indexer are in different halves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, activation
from weightctl.families.deepseek_v2 import NO_BIASES, NO_MLP_BIASES
from weightctl.families.deepseek_v3 import FAMILY as DEEPSEEK_V3
from weightctl.families.experts import (
    ROUTED_KEYS,
    ROUTED_LINES,
    checking_experts,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE
from weightctl.families.latent import LATENT_DECODER, YARN_MULTIPLIER, check_latent, latent_keys
from weightctl.families.layers import LayersAlike
from weightctl.families.lines import lines
from weightctl.families.mtp import MTP_LINES, mtp_keys, with_mtp_lines
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

_DENSE, _SPARSE = "dense", "sparse"
# What transformers calls the layers now, and what it called them.
_KINDS = ("indexed_attention", "deepseek_sparse_attention")
_EVERY = "other kinds of attention are not supported in this family"

INDEXED_DECODER = (
    *LATENT_DECODER[:-6],
    *lines(
        "attention.indexer.q_b",
        "attention.indexer.k",
        "attention.indexer.k_norm",
        "attention.indexer.factors",
    ),
    *LATENT_DECODER[-6:],
)

INDEXER_KEYS = (
    Key(field="query_rank", kind=SIZE, default=1536, gguf="{arch}.attention.q_lora_rank",
        hugging_face="q_lora_rank"),
    Key(field="indexer_heads", kind=SIZE, default=64, gguf="{arch}.attention.indexer.head_count",
        hugging_face="index_n_heads"),
    Key(field="indexer_size", kind=SIZE, default=128, gguf="{arch}.attention.indexer.key_length",
        hugging_face="index_head_dim"),
    Key(field="indexer_used", kind=SIZE, default=2048, gguf="{arch}.attention.indexer.top_k",
        hugging_face="index_topk"),
    Key(field="layer_kinds", kind=LayersAlike(_EVERY, _KINDS), default=None,
        hugging_face="layer_types", written=False),
)  # fmt: skip


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of dense layers that `mlp_layer_types` begins with.

    Raises `ValueError` if there are dense layers after these.
    """
    found = dict(standard_rope(document))
    kinds = found.get("mlp_layer_types")
    if not is_list(kinds):
        return found
    count = kinds.index(_SPARSE) if _SPARSE in kinds else len(kinds)
    if any(kind != _DENSE for kind in kinds[:count]) or any(
        kind != _SPARSE for kind in kinds[count:]
    ):
        raise ValueError("`mlp_layer_types` must list `dense` layers first, and then `sparse` ones")
    return found | {"first_k_dense_replace": count}


def check_indexer(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    rotated, size = fields["rope_dimensions"], fields["indexer_size"]
    if rotated > size:
        raise ValueError(
            f"{rotated} elements of a head of the indexer cannot be rotated: it has only {size}"
        )
    return check_latent(fields)


FAMILY = replace(
    DEEPSEEK_V3,
    name="deepseek_v32",
    gguf="deepseek32",
    is_of=None,
    model_types={
        "deepseek_v32": ModelType(
            class_name="DeepseekV32ForCausalLM",
            defaults={
                **DEEPSEEK_V3.model_types["deepseek_v3"].defaults,
                "context": 163840,
            },
        )
    },
    blocks={"rope_interleaved": True, "router": "sigmoid", "router_correction": True},
    unloaded=None,
    names=with_mtp_lines(expert_lines(INDEXED_DECODER, dense=True, more=ROUTED_LINES), MTP_LINES),
    keys=expert_keys(
        latent_keys(
            mtp_keys(DECODER_KEYS, "num_nextn_predict_layers"),
            activation("silu"),
            NO_BIASES,
            YARN_MULTIPLIER,
        ),
        "n_routed_experts",
        NO_MLP_BIASES,
        *INDEXER_KEYS,
        *ROUTED_KEYS,
        experts=256,
        used=8,
    ),
    standard=standard,
    checked=checking_experts(check_indexer),
)

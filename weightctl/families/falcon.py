"""Falcon: parallel attention and MLP, few KV heads, and RoPE.

Names and keys: transformers' `modeling_falcon.py`; llama.cpp's `conversion/falcon.py`. Models of
the new architecture use grouped-query attention, and one or two norms in each layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import IsAbsent, Key, product, with_keys
from weightctl.families.config_values import FLAG, HEADS, SIZE, Exactly, OrNone, WholeNumber
from weightctl.families.decoder_keys import DECODER_KEYS, LAYER_NORM, activation, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.rope import standard as standard_rope
from weightctl.families.steps import group_heads, reorder_rows
from weightctl.families.usual_names import layer_lines, line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.config_keys import Fields

_NEW, _NORMS = "new_decoder_architecture", "num_ln_in_parallel_attn"


def _order(config: Any) -> Sequence[int]:
    queries = config.heads // config.kv_heads * config.head_dim
    return group_heads(config.kv_heads, (queries, config.head_dim, config.head_dim))


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of KV heads, which older files state as flags.

    The number of norms is added if a model of the new architecture does not state it.
    """
    found = dict(standard_rope(document))
    if not found.get(_NEW):
        is_shared = found.get("multi_query", True)
        found["num_kv_heads"] = 1 if is_shared else found.get("num_attention_heads", 71)
    elif found.get(_NORMS) is None:
        found[_NORMS] = 2
    return found


def _is_new(fields: Fields) -> bool:
    # With a KV head for each query head, both architectures are the same.
    is_grouped = fields["kv_heads"] not in {1, fields["heads"]}
    return is_grouped or not fields.get("shared_norm", True)


def _shares_head(fields: Fields) -> bool | None:
    return None if fields["kv_heads"] == 1 or _is_new(fields) else False


def _has_one_norm(fields: Fields) -> bool:
    return bool(fields["norms_of_layer"] != 2)


def _count_norms(fields: Fields) -> int | None:
    if not _is_new(fields):
        return None
    return 1 if fields.get("shared_norm", True) else 2


def _one_head(fields: Fields) -> int:  # noqa: ARG001  # as a default has it
    return 1


_KEYS = with_keys(
    DECODER_KEYS,
    Key(field="kv_heads", kind=HEADS, default=_one_head, gguf_default=1,
        gguf="{arch}.attention.head_count_kv", hugging_face="num_kv_heads"),
    Key(field="intermediate", kind=SIZE, default=product("hidden", 4),
        gguf="{arch}.feed_forward_length", hugging_face="ffn_hidden_size"),
    replace(LAYER_NORM, hugging_face="layer_norm_epsilon"),
    activation("gelu", key="activation"),
    Key(field="has_alibi", kind=Exactly(False, "ALiBi is not supported"), default=False,
        hugging_face="alibi"),
    Key(field="is_parallel", default=True, hugging_face="parallel_attn", written=True,
        kind=Exactly(True, "only parallel attention and MLP are supported")),
    Key(field="has_biases", kind=Exactly(False, "biases are not supported"), default=False,
        hugging_face="bias"),
)  # fmt: skip
# The keys of each convention are computed from those of the other.
_NORM_KEYS = (
    Key(field="norms_of_layer", kind=OrNone(WholeNumber(1, 2)), default=_count_norms,
        hugging_face=_NORMS, written=True),
    Key(field="shared_norm", kind=FLAG, default=_has_one_norm,
        seen=IsAbsent("blk.0.attn_norm_2.weight")),
    Key(field="is_new", kind=FLAG, default=_is_new, hugging_face=_NEW, written=True),
    Key(field="shares_head", kind=FLAG, default=None, gguf_default=_shares_head,
        hugging_face="multi_query", is_in_weights=True),
)  # fmt: skip

FAMILY = Family(
    name="falcon",
    model_types={
        "falcon": ModelType(
            class_name="FalconForCausalLM",
            defaults={
                "vocabulary": 65024,
                "hidden": 4544,
                "heads": 71,
                "tied": True,
            },
        )
    },
    blocks={"norm": "layer", "parallel": True, "gated": False, "fused_qkv": True},
    heads_fill_hidden=True,
    prefix="transformer.",
    names=(
        line("embedding", hugging_face="transformer.word_embeddings"),
        *layer_lines(
            "transformer.h.{}.",
            {
                "attention_norm": {
                    "hugging_face": "input_layernorm",
                    "bias": True,
                    "when": ("shared_norm",),
                },
                "attention.qkv": {
                    "hugging_face": "self_attention.query_key_value",
                    "change": reorder_rows(_order, "queries, keys and values by group"),
                },
                "attention.o": "self_attention.dense",
                "mlp.up": "mlp.dense_h_to_4h",
                "mlp.down": "mlp.dense_4h_to_h",
            },
        ),
        *layer_lines(
            "transformer.h.{}.",
            {
                "attention_norm": {"hugging_face": "ln_attn", "gguf": "blk.{}.attn_norm_2"},
                "mlp_norm": {"hugging_face": "ln_mlp", "gguf": "blk.{}.attn_norm"},
            },
            bias=True,
            unless="shared_norm",
        ),
        line("norm", hugging_face="transformer.ln_f", bias=True),
        line("output"),
    ),
    keys=(*_KEYS, *_NORM_KEYS),
    standard=_standard,
    checked=check_decoder,
)

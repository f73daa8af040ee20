"""The lines and keys of latent attention (MLA), in both naming conventions.

Names and keys: transformers' `modeling_deepseek_v3.py`; llama.cpp's `models/deepseek2.cpp` and
`conversion/deepseek.py`. In llama.cpp such a model has one KV head, which is the latent vector with
the rotated elements; the sizes of the heads have keys of their own.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, same, with_keys
from weightctl.families.config_values import HEADS, SIZE, Exactly, OrNone, Real, ScaledReal
from weightctl.families.decoder import check_layers
from weightctl.families.decoder_keys import DECODER_KEYS
from weightctl.families.fusions import Fusion
from weightctl.families.layers import LayersAlike
from weightctl.families.rope import scaling
from weightctl.families.steps import group_heads, turn_heads
from weightctl.families.usual_names import line, lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.families.config_keys import Fields, NamingConvention
    from weightctl.families.modules import Name

_PARTS = ("layers.{}.attention.k_b", "layers.{}.attention.v_b")


def _find_head_size(fields: Fields) -> int:
    return int(fields["plain_dimensions"] + fields["rope_dimensions"])


def _find_plain_part(fields: Fields) -> int:
    return int(fields["head_dim"] - fields["rope_dimensions"])


def _find_latent_key(fields: Fields) -> int:
    return int(fields["latent_rank"] + fields["rope_dimensions"])


_JOINED_HEADS = (
    "GGUF files with `attn_kv_b` tensors instead of `attn_k_b` and `attn_v_b` are not supported; "
    "convert the original checkpoint again"
)

# GGUF states the size of a whole key and of its rotated part, and config.json the sizes of the two
# parts of a key. llama.cpp counts one KV head.
LATENT_SIZES = (
    Key(field="kv_heads", kind=HEADS, default=same("heads"), gguf_default=same("heads"),
        hugging_face="num_key_value_heads", written=True),
    Key(field="latent_heads", kind=Exactly(1, _JOINED_HEADS), gguf_default=1,
        gguf="{arch}.attention.head_count_kv", written=True),
    Key(field="query_rank", kind=OrNone(SIZE), default=None, gguf_default=None,
        gguf="{arch}.attention.q_lora_rank", hugging_face="q_lora_rank"),
    Key(field="latent_rank", kind=SIZE, default=512, gguf="{arch}.attention.kv_lora_rank",
        hugging_face="kv_lora_rank"),
    Key(field="rope_dimensions", kind=SIZE, default=64, gguf="{arch}.rope.dimension_count",
        hugging_face="qk_rope_head_dim"),
    Key(field="head_dim", kind=SIZE, gguf="{arch}.attention.key_length_mla"),
    Key(field="plain_dimensions", kind=SIZE, default=128, gguf_default=_find_plain_part,
        hugging_face="qk_nope_head_dim", written=True),
    Key(field="head_dim", kind=SIZE, default=_find_head_size),
    Key(field="value_dimensions", kind=SIZE, default=128, gguf="{arch}.attention.value_length_mla",
        hugging_face="v_head_dim"),
    Key(field="latent_key", kind=SIZE, gguf_default=_find_latent_key,
        gguf="{arch}.attention.key_length"),
    Key(field="latent_value", kind=SIZE, gguf_default=same("latent_rank"),
        gguf="{arch}.attention.value_length"),
)  # fmt: skip

# YaRN scales the attention scores of whole heads. llama.cpp's converter writes a tenth of this
# number.
YARN_MULTIPLIER = Key(
    field="scaling.log_multiplier",
    kind=ScaledReal(Real(0, 1e6, is_closed=True), 0.1),
    default=None,
    gguf_default=None,
    gguf="{arch}.rope.scaling.yarn_log_multiplier",
)


# The lines of a decoder with latent attention. In GGUF, the projections to keys and values have one
# matrix per head.
LATENT_DECODER: tuple[Name, ...] = (
    *lines("embedding", "attention_norm"),
    line("attention.q", unless="query_rank", bias=False),
    *lines("attention.q_a", "attention.q_a_norm", "attention.q_b", "attention.kv_a",
           "attention.kv_a_norm"),
    line("attention.k_b", change=turn_heads(is_transposed=True)),
    line("attention.v_b", change=turn_heads()),
    line("attention.o.latent", bias=False),
    *lines("mlp_norm", "mlp.gate", "mlp.up", "mlp.down", "norm", "output"),
)  # fmt: skip


def joined_form(convention: NamingConvention = "hugging_face") -> Fusion:
    """Return the fusion in which each head has the rows of its keys before those of its values."""
    name = "model.layers.{}.self_attn.kv_b_proj.{kind}"
    if convention == "gguf":
        name = "blk.{}.attn_kv_b.{kind}"
    return Fusion(convention=convention, name=name, parts=_PARTS, order=by_head)


def by_head(config: Any) -> Sequence[int]:
    """Return the rows of keys and values, with those of each head together."""
    return group_heads(config.heads, (config.plain_dimensions, config.value_dimensions))


def latent_keys(
    keys: tuple[Key, ...], *more: Key, sizes: tuple[Key, ...] = LATENT_SIZES
) -> tuple[Key, ...]:
    """Return the keys of a decoder with those of latent attention, and `more`."""
    own = ("kv_heads", "head_dim", "value_dim", "rope_dimensions", "rotated_share")
    kept = with_keys(keys, without=own)
    place = next(number for number, key in enumerate(kept) if key.field == "heads") + 1
    return with_keys((*kept[:place], *sizes, *kept[place:]), *more)


LATENT_KEYS = latent_keys(DECODER_KEYS)
# For families in which an indexer selects the keys that a query sees.
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
# What transformers calls the layers now, and what it called them.
_KINDS = ("indexed_attention", "deepseek_sparse_attention")
_EVERY = "other kinds of attention are not supported in this family"
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
# For families in which GGUF counts all KV heads, and has other keys for their sizes.
KEYS_OF_ALL_HEADS = latent_keys(
    DECODER_KEYS,
    sizes=(
        *(key for key in DECODER_KEYS if key.field == "kv_heads"),
        *(
            replace(key, gguf=key.gguf.replace("_mla", ""))
            for key in LATENT_SIZES
            if key.field not in {"latent_heads", "latent_key", "latent_value", "kv_heads"}
        ),
    ),
)


def check_latent(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them.

    Raises `ValueError` if they contradict each other.
    """
    check_layers(fields)
    heads, kv_heads = fields["heads"], fields["kv_heads"]
    if heads != kv_heads:
        raise ValueError(
            f"there are {heads} query heads and {kv_heads} KV heads; with latent attention (MLA), "
            "the numbers must be equal"
        )
    rotated, plain = fields["rope_dimensions"], fields["plain_dimensions"]
    if rotated % 2 or plain < 1:
        raise ValueError(
            f"{rotated} rotary dimensions are not valid for a head of {rotated + plain} elements; "
            f"the number must be even and less than {rotated + plain}"
        )
    stretched = scaling(fields)
    share = 1.0
    if fields["scaling.kind"] not in {None, "yarn"} and fields.get("scaling.mscale_all_dim"):
        raise ValueError("`mscale_all_dim` is only supported with `yarn` scaling")
    if stretched is not None and stretched.kind == "yarn" and stretched.factor > 1:
        share += 0.1 * (stretched.mscale_all_dim or 0.0) * log(stretched.factor)
    scale = share**2 * fields["head_dim"] ** -0.5
    return {
        **fields,
        "rope_scaling": stretched,
        "query_rank": fields["query_rank"] or 0,
        "attention_scale": scale,
    }


def check_indexer(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    rotated, size = fields["rope_dimensions"], fields["indexer_size"]
    if rotated > size:
        raise ValueError(
            f"{rotated} elements of a head of the indexer cannot be rotated: it has only {size}"
        )
    return check_latent(fields)


def find_unlike_latent(fields: Fields) -> str | None:
    """Return why llama.cpp does not load or run this model as `deepseek2`, None if it does."""
    # llama.cpp decides by the number of layers, and in one case by the vocabulary, whether queries
    # are computed from latent vectors.
    layers = fields["layers"]
    is_lite = layers in {26, 27} or (layers == 48 and fields["vocabulary"] == 128256)
    if is_lite == (fields["query_rank"] is None):
        return None
    queries = "without" if is_lite else "with"
    return f"llama.cpp supports {layers} layers only {queries} latent queries (`q_lora_rank`)"


def find_difference_of_scaling(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    if fields["scaling.kind"] == "linear":
        return "it multiplies attention scores by another scale if the RoPE scaling is `linear`"
    return None

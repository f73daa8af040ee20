"""ERNIE 4.5, mixtures of experts: a correction is added to the scores that select the experts.

Names and keys: transformers' `modeling_ernie4_5_moe.py`; llama.cpp's `conversion/ernie.py` and
`models/ernie4-5-moe.cpp`. Layers for MTP: vLLM's `ernie_mtp.py`; llama.cpp has no place for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families import FAMILIES
from weightctl.families.changes import Squeezed
from weightctl.families.decoder_keys import DECODER_KEYS, check_decoder, with_keys
from weightctl.families.experts import (
    EXPERT_WIDTH,
    LEADING_DENSE_KEYS,
    SHARED_COUNT_KEYS,
    SHARED_LINES,
    STATED_SHARED_WIDTH,
    checking_experts,
    expert_forms,
    expert_keys,
    expert_lines,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import LAYERS, SIZE, Exactly, WholeNumber
from weightctl.families.layers import ONES
from weightctl.families.mtp import MtpForm, mtp_keys, mtp_line, with_mtp_lines
from weightctl.families.rope_keys import standard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.keys import Fields

ERNIE4_5 = FAMILIES["ernie4_5"].load()

_LAST = "moe_layer_end_index"
_USUAL_LAYERS = 28
_MTP_LINES = (
    mtp_line("projection", "nextn.eh_proj", "model.mtp_linear_proj.{}", restarts=True),
    mtp_line("embedding_norm", "nextn.enorm", "model.mtp_emb_norm.{}", restarts=True),
    mtp_line("hidden_norm", "nextn.hnorm", "model.mtp_hidden_norm.{}", restarts=True),
)


def _mark_sparse(fields: Fields) -> tuple[bool, ...]:
    first, last, step = (fields[name] for name in ("dense_first", "sparse_last", "sparse_step"))
    return tuple(
        first <= layer <= last and (layer + 1) % step == 0 for layer in range(fields["layers"])
    )


def _last_layer(fields: Fields) -> int:
    return int(fields["layers"]) - 1


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in which the number of the last layer with experts is a valid layer."""
    found = standard(document)
    last = document.get(_LAST, _USUAL_LAYERS - 1)
    layers = LAYERS.read(document.get("num_hidden_layers", _USUAL_LAYERS))
    is_beyond = type(last) is int and (last == -1 or last >= layers)
    return {**found, _LAST: layers - 1 if is_beyond else last}


def _find_other_layers(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model with dense layers after the first ones."""
    if all(fields["sparse_layers"][fields["dense_first"] :]):
        return None
    return f"some layers after the first {fields['dense_first']} have no experts"


FAMILY = Family(
    name="ernie4_5_moe",
    gguf="ernie4_5-moe",
    model_types={
        "ernie4_5_moe": ModelType(
            class_name="Ernie4_5_MoeForCausalLM",
            defaults={
                "vocabulary": 103424,
                "context": 131072,
                "hidden": 2560,
                "intermediate": 12288,
                "layers": _USUAL_LAYERS,
                "heads": 20,
                "kv_heads": 4,
                "norm_epsilon": 1e-5,
                "rope_base": 500000.0,
                "tied": True,
                "expert_intermediate": 1536,
                "shared_count": 2,
                "dense_first": 1,
            },
        )
    },
    blocks={**ERNIE4_5.blocks, "router_correction": True},
    unloaded=_find_other_layers,
    names=with_mtp_lines(
        expert_lines(
            ERNIE4_5.names,
            dense=True,
            more={
                "mlp.correction": {
                    "hugging_face": "moe_statics.e_score_correction_bias",
                    "change": Squeezed(0, is_run_without=True),
                },
                **SHARED_LINES,
            },
        ),
        _MTP_LINES,
    ),
    keys=expert_keys(
        with_keys(
            mtp_keys(DECODER_KEYS, "num_nextn_predict_layers", in_gguf=False),
            Key(field="has_biases", kind=Exactly(False, "biases are not supported"), default=False,
                hugging_face="use_bias"),
        ),
        "moe_num_experts",
        Key(field="experts_used", kind=SIZE, default=6, gguf="{arch}.expert_used_count",
            hugging_face="moe_k"),
        EXPERT_WIDTH,
        replace(SHARED_COUNT_KEYS[0], hugging_face="moe_num_shared_experts"),
        STATED_SHARED_WIDTH,
        replace(LEADING_DENSE_KEYS[0], hugging_face="moe_layer_start_index"),
        Key(field="sparse_last", kind=WholeNumber(0, LAYERS.most), default=_last_layer,
            gguf_default=_last_layer, hugging_face=_LAST, written=True),
        Key(field="sparse_step", kind=LAYERS, default=1, gguf_default=1,
            gguf="{arch}.interleave_moe_layer_step", hugging_face="moe_layer_interval",
            written=True),
        Key(field="sparse_layers", kind=ONES, default=_mark_sparse, gguf_default=_mark_sparse),
        Key(field="least_sum", default=1e-12, hugging_face="moe_norm_min",
            kind=Exactly(1e-12, "other lower limits of the sum of shares are not supported")),
        experts=64,
        used=6,
    ),
    fusions=expert_forms(),
    mtp=MtpForm(prefix="model.mtp_block.{}.", values={"sparse_layers": False}, in_gguf=False),
    standard=_standard,
    checked=checking_experts(check_decoder),
)  # fmt: skip

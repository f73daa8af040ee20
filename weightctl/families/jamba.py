"""Jamba: a Mamba or attention without RoPE in each layer, then an MLP or experts.

Names and keys: transformers' `modeling_jamba.py` and `configuration_jamba.py`; llama.cpp's
`models/jamba.cpp` and `conversion/jamba.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.families.decoder_keys import DECODER_KEYS, with_keys
from weightctl.families.experts import checking_experts, expert_keys, expert_lines
from weightctl.families.family import Family, ModelType
from weightctl.families.granitehybrid import SILU
from weightctl.families.hybrid import check_kv_heads, hybrid_keys, hybrid_lines
from weightctl.families.keys import Key, LayersWith, quotient, same
from weightctl.families.kinds import EPSILON, SIZE, WholeNumber
from weightctl.families.layers import ONES, LayerChoice
from weightctl.families.lines import DECODER, adapt, line
from weightctl.families.rope_keys import ROPE_KEYS
from weightctl.families.state_space import find_expansion, mamba_keys, ssm_roles, without_auto

if TYPE_CHECKING:
    from collections.abc import Callable

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields

_LAYER = "model.layers.{}."
_SPARSE, _DENSE = "sparse", "dense"
_PERIOD, _OFFSET = WholeNumber(1, 1 << 16), WholeNumber(0, 1 << 16)


def _find_period(flags: str) -> Callable[[Fields], int]:
    """Return a default: of how many layers one has a property, in every such run of layers."""

    def find(fields: Fields) -> int:
        places = [place for place, has in enumerate(fields[flags]) if has]
        count = len(fields[flags])
        if not places:
            return count + 1
        if len(places) == 1:
            return max(places[0] + 1, count - places[0])
        period = places[1] - places[0]
        if places[0] >= period or places != list(range(places[0], count, period)):
            raise ValueError("has layers at other than regular distances")
        return int(period)

    return find


def _find_offset(flags: str) -> Callable[[Fields], int]:
    """Return a default: the number of the first layer that has a property."""

    def find(fields: Fields) -> int:
        given = list(fields[flags])
        return given.index(True) if True in given else len(given)

    return find


def _mark(name: str) -> Callable[[Fields], tuple[bool, ...]]:
    """Return a default that marks a layer in each period."""
    return lambda fields: tuple(
        layer % fields[f"{name}_period"] == fields[f"{name}_offset"]
        for layer in range(fields["layers"])
    )


def _mark_sparse(fields: Fields) -> tuple[bool, ...]:
    marked = _mark("expert")(fields)
    return tuple(each and fields["experts"] > 1 for each in marked)


def _mark_none(fields: Fields) -> tuple[bool, ...]:
    count: int = fields["layers"]
    return (False,) * count


def _period_keys(name: str, prefix: str, flags: str, period: int, offset: int) -> tuple[Key, ...]:
    return (
        Key(field=f"{name}_period", kind=_PERIOD, default=period, written=True, is_in_weights=True,
            gguf_default=_find_period(flags), hugging_face=f"{prefix}_layer_period"),
        Key(field=f"{name}_offset", kind=_OFFSET, default=offset, written=True, is_in_weights=True,
            gguf_default=_find_offset(flags), hugging_face=f"{prefix}_layer_offset"),
    )  # fmt: skip


def _list_keys() -> tuple[Key, ...]:
    usual = with_keys(
        DECODER_KEYS,
        Key(field="head_dim", kind=SIZE, default=quotient("hidden", "heads"),
            gguf_default=quotient("hidden", "heads")),
        SILU,
        without=tuple(key.field for key in ROPE_KEYS),
    )  # fmt: skip
    usual = expert_keys(
        usual,
        "num_experts",
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate")),
        experts=16,
        used=2,
    )  # fmt: skip
    made: list[Key] = []
    for key in hybrid_keys(usual, ONES, "ssm_layers"):
        if key.hugging_face != "layer_types":
            made.append(key)
            continue
        made += _period_keys("attention", "attn", "attention_layers", 8, 4)
        made.append(Key(field="attention_layers", kind=ONES, default=_mark("attention")))
    return (
        *made,
        Key(field="sparse_layers", kind=LayerChoice(_SPARSE, _DENSE), gguf_default=_mark_none,
            seen=LayersWith("blk.{}.ffn_gate_inp.weight", "blk.{}.attn_norm.weight", _SPARSE,
                            _DENSE)),
        *_period_keys("expert", "expert", "sparse_layers", 2, 1),
        Key(field="sparse_layers", kind=ONES, default=_mark_sparse),
        *mamba_keys(hybrid=True),
        Key(field="ssm_inner_epsilon", kind=EPSILON, default=same("norm_epsilon"),
            gguf_default=same("norm_epsilon")),
    )  # fmt: skip


def _list_lines() -> tuple[Name, ...]:
    mlp = {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
    names = adapt(
        DECODER,
        {
            "mlp_norm": "pre_ff_layernorm",
            **mlp,
            **ssm_roles(1, f"{_LAYER}mamba.", inner_norms=True),
        },
    )
    names = expert_lines(names, "feed_forward.", more={"mlp.router": "router"}, dense=True)
    last = line("norm", hugging_face="model.final_layernorm")
    return hybrid_lines(
        tuple(last if each.module == "norm" else each for each in names),
        {"attention": "attention_layers"},
    )


def _check(fields: Fields) -> Fields:
    check_kv_heads(fields)
    for name in ("attention", "expert"):
        if fields[f"{name}_offset"] >= fields[f"{name}_period"]:
            raise ValueError(f"the offset of the layers with {name} must be less than their period")
    return fields


FAMILY = Family(
    name="jamba",
    model_types={
        "jamba": ModelType(
            class_name="JambaForCausalLM",
            defaults={
                "vocabulary": 65536,
                "context": 262144,
                "intermediate": 14336,
                "kv_heads": 8,
                "ssm_state": 16,
            },
        )
    },
    blocks={
        "ssm_version": 1,
        "ssm_inner_norms": "weighted",
        "position": "none",
        "experts_normalized": False,
    },
    names=_list_lines(),
    keys=_list_keys(),
    standard=without_auto,
    unloaded=find_expansion,
    checked=checking_experts(_check),
)

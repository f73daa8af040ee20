"""Bamba: a Mamba-2 or attention in each layer, then an MLP.

Names and keys: transformers' `modeling_bamba.py` and `configuration_bamba.py`; llama.cpp's
`conversion/granite.py`, which treats it as a granitehybrid without factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.decoder_keys import (
    BIASES,
    DECODER_KEYS,
    PARTIAL_ROPE,
    check_decoder,
    with_keys,
)
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.granitehybrid import ROPE_FLAG, SILU
from weightctl.families.hybrid import check_kv_heads, hybrid_keys, hybrid_lines
from weightctl.families.keys import Key
from weightctl.families.kinds import LAYERS, Exactly, show_value
from weightctl.families.layers import ONES
from weightctl.families.lines import DECODER, ROPE_ROWS, adapt, line
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.families.state_space import (
    check_heads_of_states,
    find_expansion,
    mamba2_keys,
    ssm_roles,
    without_auto,
)
from weightctl.text.untyped import is_object, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields
    from weightctl.weights.metadata import MetadataValue

_LAYER = "model.layers.{}."
_GGUF = "granitehybrid"


class _Indices(NamedTuple):
    """A list of the numbers of layers."""

    def read(self, content: object) -> tuple[int, ...]:
        """Return the numbers in order."""
        if not is_sequence(content) or len(content) > LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must be a list of layer numbers")
        if not all(type(each) is int and 0 <= each < LAYERS.most for each in content):
            raise ValueError(f"is {show_value(content)}; it must be a list of layer numbers")
        return tuple(sorted(content))

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[u32]"

    def write(self, value: Any) -> list[int]:
        """Return the numbers."""
        return list(value)


def _list_indices(fields: Fields) -> tuple[int, ...]:
    return tuple(number for number, has in enumerate(fields["attention_layers"]) if has)


def _no_indices(fields: Fields) -> tuple[int, ...]:
    del fields
    return ()


def _mark(fields: Fields) -> tuple[bool, ...]:
    return tuple(number in fields["attention_indices"] for number in range(fields["layers"]))


def _list_keys() -> tuple[Key, ...]:
    usual = with_keys(DECODER_KEYS, SILU, PARTIAL_ROPE, *BIASES)
    made: list[Key] = []
    for key in hybrid_keys(usual, ONES, "ssm_layers"):
        if key.hugging_face != "layer_types":
            made.append(key)
            continue
        made += (
            Key(field="attention_indices", kind=_Indices(), default=_no_indices,
                gguf_default=_list_indices, hugging_face="attn_layer_indices", written=True),
            Key(field="attention_layers", kind=ONES, default=_mark),
        )  # fmt: skip
    is_rotated = Exactly("rope", "Bamba has RoPE")
    return (
        *made,
        Key(field="position", kind=is_rotated, default="rope"),
        ROPE_FLAG,
        *mamba2_keys(hybrid=True),
    )


def _list_lines() -> tuple[Name, ...]:
    mlp = {f"mlp.{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")}
    names = adapt(
        DECODER,
        {
            **ROPE_ROWS,
            "mlp_norm": "pre_ff_layernorm",
            **mlp,
            **ssm_roles(2, f"{_LAYER}mamba."),
        },
    )
    last = line("norm", hugging_face="model.final_layernorm")
    return hybrid_lines(
        tuple(last if each.module == "norm" else each for each in names),
        {"attention": "attention_layers"},
    )


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json in transformers' current form, which rotates half of each head."""
    found = dict(without_auto(standard_rope(document)))
    rope = found.get("rope_parameters", {})
    if is_object(rope):
        found["rope_parameters"] = {**rope, "partial_rotary_factor": 0.5}
    return found


def _has_no_factors(metadata: Mapping[str, MetadataValue]) -> bool:
    return f"{_GGUF}.attention.scale" not in metadata


def _check(fields: Fields) -> Fields:
    check_kv_heads(fields)
    check_heads_of_states(fields)
    return check_decoder(fields)


FAMILY = Family(
    name="bamba",
    gguf=_GGUF,
    is_of=_has_no_factors,
    model_types={
        "bamba": ModelType(
            class_name="BambaForCausalLM",
            defaults={
                "vocabulary": 128000,
                "context": 262144,
                "intermediate": 14336,
                "kv_heads": 8,
                "norm_epsilon": 1e-5,
                "rotated_share": 0.5,
                "ssm_state": 256,
            },
        )
    },
    blocks={"ssm_version": 2},
    heads_fill_hidden=True,
    names=_list_lines(),
    keys=_list_keys(),
    fusions=(qkv_form(),),
    standard=_standard,
    unloaded=find_expansion,
    checked=_check,
)

"""Granite 4, hybrid models: a Mamba-2 or attention in each layer, then an MLP or experts.

Names and keys: transformers' `modeling_granitemoehybrid.py`; llama.cpp's
`models/granite-hybrid.cpp` and `conversion/granite.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families import FAMILIES
from weightctl.families.decoder_keys import with_keys
from weightctl.families.experts import SHARED_WIDTH, checking_experts, expert_keys, expert_lines
from weightctl.families.family import ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.hybrid import check_kv_heads, hybrid_keys, hybrid_lines
from weightctl.families.keys import Key, same
from weightctl.families.kinds import FLAG, SIZE, Choice, Exactly, WholeNumber
from weightctl.families.layers import ONES, LayerChoice
from weightctl.families.lines import adapt
from weightctl.families.state_space import (
    check_heads_of_states,
    find_expansion,
    mamba2_keys,
    ssm_roles,
    without_auto,
)
from weightctl.text.untyped import is_list

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.family import Name
    from weightctl.families.keys import Fields

GRANITE = FAMILIES["granite"].load()

_LAYER = "model.layers.{}."
_MOE, _SHARED = "block_sparse_moe.", "shared_mlp."
# transformers' words for layers before version 5, which newer versions and llama.cpp also read.
ATTENTION, STATES = "attention", "mamba"
_OLDER = {"full_attention": ATTENTION, "linear_attention": STATES}
_COUNT = WholeNumber(0, 1024)

SILU = Key(
    field="activation",
    kind=Exactly("silu", "llama.cpp uses SiLU"),
    default="silu",
    gguf_default="silu",
    hugging_face="hidden_act",
)


class _IsRotated(NamedTuple):
    """A flag: whether attention has RoPE."""

    def read(self, content: object) -> str:
        """Return how positions are encoded."""
        return "rope" if FLAG.read(content) else "none"

    @property
    def gguf_type(self) -> str:
        """The type of a flag."""
        return FLAG.gguf_type

    def write(self, value: Any) -> bool:
        """Return whether it is RoPE."""
        return bool(value == "rope")


# llama.cpp reads from this key whether there is RoPE.
ROPE_FLAG = Key(
    field="position",
    kind=_IsRotated(),
    gguf_default="rope",
    gguf="{arch}.rope.scaling.finetuned",
    written=True,
)


def _state_no_rope(fields: Fields) -> str:
    del fields
    return "none"


POSITION_KEYS = (
    ROPE_FLAG,
    Key(
        field="position",
        kind=Choice({"rope": "rope", "nope": "none"}),
        default=_state_no_rope,
        hugging_face="position_embedding_type",
    ),
)


def check_hybrid(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_kv_heads(fields)
    check_heads_of_states(fields)
    return GRANITE.checked(fields)


def _check(fields: Fields) -> Fields:
    return checking_experts(check_hybrid)(fields) if fields["experts"] else check_hybrid(fields)


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the older words for layers, and the width of its MLP.

    Without experts, the MLP has the width that is stated for a shared one.
    """
    found = dict(without_auto(GRANITE.standard(document)))
    words = found.get("layer_types") or found.get("layers_block_type")
    if is_list(words):
        found["layer_types"] = [
            _OLDER.get(word, word) if isinstance(word, str) else word for word in words
        ]
    if found.get("num_local_experts") == 0:
        found["intermediate_size"] = found.get("shared_intermediate_size", 1024)
        found["num_experts_per_tok"] = 0
    return found


def _mark_sparse(fields: Fields) -> tuple[bool, ...]:
    count: int = fields["layers"]
    return (fields["experts"] > 0,) * count


def _mark_none(fields: Fields) -> tuple[bool, ...]:
    count: int = fields["layers"]
    return (False,) * count


def _list_keys() -> tuple[Key, ...]:
    keys = expert_keys(
        with_keys(GRANITE.keys, SILU, without=("has_rope_factors",)),
        "num_local_experts",
        # `intermediate_size` is the width of an expert.
        Key(field="expert_intermediate", kind=SIZE, default=same("intermediate"),
            gguf_default=same("intermediate")),
        replace(SHARED_WIDTH, default=1024, written=True),
        Key(field="sparse_layers", kind=ONES, default=_mark_sparse, gguf_default=_mark_sparse),
        experts=8,
        used=2,
    )  # fmt: skip
    keys = tuple(
        replace(key, kind=_COUNT, gguf_default=0)
        if key.field in {"experts", "experts_used"}
        else key
        for key in keys
    )
    hybrid = hybrid_keys(keys, LayerChoice(ATTENTION, STATES), "ssm_layers")
    return (
        *(
            replace(key, default=_mark_none) if key.hugging_face == "layer_types" else key
            for key in hybrid
        ),
        *POSITION_KEYS,
        *mamba2_keys(hybrid=True),
    )


def _list_lines() -> tuple[Name, ...]:
    names = adapt(
        GRANITE.names,
        {
            "rope_factors": None,
            "mlp.gate": {"hugging_face": None},
            "mlp.up": {"hugging_face": None},
            "mlp.down": _SHARED + "output_linear",
            **ssm_roles(2, _LAYER + "mamba."),
        },
    )
    names = expert_lines(
        names,
        "",
        parts=(None, None, None),
        more={
            "mlp.router": _MOE + "router.layer",
            "mlp.experts.{expert}.down": _MOE + "output_linear",
            "mlp.shared.gate": {"hugging_face": None},
            "mlp.shared.up": {"hugging_face": None},
            "mlp.shared.down": _SHARED + "output_linear",
        },
        dense=True,
    )
    return hybrid_lines(names, {"attention": "attention_layers"})


def _gate_up(name: str, module: str, *, of_experts: bool = False) -> Fusion:
    parts = tuple(f"layers.{{}}.mlp.{module}{part}" for part in ("gate", "up"))
    name = f"{_LAYER}{name}input_linear.{{kind}}"
    return Fusion(convention="hugging_face", name=name, parts=parts, of_experts=of_experts)


FAMILY = replace(
    GRANITE,
    name="granitehybrid",
    model_types={
        "granitemoehybrid": ModelType(
            class_name="GraniteMoeHybridForCausalLM",
            defaults={"ssm_state": 256},
            fixed={"mlp_bias": False},
        )
    },
    blocks={"ssm_version": 2},
    names=_list_lines(),
    keys=_list_keys(),
    fusions=(
        *GRANITE.fusions,
        _gate_up(_MOE, "experts.{expert}.", of_experts=True),
        _gate_up(_SHARED, "shared."),
        _gate_up(_SHARED, ""),
    ),
    standard=standard,
    unloaded=find_expansion,
    checked=_check,
)

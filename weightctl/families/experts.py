"""The usual lines and keys of mixtures of experts, which replace the MLP of a layer.

Names and keys: transformers' `modeling_mixtral.py`, `modeling_qwen3_moe.py` and, for what it saves,
`conversion_mapping.py`; llama.cpp's `llama-arch.cpp`, `conversion/llama.py` and
`conversion/qwen.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, quotient, same, with_keys
from weightctl.families.config_values import FLAG, LAYERS, SIZE, Exactly, Real, WholeNumber
from weightctl.families.fusions import Fusion
from weightctl.families.layers import ONES, from_layer
from weightctl.families.usual_names import line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

_MLP, _EXPERT = "layers.{}.mlp.", "layers.{}.mlp.experts.{expert}."
_PARTS = ("gate", "up", "down")
# The config field with the layers that have experts, if other layers have an MLP.
_SPARSE = "sparse_layers"

# llama.cpp's `LLAMA_MAX_EXPERTS`, and a limit for all layers together, several times the number in
# any published model.
_EXPERTS = WholeNumber(1, 1024)
_MOST = 1 << 16


EXPERT_WIDTH = Key(
    field="expert_intermediate",
    kind=SIZE,
    gguf_default=quotient("intermediate", "experts_used"),
    gguf="{arch}.expert_feed_forward_length",
    hugging_face="moe_intermediate_size",
)
# The width of the MLP that all positions pass through beside the experts.
SHARED_WIDTH = Key(
    field="shared_intermediate",
    kind=SIZE,
    gguf_default=same("intermediate"),
    gguf="{arch}.expert_shared_feed_forward_length",
    hugging_face="shared_intermediate_size",
)


_FACTOR = Real(0, 1e9)

# For routers that compute the sigmoid of each score (`expert_gating_func` 2).
ROUTER_GATING = Key(
    field="router_gating",
    kind=Exactly(2, "other routers are not supported"),
    gguf_default=2,
    gguf="{arch}.expert_gating_func",
    written=True,
)
# For experts in groups, where only the best groups are used.
GROUP_KEYS = (
    Key(field="expert_groups", kind=_EXPERTS, default=1, gguf_default=1,
        gguf="{arch}.expert_group_count", hugging_face="n_group"),
    Key(field="expert_groups_used", kind=_EXPERTS, default=1, gguf_default=1,
        gguf="{arch}.expert_group_used_count", hugging_face="topk_group"),
)  # fmt: skip
# For models whose first layers have an MLP in place of experts.
LEADING_DENSE_KEYS = (
    Key(field="dense_first", kind=WholeNumber(0, LAYERS.most), default=0, gguf_default=0,
        gguf="{arch}.leading_dense_block_count", hugging_face="first_k_dense_replace",
        written=True),
    Key(field=_SPARSE, kind=ONES, default=from_layer("dense_first"),
        gguf_default=from_layer("dense_first")),
)  # fmt: skip


def _shared_width(fields: Fields) -> int:
    return int(fields["expert_intermediate"] * fields["shared_count"])


# For a shared MLP that is as wide as `shared_count` experts together.
SHARED_COUNT_KEYS = (
    Key(field="shared_count", kind=WholeNumber(0, 1024), default=0, gguf_default=0,
        gguf="{arch}.expert_shared_count", hugging_face="n_shared_experts", written=True),
    Key(field="shared_intermediate", kind=SIZE, default=_shared_width,
        gguf_default=_shared_width),
)  # fmt: skip

# The shares of the experts that a position uses.
SHARE_KEYS = (
    Key(field="experts_normalized", kind=FLAG, default=False, gguf_default=False,
        gguf="{arch}.expert_weights_norm", hugging_face="norm_topk_prob"),
    Key(field="experts_scale", kind=_FACTOR, default=1.0, gguf_default=1.0,
        gguf="{arch}.expert_weights_scale", hugging_face="routed_scaling_factor"),
)  # fmt: skip

# The keys of DeepSeek-V3 and of the models that follow it; a family replaces those that differ with
# `with_keys`.
ROUTED_KEYS = (
    EXPERT_WIDTH,
    ROUTER_GATING,
    *SHARE_KEYS,
    *GROUP_KEYS,
    *SHARED_COUNT_KEYS,
    *LEADING_DENSE_KEYS,
)  # fmt: skip

# For families in which llama.cpp also reads the width of the shared MLP.
STATED_SHARED_WIDTH = replace(
    SHARED_WIDTH,
    kind=WholeNumber(0, SIZE.most),
    default=_shared_width,
    gguf_default=_shared_width,
    hugging_face="",
    written=True,
)


# Values of `more` for `expert_lines`: for families with a shared MLP, and for those in which a
# correction is also added to the scores.
SHARED_LINES = {f"mlp.shared.{part}": f"shared_experts.{part}_proj" for part in _PARTS}
ROUTED_LINES = {"mlp.correction": "gate.e_score_correction_bias", **SHARED_LINES}


def expert_lines(
    names: tuple[Name, ...],
    mlp: str = "mlp.",
    *,
    parts: tuple[str | None, str | None, str | None] = ("gate_proj", "up_proj", "down_proj"),
    more: Mapping[str, str | Mapping[str, Any]] | None = None,
    dense: bool = False,
) -> tuple[Name, ...]:
    """Return the lines of a family with lines of experts in place of those of its MLPs.

    `mlp` is the prefix of their names in a layer in Hugging Face's convention. `parts` are the
    names of an expert's gate, up and down there, None for one that a fusion contains. `more` maps
    additional roles to the rest of their names, or to the fields that differ from the usual line.
    With `dense`, some layers have an MLP in place of experts: all except the `sparse_layers` of the
    config.
    """
    condition = (_SPARSE,) if dense else ()
    layer = f"model.layers.{{}}.{mlp}"
    roles: dict[str, str | Mapping[str, Any]] = {"mlp.router": "gate"}
    for part, name in zip(_PARTS, parts, strict=True):
        full = None if name is None else f"experts.{{expert}}.{name}"
        roles[f"mlp.experts.{{expert}}.{part}"] = {"hugging_face": full}
    added: list[Name] = []
    for role, given in {**roles, **(more or {})}.items():
        fields = {"hugging_face": given} if isinstance(given, str) else dict(given)
        if fields.get("hugging_face") is not None:
            fields["hugging_face"] = layer + fields["hugging_face"]
        made = line(role, **fields)
        added.append(replace(made, when=(*condition, *made.when)))
    place = next(place for place, name in enumerate(names) if name.module.startswith(_MLP))
    kept = [
        replace(name, unless=_SPARSE) if name.module.startswith(_MLP) else name
        for name in names
        if dense or not name.module.startswith(_MLP)
    ]
    return (*kept[:place], *added, *kept[place:])


def expert_forms(router: str = "gate") -> tuple[Fusion, ...]:
    """Return the fusions of other forms in which checkpoints store experts and routers.

    transformers' modules have all experts in one tensor, which `save_pretrained` splits by default;
    `router` is the name of their router. The first GGUF files of mixtures had a tensor for each
    expert.
    """
    in_memory, gate, up, down = "model.layers.{}.mlp.", *_PARTS
    fused = [
        Fusion(convention="hugging_face", name=in_memory + "experts.gate_up_proj",
               parts=(_EXPERT + gate, _EXPERT + up), of_experts=True),
        Fusion(convention="hugging_face", name=in_memory + "experts.down_proj",
               parts=(_EXPERT + down,), of_experts=True),
        Fusion(convention="hugging_face", name=f"{in_memory}{router}.weight",
               parts=(_MLP + "router",)),
    ]  # fmt: skip
    return (*fused, *forms_apart())


def forms_apart() -> tuple[Fusion, ...]:
    """Return the fusions of GGUF files that have a tensor for each expert."""
    return tuple(
        Fusion(convention="gguf", name=f"blk.{{}}.ffn_{part}.{{expert}}.weight",
               parts=(_EXPERT + part,))
        for part in _PARTS
    )  # fmt: skip


def stacked_gate_up() -> Fusion:
    """Return the fusion of GGUF files that have the gate and up of each expert in one tensor."""
    return Fusion(
        convention="gguf",
        name="blk.{}.ffn_gate_up_exps.{kind}",
        parts=(_EXPERT + "gate", _EXPERT + "up"),
        of_experts=True,
    )


def expert_keys(
    keys: tuple[Key, ...], count: str, *more: Key, experts: int, used: int
) -> tuple[Key, ...]:
    """Return the keys of a family with the keys of experts, and `more`.

    `count` is the key of config.json with the number of experts; `experts` and `used` are the
    defaults.
    """
    added: tuple[Key, ...] = (
        Key(field="experts", kind=_EXPERTS, default=experts, gguf="{arch}.expert_count",
            hugging_face=count),
        Key(field="experts_used", kind=_EXPERTS, default=used, gguf="{arch}.expert_used_count",
            hugging_face="num_experts_per_tok"),
    )  # fmt: skip
    if not any(key.field == "expert_groups" for key in more):
        # If there are groups of experts, llama.cpp selects some groups for each position.
        added += (Key(field="single_group", kind=WholeNumber(0, 1), gguf_default=0,
                      gguf="{arch}.expert_group_count", written=False),)  # fmt: skip
    others = [key for key in keys if key.field != "experts"]
    return with_keys((*others, *added), *more)


def find_shared_heads(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model with fewer KV heads than query heads.

    None if the numbers are equal.
    """
    if fields["kv_heads"] == fields["heads"]:
        return None
    return (
        f"it has {fields['heads']} query heads and {fields['kv_heads']} KV heads; the numbers must "
        "be equal"
    )


def checking_experts(checked: Callable[[Fields], Fields]) -> Callable[[Fields], Fields]:
    """Return a family's `checked` that also checks the number of experts."""

    def check(fields: Fields) -> Fields:
        _check_experts(fields)
        return checked(fields)

    return check


def _check_experts(fields: Fields) -> None:
    count, used, layers = fields["experts"], fields["experts_used"], fields["layers"]
    if used > count:
        raise ValueError(f"{used} experts per token are not possible with {count} experts")
    if count * layers > _MOST:
        raise ValueError(
            f"{count} experts in each of {layers} layers are {count * layers} experts, more than "
            f"the limit of {_MOST}"
        )

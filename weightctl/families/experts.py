"""The routers and experts that stand in place of each layer's MLP.

Names and keys: transformers' `modeling_mixtral.py`, `modeling_qwen3_moe.py` and, for what it saves,
`conversion_mapping.py`; llama.cpp's `llama-arch.cpp`, `conversion/llama.py` and
`conversion/qwen.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.family import Fusion, Name
from weightctl.families.keys import Key
from weightctl.families.kinds import WholeNumber

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weightctl.families.keys import Fields

__all__ = ["check_experts", "expert_forms", "expert_keys", "expert_names"]

_MLP, _EXPERT = "layers.{}.mlp.", "layers.{}.mlp.experts.{expert}."

# llama.cpp's `LLAMA_MAX_EXPERTS`; and several times what any model has in all of its layers.
_EXPERTS = WholeNumber(1, 1024)
_MOST = 1 << 16


def expert_names(
    names: Sequence[Name], mlp: str, *, gate: str, up: str, down: str
) -> tuple[Name, ...]:
    """Return the lines of a family with those of experts in the place of those of its MLPs.

    `mlp` begins the names at Hugging Face, where an expert's parts are `gate`, `up` and `down`.
    """
    lines = [Name(module=_MLP + "router", gguf="blk.{}.ffn_gate_inp", hugging_face=mlp + "gate",
                  is_float32=True)]  # fmt: skip
    lines += [
        Name(
            module=_EXPERT + part,
            gguf=f"blk.{{}}.ffn_{part}_exps",
            hugging_face=f"{mlp}experts.{{expert}}.{name}",
        )
        for part, name in {"gate": gate, "up": up, "down": down}.items()
    ]
    place = next(place for place, name in enumerate(names) if name.module.startswith(_MLP))
    kept = [name for name in names if not name.module.startswith(_MLP)]
    return (*kept[:place], *lines, *kept[place:])


def expert_forms() -> tuple[Fusion, ...]:
    """Return the other forms of a layer's experts.

    transformers' modules have all experts in one tensor, which `save_pretrained` takes apart by
    default; the first GGUFs of mixtures had each expert by itself.
    """
    in_memory, gate, up, down = "model.layers.{}.mlp.", "gate", "up", "down"
    width = "expert_intermediate"
    fused = [
        Fusion(convention="hugging_face", name=in_memory + "experts.gate_up_proj",
               parts=(_EXPERT + gate, _EXPERT + up), rows=_rows(width, width), of_experts=True),
        Fusion(convention="hugging_face", name=in_memory + "experts.down_proj",
               parts=(_EXPERT + down,), rows=_rows("hidden"), of_experts=True),
        Fusion(convention="hugging_face", name=in_memory + "gate.weight",
               parts=(_MLP + "router",), rows=_rows("experts")),
    ]  # fmt: skip
    apart = [
        Fusion(convention="gguf", name=f"blk.{{}}.ffn_{part}.{{expert}}.weight",
               parts=(_EXPERT + part,), rows=_rows(rows))
        for part, rows in {gate: width, up: width, down: "hidden"}.items()
    ]  # fmt: skip
    return (*fused, *apart)


def _rows(*fields: str) -> Callable[[Any], list[int]]:
    return lambda config: [getattr(config, field) for field in fields]


def expert_keys(
    keys: Sequence[Key], count: str, *more: Key, experts: int, used: int
) -> tuple[Key, ...]:
    """Return the keys of a family with those of experts, and `more`, in the place of its own.

    `count` is what config.json calls the number of experts; `experts` and `used` are the defaults.
    """
    added = (
        Key(field="experts", kind=_EXPERTS, default=experts, gguf="{arch}.expert_count",
            hugging_face=count),
        Key(field="experts_used", kind=_EXPERTS, default=used, gguf="{arch}.expert_used_count",
            hugging_face="num_experts_per_tok"),
        # Of which llama.cpp takes some for each position.
        Key(field="expert_groups", kind=WholeNumber(0, 1), gguf_default=0,
            gguf="{arch}.expert_group_count", written=False),
        *more,
    )  # fmt: skip
    replaced = {key.field for key in added}
    return (*(key for key in keys if key.field not in replaced), *added)


def check_experts(fields: Fields) -> None:
    """Raise `ValueError` for more experts than one can use, or there are."""
    count, used, layers = fields["experts"], fields["experts_used"], fields["layers"]
    if used > count:
        raise ValueError(f"{used} experts per token are not possible with {count} experts")
    if count * layers > _MOST:
        raise ValueError(f"{count} experts in {layers} layers are more than the limit of {_MOST}")

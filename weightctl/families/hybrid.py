"""Keys and lines of hybrid models: other parts replace attention in some layers.

GGUF has a number of KV heads for each layer, which is 0 in layers without attention; transformers
has a word for each layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key, PresentInLayer
from weightctl.families.config_values import FLAG, Choice, WholeNumber
from weightctl.families.decoder_keys import check_decoder
from weightctl.families.layers import ONES, LayerValues
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

_LAYER = "layers.{}."
# Not every layer has the tensors in which biases of attention are seen.
_SEEN = {
    "attention_bias": PresentInLayer("blk.{}.attn_q.bias", "blk.{}.attn_qkv.bias"),
    "attention_output_bias": PresentInLayer("blk.{}.attn_output.bias"),
}
# A number of KV heads for each layer, or one for all.
_COUNTS = LayerValues(WholeNumber(0, 1 << 16))


def hybrid_lines(names: tuple[Name, ...], parts: Mapping[str, str]) -> tuple[Name, ...]:
    """Return the lines of a model in which only some layers have certain parts.

    `parts` maps the first word of a line's role to the config field that states which layers have
    it, for example `attention` to `attention_layers`.
    """
    made: list[Name] = []
    for each in names:
        field = parts.get(each.module.removeprefix(_LAYER).split(".")[0])
        is_conditional = each.is_of_layers and field is not None and field not in each.when
        made.append(replace(each, when=(field, *each.when)) if is_conditional and field else each)
    return tuple(made)


def hybrid_keys(keys: tuple[Key, ...], other: str, *stated: Key) -> tuple[Key, ...]:
    """Return keys in which layers without attention have the part of the config field `other`.

    `stated` are the keys by which config.json states the layers with attention.
    """
    made: list[Key] = []
    for key in keys:
        if key.field != "kv_heads":
            has_bias = key.field in _SEEN and key.seen is not None
            made.append(replace(key, seen=_SEEN[key.field]) if has_bias else key)
            continue
        made += (
            Key(field="layer_kv_heads", kind=_COUNTS, gguf_default=_list_kv_heads,
                gguf="{arch}.attention.head_count_kv"),
            # The list states the number, unless no layer has attention.
            replace(key, gguf="", gguf_default=_find_kv_heads, is_in_weights=True),
            Key(field="attention_layers", kind=ONES, gguf_default=_find_attention_layers),
        )  # fmt: skip
    return (
        *made,
        *stated,
        Key(field=other, kind=ONES, default=_find_others, gguf_default=_find_others),
        Key(field="layer_kv_heads", kind=_COUNTS, default=_list_kv_heads),
    )  # fmt: skip


def check_kv_heads(fields: Fields) -> None:
    """Raise `ValueError` if layers with attention have different numbers of KV heads."""
    counts = fields.get("layer_kv_heads")
    if is_sequence(counts) and len(set(counts) - {0}) > 1:
        raise ValueError("numbers of KV heads that differ between layers are not supported")


def check_hybrid(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_kv_heads(fields)
    return check_decoder(fields)


def mark_all(fields: Fields) -> tuple[bool, ...]:
    count: int = fields["layers"]
    return (True,) * count


def _list_kv_heads(fields: Fields) -> Any:
    """Return the number of KV heads of each layer; one number if all layers have attention."""
    # A file without the key has as many KV heads as query heads.
    count, layers = fields.get("kv_heads", fields["heads"]), fields.get("attention_layers")
    if layers is None:
        return count
    return tuple(count if has_attention else 0 for has_attention in layers)


def _find_kv_heads(fields: Fields) -> int:
    counts = fields["layer_kv_heads"]
    return int(max(counts if is_sequence(counts) else (counts,)) or fields["heads"])


def _find_attention_layers(fields: Fields) -> tuple[bool, ...]:
    counts = fields["layer_kv_heads"]
    given = counts if is_sequence(counts) else [counts] * fields["layers"]
    return tuple(count > 0 for count in given)


def _find_others(fields: Fields) -> tuple[bool, ...]:
    given: tuple[bool, ...] = fields["attention_layers"]
    return tuple(not has_attention for has_attention in given)


def mark_none(fields: Fields) -> tuple[bool, ...]:
    count: int = fields["layers"]
    return (False,) * count


class _IsRotated(NamedTuple):
    """A flag: whether attention has RoPE."""

    def read(self, content: object) -> str:
        return "rope" if FLAG.read(content) else "none"

    @property
    def gguf_type(self) -> str:
        return FLAG.gguf_type

    def write(self, value: Any) -> bool:
        return bool(value == "rope")


def _state_no_rope(fields: Fields) -> str:
    del fields
    return "none"


# llama.cpp reads from this key whether there is RoPE.
ROPE_FLAG = Key(
    field="position",
    kind=_IsRotated(),
    gguf_default="rope",
    gguf="{arch}.rope.scaling.finetuned",
    written=True,
)
POSITION_KEYS = (
    ROPE_FLAG,
    Key(
        field="position",
        kind=Choice({"rope": "rope", "nope": "none"}),
        default=_state_no_rope,
        hugging_face="position_embedding_type",
    ),
)

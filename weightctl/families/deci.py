"""The blocks of Nemotron Super and Ultra, and of DeciLM: layers whose parts differ in size.

config.json has an object for each layer: the number of query heads that share a KV head, and the
width of the MLP as a multiple of the hidden size. A part with neither is left out. GGUF has lists
with the numbers of heads and the widths, 0 for a part that is left out.

Sources: `block_config.py`, `configuration_decilm.py` and `modeling_decilm.py` in NVIDIA's and
Deci's checkpoints, since transformers does not have the types; llama.cpp's `models/deci.cpp` and
`conversion/deci.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key
from weightctl.families.config_values import FLAG, SIZE, WholeNumber, show_value
from weightctl.families.decoder_keys import check_decoder
from weightctl.families.layers import ONES, LayerValues
from weightctl.families.rope import standard
from weightctl.text.untyped import is_list, is_sequence, object_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.families.config_keys import Fields

_KV_HEADS, _WIDTHS, _BLOCKS = "num_key_value_heads", "intermediate_size", "block_configs"
_ROUNDING = 256
# What the code of these models also has, and no published one uses.
_UNUSED = ("num_sink_tokens", "replace_with_linear", "sparsify", "window_length")
_COUNTS = LayerValues(WholeNumber(0, SIZE.most))


def _list_values(field: str) -> Callable[[Fields], tuple[int, ...]]:
    """Return a function that lists the values of a field, one for each layer."""

    def find(fields: Fields) -> tuple[int, ...]:
        given = fields[field]
        return tuple(given) if is_sequence(given) else (given,) * fields["layers"]

    return find


def _mark(field: str) -> Callable[[Fields], tuple[bool, ...]]:
    return lambda fields: tuple(each > 0 for each in _list_values(field)(fields))


def _fill(field: str) -> Callable[[Fields], tuple[int, ...]]:
    """Return a function that lists the values of a field, with others for those that are 0."""

    def find(fields: Fields) -> tuple[int, ...]:
        values = _list_values(field)(fields)
        return tuple(each or max(*values, 1) for each in values)

    return find


def _list_heads(fields: Fields) -> tuple[int, ...]:
    has_attention: tuple[bool, ...] = fields["attention_layers"]
    return tuple(fields["heads"] if has else 0 for has in has_attention)


def _find_heads(fields: Fields) -> int:
    return max(_list_values("layer_heads")(fields)) or 1


def _computed(field: str, kind: Any, find: Callable[[Fields], Any]) -> Key:
    return Key(field=field, kind=kind, default=find, gguf_default=find)


DECI_HEADS = (
    Key(field="layer_heads", kind=_COUNTS, gguf="{arch}.attention.head_count"),
    Key(field="heads", kind=SIZE, default=64, gguf_default=_find_heads,
        hugging_face="num_attention_heads"),
    Key(field="layer_kv_heads", kind=_COUNTS, default=_list_values("heads"),
        gguf_default=_list_values("layer_heads"), gguf="{arch}.attention.head_count_kv",
        hugging_face=_KV_HEADS, written=True),
    _computed("attention_layers", ONES, _mark("layer_kv_heads")),
    _computed("kv_heads", _COUNTS, _fill("layer_kv_heads")),
    Key(field="layer_heads", kind=_COUNTS, default=_list_heads,
        gguf_default=_list_values("layer_heads")),
)  # fmt: skip
DECI_WIDTHS = (
    Key(field="layer_widths", kind=_COUNTS, default=28672, gguf="{arch}.feed_forward_length",
        hugging_face=_WIDTHS, written=True),
    _computed("mlp_layers", ONES, _mark("layer_widths")),
    _computed("intermediate", _COUNTS, _fill("layer_widths")),
)  # fmt: skip


def standard_deci(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with lists of the numbers of KV heads and of the widths of MLPs.

    Raises `ValueError` for a block with parts that are not supported.
    """
    blocks, found = document.get(_BLOCKS), dict(standard(document))
    if is_list(blocks):
        heads = SIZE.read(document.get("num_attention_heads", 64))
        hidden = SIZE.read(document.get("hidden_size", 8192))
        parts = [[_read_part(block, each) for each in ("attention", "ffn")] for block in blocks]
        found[_KV_HEADS] = [_count_kv_heads(attention, heads) for attention, _ in parts]
        found[_WIDTHS] = [_find_width(mlp, hidden) for _, mlp in parts]
    elif is_list(shared := document.get("num_key_value_heads_per_layer")):
        found |= {_KV_HEADS: shared, _WIDTHS: [document.get(_WIDTHS, 11008)] * len(shared)}
    return found


def _read_part(block: Any, name: str) -> Mapping[str, Any]:
    part = object_of({"block": block}, "block")
    part = object_of(part, name)
    for key in _UNUSED:
        if part.get(key):
            where = f"`{key}` of a block is {show_value(part[key])}"
            raise ValueError(f"{where}, which is not supported")
    return {} if FLAG.read(part.get("no_op", False)) else part


def _count_kv_heads(attention: Mapping[str, Any], heads: int) -> int:
    shared = attention.get("n_heads_in_group")
    return 0 if shared is None else heads // SIZE.read(shared)


def _find_width(mlp: Mapping[str, Any], hidden: int) -> int:
    stated, factor = mlp.get(_WIDTHS), mlp.get("ffn_mult")
    if stated is not None or factor is None:
        return SIZE.read(stated) if stated is not None else 0
    if type(factor) not in {int, float} or not 0 < factor < SIZE.most:
        raise ValueError(f"`ffn_mult` of a block is {show_value(factor)}, not a positive number")
    return -(-int(2 * factor * hidden / 3) // _ROUNDING) * _ROUNDING


def complete_deci(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the opposite: an object for each layer."""
    found = dict(document)
    layers, heads, hidden = (
        document[key] for key in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    shared, widths = (
        given if is_sequence(given) else [given] * layers
        for given in (found.pop(_KV_HEADS), found.pop(_WIDTHS))
    )
    found[_BLOCKS] = [
        {
            "attention": {
                "n_heads_in_group": heads // count if count else None,
                "no_op": not count,
                "replace_with_linear": False,
            },
            "ffn": {
                "ffn_mult": 3 * width / (2 * hidden) if width else None,
                "no_op": not width,
                "replace_with_linear": False,
            },
        }
        for count, width in zip(shared, widths, strict=True)
    ]
    return found


def check_deci(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    heads = fields["heads"]
    if odd := next((each for each in fields["kv_heads"] if heads % each), 0):
        raise ValueError(f"{heads} query heads cannot be divided evenly among {odd} KV heads")
    return check_decoder(fields)


def find_lone_attention(fields: Fields) -> str | None:
    """Return why llama.cpp would compute a different model, None if it would not."""
    parts = zip(fields["attention_layers"], fields["mlp_layers"], strict=True)
    if any(has_attention and not has_mlp for has_attention, has_mlp in parts):
        return "some layers have attention and no MLP; it leaves out both"
    return None

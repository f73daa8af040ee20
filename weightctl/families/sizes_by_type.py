"""Keys of sizes that differ between layers with a sliding window and layers with full attention.

Names and keys: transformers' `configuration_gemma4.py`; llama.cpp's `conversion/gemma.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, same
from weightctl.families.config_values import FLAG, HEADS, SIZE
from weightctl.families.layers import Layered, LayerValues
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from weightctl.families.config_keys import Fields


def _by_type(local: str, of_global: str) -> Any:
    """Return a default with a value for each layer, by whether it has a window."""

    def find(fields: Fields) -> tuple[Any, ...]:
        windows: tuple[bool, ...] = fields["windowed_layers"]
        return tuple(fields[local if windowed else of_global] for windowed in windows)

    return find


def unify(values: Any) -> Any:
    """Return the one value of all layers if they have the same, otherwise the values."""
    if is_sequence(values) and values and all(each == values[0] for each in values):
        return values[0]
    return values


def _as_written(field: str) -> Any:
    """Return a default for GGUF: the values of layers, or one value for all."""

    def find(fields: Fields) -> Any:
        if field not in fields:
            raise ValueError("is missing")
        return unify(fields[field])

    return find


def _at(values: Any, layer: int) -> Any:
    return values[layer] if is_sequence(values) else values


def _of_first(field: str, *, windowed: bool) -> Any:
    """Return a default: the value of the first layer with a window, or without one."""

    def find(fields: Fields) -> Any:
        values, windows = fields[field], fields["windowed_layers"]
        places = [number for number, each in enumerate(windows) if each is windowed]
        if is_sequence(values) and len(values) != len(windows):
            raise ValueError("does not have a value for each layer")
        return _at(values, places[0] if places else 0)

    return find


def _find_widths(fields: Fields) -> tuple[int, ...]:
    """Return the width of each layer's MLP: twice the usual one in layers without own keys."""
    width, doubled = fields["base_intermediate"], fields["double_wide"]
    return tuple(width * (1 + (doubled and not own)) for own in fields["own_keys"])


def _is_doubled(fields: Fields) -> bool:
    return is_sequence(fields["layer_widths"]) and len(set(fields["layer_widths"])) > 1


_HEAD_DIM = _by_type("local_head_dim", "global_head_dim")
_KV_HEADS = _by_type("local_kv_heads", "global_kv_heads")

SIZES_BY_TYPE = (
    Key(field="global_head_dim", kind=SIZE, default=512, gguf="{arch}.attention.key_length",
        hugging_face="global_head_dim", written=True),
    Key(field="local_head_dim", kind=SIZE, default=256, gguf="{arch}.attention.key_length_swa",
        hugging_face="head_dim"),
    *(Key(field=f"{each}_value_dim", kind=SIZE, gguf_default=same(f"{each}_head_dim"),
          gguf=f"{{arch}}.attention.value_length{end}")
      for each, end in (("global", ""), ("local", "_swa"))),
    Key(field="head_dim", kind=Layered(SIZE), default=_HEAD_DIM, gguf_default=_HEAD_DIM),
    Key(field="layer_kv_heads", kind=LayerValues(HEADS), gguf_default=_as_written("kv_heads"),
        gguf="{arch}.attention.head_count_kv"),
    Key(field="local_kv_heads", kind=HEADS, default=4, hugging_face="num_key_value_heads",
        gguf_default=_of_first("layer_kv_heads", windowed=True)),
    Key(field="global_kv_heads", kind=HEADS, default=same("local_kv_heads"),
        hugging_face="num_global_key_value_heads",
        gguf_default=_of_first("layer_kv_heads", windowed=False)),
    Key(field="kv_heads", kind=Layered(HEADS), default=_KV_HEADS, gguf_default=_KV_HEADS),
)  # fmt: skip
LAYER_WIDTHS = (
    Key(field="layer_widths", kind=LayerValues(SIZE), gguf_default=_as_written("intermediate"),
        gguf="{arch}.feed_forward_length"),
    Key(field="base_intermediate", kind=SIZE, default=9216, hugging_face="intermediate_size",
        gguf_default=lambda fields: _at(fields["layer_widths"], 0)),
    Key(field="double_wide", kind=FLAG, default=False, hugging_face="use_double_wide_mlp",
        gguf_default=_is_doubled),
    Key(field="intermediate", kind=Layered(SIZE), default=_find_widths, gguf_default=_find_widths),
)  # fmt: skip

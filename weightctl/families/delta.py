"""Lines and keys of models with gated delta nets in most layers, and attention in the others.

Names and keys: transformers' `modeling_qwen3_next.py` and `modeling_qwen3_5.py`; llama.cpp's
`models/qwen3next.cpp`, `models/qwen35.cpp` and `conversion/qwen.py`. Attention has a gate, whose
rows are stored with those of the queries, head by head.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import GLOBAL, Key, quotient, with_keys
from weightctl.families.config_values import HEADS, LAYERS, SIZE, Exactly
from weightctl.families.decoder_keys import DECODER_KEYS, activation, check_decoder
from weightctl.families.fusions import Fusion
from weightctl.families.hybrid import hybrid_lines
from weightctl.families.layers import FLAGS, ONES, LayerChoice, every_but
from weightctl.families.rope import PARTIAL_ROPE
from weightctl.families.rope import standard as standard_rope
from weightctl.families.steps import PLUS_ONE, group_heads, tile_delta_heads
from weightctl.families.usual_names import DECODER, adapt

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

_LINEAR, _INTERVAL = "linear_attention", 4
_TYPES, _EVERY = "layer_types", "full_attention_interval"
_ATTENTION = "layers.{}.attention."
_BIASES = "llama.cpp has no attention biases in this family"


def _list_lines() -> tuple[Name, ...]:
    names = adapt(
        DECODER,
        {
            "attention_norm": {"change": PLUS_ONE},
            "attention.q": {"gguf": None, "hugging_face": None},
            "attention.gate": {"gguf": None, "hugging_face": None},
            "attention.q_norm": {"change": PLUS_ONE},
            "attention.k_norm": {"change": PLUS_ONE},
            "delta.qkv": {},
            "delta.gate": {},
            "delta.beta": {},
            "delta.alpha": {},
            "delta.kernel": {},
            "delta.rates": {},
            "delta.offsets": {},
            "delta.norm": {},
            "delta.outputs": {},
            "mlp_norm": {"gguf": "blk.{}.post_attention_norm", "change": PLUS_ONE},
            "norm": {"change": PLUS_ONE},
        },
    )
    return hybrid_lines(names, {"attention": "attention_layers"})


DELTA_LINES = _list_lines()


def _by_query_head(config: Any) -> Sequence[int]:
    return group_heads(config.heads, (config.head_dim,) * 2)


# In both conventions, each head has the rows of its query before those of its gate.
_QUERIES_IN_GGUF = Fusion(
    convention="gguf",
    name="blk.{}.attn_q.{kind}",
    parts=(_ATTENTION + "q", _ATTENTION + "gate"),
    order=_by_query_head,
)
GATED_QUERIES = (
    _QUERIES_IN_GGUF,
    replace(
        _QUERIES_IN_GGUF,
        convention="hugging_face",
        name="model.layers.{}.self_attn.q_proj.{kind}",
    ),
)


# In Qwen3.5, GGUF has the rows of heads in its own order.
TILED_FORMS = tuple(
    Fusion(
        convention="gguf",
        name=f"blk.{{}}.{name}",
        parts=(f"layers.{{}}.delta.{part}",),
        order=partial(tile_delta_heads, **order),
    )
    for part, name, order in (
        ("qkv", "attn_qkv.weight", {"is_of_values": True, "has_keys": True}),
        ("gate", "attn_gate.weight", {"is_of_values": True}),
        ("beta", "ssm_beta.weight", {}),
        ("alpha", "ssm_alpha.weight", {}),
        ("kernel", "ssm_conv1d.weight", {"is_of_values": True, "has_keys": True}),
        ("rates", "ssm_a", {}),
        ("offsets", "ssm_dt.bias", {}),
    )
)


def _find_width(fields: Fields) -> int:
    size = fields.get("delta_value_size", fields["delta_key_size"])
    return int(size * fields["delta_heads"])


def _find_interval(fields: Fields) -> int | None:
    """Return the interval of layers with attention; None if it is not the same everywhere."""
    marked = fields.get("delta_layers")
    if marked is None:
        return _INTERVAL
    interval = next((number + 1 for number, has in enumerate(marked) if not has), len(marked) + 1)
    return interval if every_but(interval)(fields) == tuple(marked) else None


def _by_interval(fields: Fields) -> tuple[bool, ...]:
    return every_but(fields["delta_interval"])(fields)


def _find_others(fields: Fields) -> tuple[bool, ...]:
    return tuple(not has_delta for has_delta in fields["delta_layers"])


DELTA_KEYS = with_keys(
    DECODER_KEYS,
    PARTIAL_ROPE,
    activation("silu"),
    Key(field="attention_bias", kind=Exactly(False, _BIASES), default=False, gguf_default=False,
        hugging_face="attention_bias"),
    Key(field="convolution_length", kind=SIZE, default=4, gguf="{arch}.ssm.conv_kernel",
        hugging_face="linear_conv_kernel_dim"),
    Key(field="delta_key_size", kind=SIZE, default=128, gguf="{arch}.ssm.state_size",
        hugging_face="linear_key_head_dim"),
    Key(field="delta_key_heads", kind=HEADS, default=16, gguf="{arch}.ssm.group_count",
        hugging_face="linear_num_key_heads"),
    Key(field="delta_heads", kind=HEADS, default=32, gguf="{arch}.ssm.time_step_rank",
        hugging_face="linear_num_value_heads"),
    Key(field="delta_width", kind=SIZE, gguf="{arch}.ssm.inner_size", gguf_default=_find_width),
    Key(field="delta_value_size", kind=SIZE, default=128, hugging_face="linear_value_head_dim",
        gguf_default=quotient("delta_width", "delta_heads")),
    Key(field="delta_interval", kind=SIZE, gguf=f"{{arch}}.{_EVERY}",
        gguf_default=_find_interval),
    Key(field="delta_layers", kind=FLAGS, gguf="{arch}.attention.recurrent_layers",
        gguf_default=_by_interval),
    Key(field="delta_layers", kind=LayerChoice(_LINEAR, GLOBAL), default=every_but(_INTERVAL),
        hugging_face=_TYPES, written=True),
    Key(field="attention_layers", kind=ONES, default=_find_others, gguf_default=_find_others),
)  # fmt: skip


def standard_delta(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a type for each layer, which older files state as an interval.

    Raises `ValueError` if the interval or the number of layers is invalid.
    """
    found = dict(standard_rope(document))
    if found.get(_TYPES) is None and found.get(_EVERY) is not None:
        # transformers' default for the number of layers differs between the families.
        count = found.get("num_hidden_layers")
        if count is not None:
            marked = every_but(SIZE.read(found[_EVERY]))({"layers": LAYERS.read(count)})
            found[_TYPES] = LayerChoice(_LINEAR, GLOBAL).write(marked)
    return found


def check_delta(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    heads, key_heads = fields["delta_heads"], fields["delta_key_heads"]
    if heads % key_heads:
        raise ValueError(
            f"{heads} value heads cannot be divided evenly among {key_heads} key heads"
        )
    return check_decoder(fields)


def find_unlike_delta(fields: Fields) -> str | None:
    """Return why llama.cpp does not load a model, None if it does."""
    keys, values = fields["delta_key_size"], fields["delta_value_size"]
    if keys != values:
        return f"the keys of its gated delta nets have {keys} elements and the values {values}"
    return None

"""EXAONE 4: norms after attention and MLP, and RoPE only in layers with a sliding window.

Names and keys: transformers' `modeling_exaone4.py`; llama.cpp's `models/exaone4.cpp`, which only
applies a window in models with 64 layers. A model without windows has RoPE in all layers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.decoder_keys import DECODER_KEYS, check_decoder, with_keys
from weightctl.families.family import Family, ModelType
from weightctl.families.keys import Key
from weightctl.families.kinds import SIZE, OrNone
from weightctl.families.layers import ONES, every_but
from weightctl.families.lines import DECODER, adapt
from weightctl.families.rope_factors import LLAMA3_LINES
from weightctl.families.rope_keys import ROPE_FACTORS
from weightctl.families.windowed_layers import LOCAL, WORDS, pattern_keys, standard_period

if TYPE_CHECKING:
    from weightctl.families.keys import Fields

_PERIOD, _WINDOW, _LAYERS_OF_32B = 4, 4096, 64


def _window(fields: Fields) -> int | None:
    return _WINDOW if fields["layers"] == _LAYERS_OF_32B else None


def _mark_windows(fields: Fields) -> tuple[bool, ...]:
    if fields["sliding_window"] is None:
        return (False,) * int(fields["layers"])
    return every_but(_PERIOD)(fields)


_PATTERN, _FLAGS = pattern_keys(_PERIOD, is_stated=False)


def _find_pattern(fields: Fields) -> Any:
    """Return what GGUF states in place of the usual period: None if there is no window."""
    find: Any = _PATTERN.gguf_default
    return None if fields["sliding_window"] is None else find(fields)


def _spread_pattern(fields: Fields) -> Any:
    spread: Any = _FLAGS.gguf_default
    return _mark_windows(fields) if fields["window_pattern"] is None else spread(fields)


def _mark_rotated(fields: Fields) -> tuple[bool, ...] | None:
    windowed: tuple[bool, ...] = fields["windowed_layers"]
    return None if fields["sliding_window"] is None else windowed


def _find_other_windows(fields: Fields) -> str | None:
    """Return what llama.cpp computes differently from transformers, or None."""
    has_window, layers = fields["sliding_window"] is not None, fields["layers"]
    if has_window != (layers == _LAYERS_OF_32B):
        return f"it uses a sliding window in models of {_LAYERS_OF_32B} layers and in no others"
    return None


def _check_fields(fields: Fields) -> Fields:
    if fields["sliding_window"] is None and any(fields["windowed_layers"]):
        raise ValueError(f"some layers are `{LOCAL}`, but there is no `sliding_window`")
    return check_decoder(fields)


FAMILY = Family(
    name="exaone4",
    model_types={
        "exaone4": ModelType(
            class_name="Exaone4ForCausalLM",
            defaults={
                "vocabulary": 102400,
                "intermediate": 16384,
                "norm_epsilon": 1e-5,
                "sliding_window": _WINDOW,
            },
        )
    },
    blocks={"pre_norms": False, "post_norms": True, "qk_norm": "head"},
    keeps_window=True,
    differs=_find_other_windows,
    names=adapt(
        DECODER,
        {
            **LLAMA3_LINES,
            "attention_norm": None,
            "attention.q_norm": {},
            "attention.k_norm": {},
            "post_attention_norm": {},
            "mlp_norm": None,
            "post_mlp_norm": {},
        },
    ),
    keys=with_keys(
        DECODER_KEYS,
        ROPE_FACTORS,
        Key(field="sliding_window", kind=OrNone(SIZE), default=None, gguf_default=_window,
            gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
        replace(_PATTERN, gguf_default=_find_pattern),
        replace(_FLAGS, gguf_default=_spread_pattern),
        Key(field="windowed_layers", kind=WORDS, default=_mark_windows, hugging_face="layer_types",
            written=True),
        Key(field="rotated_layers", kind=ONES, default=_mark_rotated, gguf_default=_mark_rotated),
    ),
    standard=standard_period,
    checked=_check_fields,
)  # fmt: skip

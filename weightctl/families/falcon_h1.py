"""Falcon-H1: attention and a Mamba-2 side by side in each layer, then an MLP, with many factors.

Names and keys: transformers' `modeling_falcon_h1.py` and `configuration_falcon_h1.py`; llama.cpp's
`models/falcon-h1.cpp` and `conversion/falcon_h1.py`, which multiplies the weights by the factors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import Key, Present, with_keys
from weightctl.families.config_values import FLAG, SIZE, Exactly, Real, Reals
from weightctl.families.decoder_keys import DECODER_KEYS, SILU, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import qkv_form
from weightctl.families.rope import standard as standard_rope
from weightctl.families.state_space import (
    check_heads_of_states,
    mamba2_keys,
    mamba2_roles,
    without_auto,
)
from weightctl.families.steps import REST_OF_LOGIT_SCALE, scaled_by, scaled_runs
from weightctl.families.usual_names import DECODER, adapt, line
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

_LAYER = "model.layers.{}."
_UNBIASED = "llama.cpp's converter does not multiply biases by the factors of the model"
_NORM_AFTER_GATE = "llama.cpp multiplies by the gates before the norm"
_SEGMENTS = 5
_FACTOR = Real(-1e9, 1e9)
# The names of one factor each in config.json, by their fields.
_FACTORS = {
    "attention_input_factor": "attention_in_multiplier",
    "key_factor": "key_multiplier",
    "attention_output_factor": "attention_out_multiplier",
    "ssm_input_factor": "ssm_in_multiplier",
    "ssm_output_factor": "ssm_out_multiplier",
    "embedding_scale": "embedding_multiplier",
    "logit_scale": "lm_head_multiplier",
}


def _factor_keys() -> tuple[Key, ...]:
    single = (
        Key(field=field, kind=_FACTOR, default=1.0, gguf_default=1.0, hugging_face=name,
            is_in_weights=True)
        for field, name in _FACTORS.items()
    )  # fmt: skip
    return (
        *single,
        Key(field="ssm_factors", kind=Reals(_FACTOR, _SEGMENTS), default=_ones(_SEGMENTS),
            gguf_default=_ones(_SEGMENTS), hugging_face="ssm_multipliers", is_in_weights=True),
        Key(field="mlp_factors", kind=Reals(_FACTOR, 2), default=_ones(2), gguf_default=_ones(2),
            hugging_face="mlp_multipliers", is_in_weights=True),
    )  # fmt: skip


def _ones(count: int) -> Callable[[Fields], tuple[float, ...]]:
    def make(fields: Fields) -> tuple[float, ...]:
        del fields
        return (1.0,) * count

    return make


def _refuse_bias(field: str, name: str) -> Key:
    return Key(field=field, kind=Exactly(False, _UNBIASED), default=False, gguf_default=False,
               hugging_face=name)  # fmt: skip


def _segment_runs(config: Any) -> Sequence[tuple[int, float]]:
    inner, matrix, heads = (
        config.ssm_inner, config.ssm_groups * config.ssm_state, config.ssm_heads
    )  # fmt: skip
    if not config.ssm_scales:
        return ()
    first, *segments, _ = config.ssm_scales
    sizes = (inner, inner, matrix, matrix, heads)
    return [(size, first * scale) for size, scale in zip(sizes, segments, strict=True)]


def _output_factor(config: Any) -> float:
    return float(config.ssm_scales[-1]) if config.ssm_scales else 1.0


_CHANGES = {
    "attention.q": scaled_by(lambda config: config.attention_scales[0]),
    "attention.k": scaled_by(
        lambda config: config.attention_scales[0] * config.attention_scales[1]
    ),
    "attention.v": scaled_by(lambda config: config.attention_scales[0]),
    "attention.o": scaled_by(lambda config: config.attention_scales[2]),
    "mlp.gate": scaled_by(lambda config: config.mlp_scales[0]),
    "mlp.down": scaled_by(lambda config: config.mlp_scales[1]),
}


def _list_lines() -> tuple[Name, ...]:
    states = mamba2_roles(f"{_LAYER}mamba.")
    states["ssm.inputs"]["change"] = scaled_runs(_segment_runs)
    states["ssm.outputs"]["change"] = scaled_by(_output_factor)
    mlp = {
        f"mlp.{part}": {"hugging_face": f"{_LAYER}feed_forward.{part}_proj"}
        for part in ("gate", "up", "down")
    }
    attention = {f"attention.{part}": dict[str, Any]() for part in "qkvo"}
    changed = {
        role: {**fields, **({"change": _CHANGES[role]} if role in _CHANGES else {})}
        for role, fields in {**attention, **mlp}.items()
    }
    names = adapt(
        DECODER,
        {
            **changed,
            **states,
            # GGUF's name of this norm has no last word.
            "mlp_norm": {"hugging_face": f"{_LAYER}pre_ff_layernorm", "ends": {"gguf": ""}},
        },
    )
    outside = {
        "embedding": line("embedding", change=scaled_by(lambda config: config.embedding_scale)),
        "norm": line("norm", hugging_face="model.final_layernorm", change=REST_OF_LOGIT_SCALE),
        "output": line("output", change=scaled_by(lambda config: config.logit_scale)),
    }
    return tuple(outside.get(each.module, each) for each in names)


def _list_keys() -> tuple[Key, ...]:
    states = tuple(
        key for key in mamba2_keys(hybrid=True) if key.field not in {"ssm_inner", "ssm_expand"}
    )
    return (
        *with_keys(DECODER_KEYS, SILU),
        Key(field="ssm_inner", kind=SIZE, default=1024, gguf="{arch}.ssm.inner_size",
            hugging_face="mamba_d_ssm"),
        *states,
        Key(field="ssm_norm", kind=FLAG, default=False, hugging_face="mamba_rms_norm",
            seen=Present("blk.0.ssm_norm.weight")),
        Key(field="norm_before_gate", kind=FLAG, default=True,
            hugging_face="mamba_norm_before_gate"),
        _refuse_bias("attention_bias", "attention_bias"),
        _refuse_bias("mlp_bias", "mlp_bias"),
        _refuse_bias("projectors_bias", "projectors_bias"),
        *_factor_keys(),
    )  # fmt: skip


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the number of channels of its state space models."""
    found = dict(without_auto(standard_rope(document)))
    expand, hidden = found.get("mamba_expand", 2), found.get("hidden_size", 4096)
    is_null = "mamba_d_ssm" in found and found["mamba_d_ssm"] is None
    if is_null and isinstance(expand, int) and isinstance(hidden, int):
        found["mamba_d_ssm"] = expand * hidden
    return found


def _complete(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json that states that norms follow the gates."""
    has_norm = document.get("mamba_rms_norm", False)
    return {**document, "mamba_norm_before_gate": False} if has_norm else document


def _check(fields: Fields) -> Fields:
    check_heads_of_states(fields)
    if fields.get("norm_before_gate", False) and fields["ssm_norm"]:
        raise ValueError(f"`mamba_norm_before_gate` is true: {_NORM_AFTER_GATE}")
    segments, mlp = fields["ssm_factors"], fields["mlp_factors"]
    if not is_sequence(segments) or len(segments) != _SEGMENTS or len(mlp) != 2:
        raise ValueError(f"{_SEGMENTS} `ssm_multipliers` and 2 `mlp_multipliers` are needed")
    scales = (fields["ssm_input_factor"], *segments, fields["ssm_output_factor"])
    return {
        **check_decoder(fields),
        "attention_scales": tuple(
            fields[f"{part}_factor"] for part in ("attention_input", "key", "attention_output")
        ),
        "ssm_scales": () if all(scale == 1 for scale in scales) else scales,
        "mlp_scales": tuple(mlp),
    }


FAMILY = Family(
    name="falcon_h1",
    gguf="falcon-h1",
    model_types={
        "falcon_h1": ModelType(
            class_name="FalconH1ForCausalLM",
            defaults={
                "vocabulary": 128000,
                "context": 8192,
                "intermediate": 14336,
                "kv_heads": 8,
                "norm_epsilon": 1e-5,
                "ssm_state": 256,
            },
        )
    },
    blocks={"ssm_layers": True, "ssm_version": 2},
    names=_list_lines(),
    keys=_list_keys(),
    fusions=(qkv_form(),),
    standard=_standard,
    completed=_complete,
    checked=_check,
)

"""What the files of families name: groups of keys and tensors, kinds of values, steps and rules.

Each name leads to an object of a module, which is imported on use.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = "weightctl.families."


def _refer(objects: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: _PACKAGE + reference for name, reference in objects.items()})


# Tensors: `tensors_from` in a file.
LINE_GROUPS = _refer({"decoder": "lines:DECODER"})

# Keys: `keys_from` in a file. A group is a key or several.
KEY_GROUPS = _refer({
    "attention_biases": "decoder_keys:ATTENTION_BIASES",
    "attention_bias": "decoder_keys:ATTENTION_BIAS",
    "biases": "decoder_keys:BIASES",
    "clamp": "decoder_keys:KQV_CLAMP",
    "decoder": "decoder_keys:DECODER_KEYS",
    "decoder_without_rope": "decoder_keys:KEYS_WITHOUT_ROPE",
    "expert_width": "experts:EXPERT_WIDTH",
    "granite_factors": "decoder_keys:GRANITE_SCALES",
    "layer_norm": "decoder_keys:LAYER_NORM",
    "long_rope_factors": "rope_keys:LONG_ROPE_FACTORS",
    "longrope": "rope_keys:LONGROPE_KEYS",
    "partial_rope": "decoder_keys:PARTIAL_ROPE",
    "plain_heads": "decoder_keys:PLAIN_HEADS",
    "rope_factors": "rope_keys:ROPE_FACTORS",
    "shared_width": "experts:SHARED_WIDTH",
    "sliding_window": "decoder_keys:SLIDING_WINDOW",
    "windows": "windowed_layers:WINDOW_KEYS",
})  # fmt: skip

# The kinds of values of keys.
KINDS = _refer({
    "activation": "kinds:ACTIVATION",
    "epsilon": "kinds:EPSILON",
    "flag": "kinds:FLAG",
    "heads": "kinds:HEADS",
    "layers": "kinds:LAYERS",
    "size": "kinds:SIZE",
})  # fmt: skip

# How the values of a tensor differ between the naming conventions.
STEPS = _refer({
    "minus_exp": "changes:MINUS_EXP",
    "plus_one": "changes:PLUS_ONE",
    "rope_rows": "changes:RopeRows",
    "squeeze": "changes:Squeezed",
    "transpose": "changes:TRANSPOSED",
    "turn_heads": "changes:TurnedHeads",
})  # fmt: skip

# The functions that make a tensor from a config, and those that find the settings in the tensor.
MADE = {
    name: (f"{_PACKAGE}rope_factors:{make}", f"{_PACKAGE}rope_factors:{add}")
    for name, make, add in (
        ("rope_factors", "rope_factors", "with_llama3"),
        ("long_rope_factors", "long_factors", "with_long_factors"),
        ("short_rope_factors", "short_factors", "with_short_factors"),
    )
}

# The classes of configs and of whole models.
MODELS = MappingProxyType({
    "decoder": ("weightctl.families.decoder:DecoderConfig", "weightctl.nn.models.decoder:Decoder"),
    "encoder": (
        "weightctl.families.encoder:EncoderConfig", "weightctl.nn.models.encoder:TextEncoder",
    ),
})  # fmt: skip

# What rows cannot say, by the field of the `Family`.
RULES: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "standard": _refer({
        "rope": "rope_keys:standard",
        "llama": "llama:standard",
        "windows": "windowed_layers:standard_windows",
        "without_auto": "state_space:without_auto",
    }),
    "checked": _refer({
        "decoder": "decoder_keys:check_decoder",
        "windows": "windowed_layers:check_windows",
    }),
    "unloaded": _refer({
        "equal_heads": "experts:find_shared_heads",
        "expansion": "state_space:find_expansion",
    }),
    "default": _refer({}),
    "differs": _refer({}),
    "completed": _refer({}),
    "is_of": _refer({}),
    "is_of_config": _refer({}),
    "not_run": _refer({}),
    "copied": _refer({}),
})  # fmt: skip

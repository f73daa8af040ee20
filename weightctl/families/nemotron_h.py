"""Nemotron-H: each layer is a Mamba-2, attention or an MLP alone, with one norm before it.

Names and keys: transformers' `modeling_nemotron_h.py` and `configuration_nemotron_h.py`;
llama.cpp's `models/nemotron-h.cpp` and `conversion/nemotron.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import Key, PresentInLayer, same, with_keys
from weightctl.families.config_values import (
    FLAG,
    HEADS,
    LAYERS,
    SIZE,
    Exactly,
    WholeNumber,
    show_value,
)
from weightctl.families.decoder_keys import DECODER_KEYS, LAYER_NORM, activation, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.hybrid import check_kv_heads, hybrid_lines
from weightctl.families.layers import ONES, LayerValues
from weightctl.families.rope import ROPE_KEYS
from weightctl.families.state_space import check_heads_of_states, mamba2_keys, mamba2_roles
from weightctl.families.usual_names import DECODER, adapt, line
from weightctl.text.untyped import is_list, is_sequence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.families.modules import Name

_STATES, ATTENTION, _MLP, EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
# Letters of a pattern, and words of transformers before version 5.
_LETTERS = {"M": _STATES, "*": ATTENTION, "-": _MLP, "E": EXPERTS}
_OLDER = {"mamba": _STATES, "attention": ATTENTION}
_LAYER = "model.layers.{}."
_COUNTS = LayerValues(WholeNumber(0, SIZE.most))
_UNBIASED = "transformers has no biases in the attention of Nemotron-H"


class _LayerKinds(NamedTuple):
    """A word for each layer: what the layer is; `inner` is the word for an MLP or experts."""

    inner: str

    def read(self, content: object) -> tuple[str, ...]:
        known = (_STATES, ATTENTION, self.inner)
        if not is_sequence(content) or not 0 < len(content) <= LAYERS.most:
            raise ValueError(f"is {show_value(content)}; it must have a word for each layer")
        for word in content:
            if word not in known:
                expected = ", ".join(f"`{each}`" for each in known)
                raise ValueError(f"has {show_value(word)}; each layer must be one of {expected}")
        return tuple(content)

    @property
    def gguf_type(self) -> str:
        """The type of an array of strings."""
        return "array[string]"

    def write(self, value: Any) -> list[str]:
        return list(value)


def layer_keys(inner: str, width: str) -> tuple[Key, ...]:
    """Return the keys of what each layer is; the MLPs or experts are as wide as the field `width`.

    GGUF has a number of KV heads and a width of the MLP for each layer, 0 where the layer is not
    attention or an MLP.
    """

    def find_words(fields: Fields) -> tuple[str, ...]:
        pairs = zip(*(_spread(fields, name) for name in ("layer_kv_heads", "layer_inner")),
                    strict=True)  # fmt: skip
        return tuple(ATTENTION if keys else inner if wide else _STATES for keys, wide in pairs)

    def list_where(word: str, field: str) -> Callable[[Fields], tuple[int, ...]]:
        return lambda fields: tuple(
            fields[field] if each == word else 0 for each in fields["layer_words"]
        )

    def mark(word: str) -> Callable[[Fields], tuple[bool, ...]]:
        return lambda fields: tuple(each == word for each in fields["layer_words"])

    marks = (("attention_layers", ATTENTION), ("ssm_layers", _STATES), ("mlp_layers", inner))
    return (
        Key(field="layer_words", kind=_LayerKinds(inner), gguf_default=find_words),
        Key(field="layer_words", kind=_LayerKinds(inner), hugging_face="layers_block_type",
            written=True),
        Key(field="layer_kv_heads", kind=_COUNTS, default=list_where(ATTENTION, "kv_heads")),
        Key(field="layer_inner", kind=_COUNTS, default=list_where(inner, width)),
        *(Key(field=field, kind=ONES, default=mark(word), gguf_default=mark(word))
          for field, word in marks),
    )  # fmt: skip


def _spread(fields: Fields, name: str) -> list[int]:
    given = fields[name]
    return list(given) if is_sequence(given) else [given] * fields["layers"]


def find_most(name: str) -> Callable[[Fields], int]:
    """Return a default that is the largest value of a field with a value for each layer."""
    return lambda fields: max(1, *_spread(fields, name))


def _find_inner(fields: Fields) -> int:
    return int(fields["ssm_heads"] * fields["ssm_size"])


_USUAL = with_keys(
    DECODER_KEYS,
    Key(field="kv_heads", kind=HEADS, default=8, hugging_face="num_key_value_heads"),
    Key(field="kv_heads", kind=HEADS, gguf_default=find_most("layer_kv_heads")),
    Key(field="head_dim", kind=SIZE, default=128, gguf="{arch}.attention.key_length",
        hugging_face="head_dim"),
    Key(field="intermediate", kind=SIZE, default=21504, hugging_face="intermediate_size"),
    Key(field="intermediate", kind=SIZE, gguf_default=find_most("layer_inner")),
    replace(LAYER_NORM, hugging_face="layer_norm_epsilon"),
    activation("relu2", key="mlp_hidden_act"),
    Key(field="mlp_bias", kind=FLAG, default=False, hugging_face="mlp_bias",
        seen=PresentInLayer("blk.{}.ffn_up.bias")),
    Key(field="attention_bias", kind=Exactly(False, _UNBIASED), default=False,
        hugging_face="attention_bias"),
    without=tuple(key.field for key in ROPE_KEYS),
)  # fmt: skip
_NAMES = {
    "ssm_state": "ssm_state_size", "ssm_heads": "mamba_num_heads", "ssm_size": "mamba_head_dim",
}  # fmt: skip


def _states_keys() -> tuple[Key, ...]:
    """Return the keys of the Mamba-2, whose inner size is that of its heads together."""
    made: list[Key] = []
    for key in mamba2_keys():
        if key.field in _NAMES and key.hugging_face:
            default = 64 if key.field == "ssm_size" else key.default
            key = replace(key, hugging_face=_NAMES[key.field], default=default)  # noqa: PLW2901
        if key.field == "ssm_expand" or (key.field == "ssm_inner" and not key.gguf):
            continue
        made.append(key)
    place = next(number for number, key in enumerate(made) if key.field == "ssm_groups")
    inner = Key(field="ssm_inner", kind=SIZE, default=_find_inner)
    return (
        *made[:place],
        inner,
        *made[place:],
        Key(field="ssm_activation", kind=Exactly("silu", "llama.cpp uses SiLU"), default="silu",
            hugging_face="mamba_hidden_act"),
        # In transformers, steps are at least this long, which shows only for a larger limit.
        Key(field="least_step", kind=Exactly(0.001, "llama.cpp does not limit steps"),
            default=0.001, hugging_face="time_step_min"),
        Key(field="rms_epsilon", kind=LAYER_NORM.kind, default=same("norm_epsilon"),
            gguf_default=same("norm_epsilon"), gguf="{arch}.attention.layer_norm_rms_epsilon"),
    )  # fmt: skip


KEYS = (
    *(key for key in _USUAL if key.field == "layers"),
    Key(field="layer_kv_heads", kind=_COUNTS, gguf="{arch}.attention.head_count_kv"),
    Key(field="layer_inner", kind=_COUNTS, gguf="{arch}.feed_forward_length"),
    *(key for key in _USUAL if key.field != "layers"),
    *_states_keys(),
)


def place_names(names: tuple[Name, ...]) -> tuple[Name, ...]:
    """Return lines with the names of layers and of the parts outside of them as Nemotron-H has."""
    made = [
        replace(each, hugging_face=each.hugging_face.replace("model.", "backbone.", 1))
        if each.hugging_face
        else each
        for each in names
    ]
    return hybrid_lines(tuple(made), {"attention": "attention_layers", "mlp": "mlp_layers"})


def _list_lines() -> tuple[Name, ...]:
    mixer = {f"attention.{part}": f"mixer.{part}_proj" for part in ("q", "k", "v", "o")} | {
        "mlp.up": "mixer.up_proj",
        "mlp.down": "mixer.down_proj",
    }
    names = adapt(
        DECODER,
        {
            **mixer,
            "mlp.gate": None,
            # Each layer has one norm.
            "attention_norm": {"hugging_face": f"{_LAYER}norm", "unless": "mlp_layers"},
            "mlp_norm": {
                "gguf": "blk.{}.attn_norm",
                "hugging_face": f"{_LAYER}norm",
                "when": ("mlp_layers",),
            },
            **mamba2_roles(f"{_LAYER}mixer."),
        },
    )
    outside = {"embedding": "model.embeddings", "norm": "model.norm_f"}
    return tuple(
        line(each.module, hugging_face=outside[each.module]) if each.module in outside else each
        for each in names
    )


LINES = _list_lines()


def list_words(document: Mapping[str, Any], prefix: str = "") -> list[Any] | None:
    """Return what config.json states for each layer, in transformers' current words.

    `prefix` is that of its keys, `mtp_` for the layers for multi-token prediction. None if it
    states nothing.
    """
    words = document.get(f"{prefix}layers_block_type") or document.get(f"{prefix}layer_types")
    pattern = document.get(f"{prefix}hybrid_override_pattern")
    if words is None and isinstance(pattern, str):
        words = [_LETTERS.get(letter, letter) for letter in pattern]
    if not is_list(words):
        return None
    return [_OLDER.get(word, word) if isinstance(word, str) else word for word in words]


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with a word for each layer, and their number."""
    words = list_words(document)
    if words is None:
        words = [_STATES, EXPERTS, ATTENTION, _MLP]  # those of transformers
    return {**document, "layers_block_type": words, "num_hidden_layers": len(words)}


def has_experts(document: Mapping[str, Any]) -> bool:
    """Return whether the layers of a config.json have experts."""
    return EXPERTS in (list_words(document) or ())


def check(fields: Fields) -> Fields:
    """Return the fields as `DecoderConfig` has them; raises `ValueError` if they contradict."""
    check_kv_heads(fields)
    check_heads_of_states(fields)
    if fields["rms_epsilon"] != fields["norm_epsilon"]:
        raise ValueError("two epsilons of norms are not supported")
    return check_decoder(fields)


DEFAULTS: Mapping[str, Any] = {
    "vocabulary": 131072,
    "context": 4096,
    "hidden": 4096,
    "norm_epsilon": 1e-5,
    "ssm_groups": 8,
}

FAMILY = Family(
    name="nemotron_h",
    model_types={"nemotron_h": ModelType(class_name="NemotronHForCausalLM", defaults=DEFAULTS)},
    blocks={"ssm_version": 2, "gated": False, "position": "none"},
    prefix="backbone.",
    other_prefixes=("model.",),
    names=place_names(LINES),
    keys=(*KEYS, *layer_keys(_MLP, "intermediate")),
    standard=standard,
    checked=check,
)

"""Gemma 4, and the text model of its multimodal models.

Names and keys: transformers' `modeling_gemma4.py` and `configuration_gemma4.py`; llama.cpp's
`models/gemma4.cpp` and `conversion/gemma.py`.

Layers with full attention have larger heads than those with a sliding window, and may use the keys
as values. llama.cpp assumes that the activation is GELU with tanh, and that attention scores are
not divided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import (
    GLOBAL,
    LOCAL,
    IsAbsent,
    Key,
    LayersWith,
    Present,
    same,
    with_keys,
)
from weightctl.families.config_values import (
    ACTIVATION,
    FLAG,
    SIZE,
    Choice,
    OrNone,
    Real,
    WholeNumber,
)
from weightctl.families.decoder import check_layers
from weightctl.families.decoder_keys import DECODER_KEYS, NO_BIASES
from weightctl.families.experts import stacked_gate_up
from weightctl.families.family import Family, ModelType
from weightctl.families.fusions import Fusion
from weightctl.families.layers import FLAGS, ONES, WORDS, LayerChoice, mark_windowed_layers
from weightctl.families.modules import Name, WeightAxes
from weightctl.families.multimodal import take_text
from weightctl.families.per_layer import (
    LAYER_INPUT_LINES,
    MODEL_INPUT_LINES,
    SHARING_KEYS,
    check_sharing,
    explain_unshared,
    layer_input_keys,
    share_keys,
    with_lines,
)
from weightctl.families.rope import PROPORTIONAL_KEYS, check_heads, make_proportional, rope_by_layer
from weightctl.families.rope_factors import PROPORTIONAL_LINES
from weightctl.families.sizes_by_type import LAYER_WIDTHS, SIZES_BY_TYPE, unify
from weightctl.families.usual_names import DECODER, adapt, line
from weightctl.text.untyped import is_list, is_object, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields, NamingConvention

_PERIOD, _WINDOW = 6, 512
_ROPE, _TIED, _TYPES = "rope_parameters", "tie_word_embeddings", "layer_types"
_BASE, _LOCAL_BASE = 1_000_000.0, 10_000.0
_USUAL_ROPE = {
    GLOBAL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": _BASE},
    LOCAL: {"rope_type": "default", "rope_theta": _LOCAL_BASE},
}
_GLOBAL_SIZES = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}
# Models that read images and sounds without encoders have no embeddings for layers.
_UNIFIED: Mapping[str, Any] = {
    "context": 262_144, "layer_input": 0, "layer_vocabulary": same("vocabulary"),
    "sees_ahead": "vision", "sliding_window": 1024,
}  # fmt: skip
_EXPERT_KEYS = ("num_experts", "top_k_experts", "moe_intermediate_size")
_OWN, _KEYS_WORD = "values", "keys"
# The family is not in transformers before version 5: no key needs another name.
_NOT_OLDER: Mapping[str, str] = dict.fromkeys(
    ("rope_theta", "partial_rotary_factor", "rope_scaling", "rope_local_base_freq"), ""
)
_COUNT = WholeNumber(0, 1024)


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model, with the sizes of layers with full attention by name."""
    is_multimodal = document.get("model_type") in {"gemma4", "gemma4_unified"}
    made = dict(take_text(document) if is_multimodal else document)
    if made.get("hidden_size_per_layer_input", 256) is None:
        made["hidden_size_per_layer_input"] = 0
    if is_list(made.get(_TYPES)) and made[_TYPES]:
        # transformers changes the last layer to full attention.
        made[_TYPES] = [*made[_TYPES][:-1], GLOBAL]
    if made.get("per_layer_config"):
        made |= {**_find_global_sizes(made), "per_layer_config": None}
    elif not made.get("attention_k_eq_v"):
        made["num_global_key_value_heads"] = None
    if not made.get("enable_moe_block"):
        made |= dict.fromkeys(_EXPERT_KEYS)
    if not made.get(_ROPE):
        made[_ROPE] = _USUAL_ROPE
    return {**made, **rope_by_layer(made)}


def _find_global_sizes(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that `per_layer_config` states for the layers with full attention.

    Raises `ValueError` if it states other ones for some of them, or any for other layers.
    """
    # transformers writes the numbers of layers with as many digits as the last one has.
    given = {
        number.lstrip("0") or "0": sizes
        for number, sizes in object_of(document, "per_layer_config").items()
    }
    types: Any = document.get(_TYPES)
    if not is_list(types):
        layers = document.get("num_hidden_layers", 30)
        types = WORDS.write(_mark_windows({"layers": SIZE.read(layers)}))
    numbers = [str(number) for number, word in enumerate(types) if word == GLOBAL]
    first: Any = given.get(numbers[0]) if numbers else None
    is_uniform = set(given) == set(numbers) and all(given[number] == first for number in numbers)
    if not is_uniform or not is_object(first) or not set(first) <= set(_GLOBAL_SIZES):
        raise ValueError(
            "`per_layer_config` must state the same `head_dim` and `num_key_value_heads` for all "
            "layers with full attention, and nothing else"
        )
    return {
        "global_head_dim": first.get("head_dim", document.get("head_dim", 256)),
        "num_global_key_value_heads": first.get("num_key_value_heads"),
    }


def _mark_windows(fields: Fields) -> tuple[bool, ...]:
    """Return transformers' default: all except every sixth and the last layer have a window."""
    usual = mark_windowed_layers(fields["layers"], _PERIOD)
    return (*usual[:-1], False)


def _takes_keys(fields: Fields) -> bool:
    """Return whether a layer without a window computes keys, and no values."""
    stored, windows, own = (fields[name] for name in
                            ("stored_values", "windowed_layers", "own_keys"))  # fmt: skip
    each = zip(stored, windows, own, strict=False)
    return any(own and not windowed and not has for has, windowed, own in each)


def _mark_key_values(fields: Fields) -> tuple[bool, ...]:
    return tuple(fields["takes_keys"] and not windowed for windowed in fields["windowed_layers"])


def _check(fields: Fields) -> Fields:
    check_layers(fields)
    made = dict(fields)
    if len(fields["kv_heads"]) != fields["layers"]:
        raise ValueError("the config does not state the type of attention of each layer")
    check_sharing(fields)
    for size, rotated in (("global_head_dim", "rope_dimensions"),
                          ("local_head_dim", "local_rope_dimensions")):  # fmt: skip
        if fields[rotated] != fields[size]:
            raise ValueError(f"`{rotated}` must be `{size}`, {fields[size]}")
        check_heads({**fields, "head_dim": fields[size], "rope_dimensions": fields[rotated]})
    for layered, found in (("layer_widths", "intermediate"), ("layer_kv_heads", "kv_heads")):
        given = fields.get(layered)
        if given is not None and given not in (fields[found], unify(fields[found])):
            raise ValueError(f"`{found}` has values that do not follow from the types of layers")
    if fields["layer_input"] and fields["layer_vocabulary"] != fields["vocabulary"]:
        raise ValueError(
            f"there are {fields['layer_vocabulary']} embeddings for layers and "
            f"{fields['vocabulary']} tokens; the numbers must be equal"
        )
    if fields["experts_used"] > fields["experts"]:
        raise ValueError(
            f"{fields['experts_used']} experts per token are not possible with "
            f"{fields['experts']} experts"
        )
    made["rope_scaling"] = make_proportional(fields)
    return made


_DECODER_KEYS = with_keys(
    DECODER_KEYS,
    Key(field="norm_epsilon", kind=Real(0, 1, is_closed=True), default=1e-6,
        gguf="{arch}.attention.layer_norm_rms_epsilon", hugging_face="rms_norm_eps"),
    Key(field="activation", kind=ACTIVATION.preferring("gelu_pytorch_tanh"), default="gelu_tanh",
        gguf_default="gelu_tanh", hugging_face="hidden_activation"),
    Key(field="tied", kind=FLAG, default=True, hugging_face=_TIED,
        seen=IsAbsent("output.weight")),
    without=("kv_heads", "head_dim", "value_dim", "intermediate", "experts", "rotated_share",
             *(key.field for key in DECODER_KEYS if key.field.startswith(("rope_", "scaling.")))),
)  # fmt: skip
_WINDOWS = (
    Key(field="sliding_window", kind=SIZE, default=_WINDOW,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
    Key(field="windowed_layers", kind=FLAGS, gguf="{arch}.attention.sliding_window_pattern"),
    Key(field="windowed_layers", kind=WORDS, default=_mark_windows, hugging_face=_TYPES,
        written=True),
)  # fmt: skip
_VALUES = (
    Key(field="stored_values", kind=LayerChoice(_OWN, _KEYS_WORD),
        seen=LayersWith("blk.{}.attn_v.weight", "blk.{}.attn_norm.weight", _OWN, _KEYS_WORD,
                        "blk.{}.attn_qkv.weight"),
        gguf_default=lambda _: ()),
    Key(field="takes_keys", kind=FLAG, default=False, gguf_default=_takes_keys,
        hugging_face="attention_k_eq_v", is_in_weights=True),
    Key(field="values_from_keys", kind=ONES, default=_mark_key_values,
        gguf_default=_mark_key_values),
)  # fmt: skip
_EXPERTS = (
    Key(field="experts", kind=_COUNT, default=lambda _: 0, gguf_default=0,
        gguf="{arch}.expert_count", hugging_face="num_experts"),
    Key(field="experts_used", kind=_COUNT, default=lambda _: 0, gguf_default=0,
        gguf="{arch}.expert_used_count", hugging_face="top_k_experts"),
    Key(field="expert_intermediate", kind=WholeNumber(0, SIZE.most), default=lambda _: 0,
        gguf_default=0, gguf="{arch}.expert_feed_forward_length",
        hugging_face="moe_intermediate_size"),
    Key(field="has_experts", kind=FLAG, default=lambda fields: fields["experts"] > 0,
        gguf_default=lambda fields: fields["experts"] > 0, hugging_face="enable_moe_block",
        written=True),
)  # fmt: skip
_ROPE_KEYS = (
    Key(field="rope_base", kind=Real(1e-6, 1e12, is_closed=True), default=_BASE,
        gguf_default=10000.0, gguf="{arch}.rope.freq_base",
        hugging_face=f"{_ROPE}.{GLOBAL}.rope_theta"),
    Key(field="local_rope_base", kind=Real(1e-6, 1e12, is_closed=True), default=_LOCAL_BASE,
        gguf_default=same("rope_base"), gguf="{arch}.rope.freq_base_swa",
        hugging_face=f"{_ROPE}.{LOCAL}.rope_theta"),
    Key(field="rope_dimensions", kind=SIZE, default=same("global_head_dim"),
        gguf_default=same("global_head_dim"), gguf="{arch}.rope.dimension_count"),
    Key(field="local_rope_dimensions", kind=SIZE, default=same("local_head_dim"),
        gguf_default=same("rope_dimensions"), gguf="{arch}.rope.dimension_count_swa"),
    *PROPORTIONAL_KEYS,
)  # fmt: skip

_IF_EXPERTS = ("experts",)
_EXPERT, _IN_MEMORY = "layers.{}.mlp.experts.{expert}.", "model.layers.{}.experts."
_NO_END: Mapping[NamingConvention, str] = {"hugging_face": ""}
_AS_SCALE: Mapping[NamingConvention, str] = {"gguf": ".scale", "hugging_face": ""}


def _norm(module: str, gguf: str, name: str, **more: Any) -> Name:
    return Name(module=f"layers.{{}}.{module}", gguf=f"blk.{{}}.{gguf}",
                hugging_face=f"model.layers.{{}}.{name}", axes=WeightAxes(("hidden",)),
                is_float32=True, when=_IF_EXPERTS, **more)  # fmt: skip


# In a model with experts, they and an MLP read the same sum, each through a norm of its own.
_EXPERT_LINES = (
    *(replace(line(f"mlp.{part}"), module=f"layers.{{}}.dense.{part}", when=_IF_EXPERTS)
      for part in ("gate", "up", "down")),
    _norm("post_dense_norm", "post_ffw_norm_1", "post_feedforward_layernorm_1"),
    _norm("router_norm", "ffn_gate_inp", "router.scale", ends=_AS_SCALE),
    _norm("expert_norm", "pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
    _norm("post_expert_norm", "post_ffw_norm_2", "post_feedforward_layernorm_2"),
    line("mlp.router", hugging_face="model.layers.{}.router.proj", when=_IF_EXPERTS),
    Name(module="layers.{}.mlp.scales", gguf="blk.{}.ffn_down_exps",
         hugging_face="model.layers.{}.router.per_expert_scale", axes=WeightAxes(("experts",)),
         is_float32=True, when=_IF_EXPERTS, ends=_AS_SCALE),
    *(line(f"mlp.experts.{{expert}}.{part}", hugging_face=None, when=_IF_EXPERTS)
      for part in ("gate", "up", "down")),
)  # fmt: skip

_LINES = share_keys(
    adapt(
        DECODER,
        {
            **PROPORTIONAL_LINES,
            "attention.v": {"unless": "values_from_keys"},
            "attention.q_norm": {},
            "attention.k_norm": {},
            "post_attention_norm": {},
            "mlp_norm": "pre_feedforward_layernorm",
            "mlp.gate": {"unless": "experts"},
            "mlp.up": {"unless": "experts"},
            "mlp.down": {"unless": "experts"},
            "post_mlp_norm": {},
        },
    )
)

_SCALE = Name(
    module="layers.{}.scale",
    gguf="blk.{}.layer_output_scale",
    hugging_face="model.layers.{}.layer_scalar",
    axes=WeightAxes(("single",)),
    is_float32=True,
    when=("layer_scale",),
    ends=_NO_END,
)


def _find_unlike(fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model, None if it does."""
    first = fields["layers"] - fields["shared_layers"]
    return explain_unshared(fields, first) if fields["shared_layers"] else None


FAMILY = Family(
    name="gemma4",
    model_types={
        kind: ModelType(
            class_name=name,
            defaults={
                "vocabulary": 262_144,
                "context": 131_072,
                "hidden": 2304,
                "layers": 30,
                "heads": 8,
                **more,
            },
        )
        for kind, name, more in (
            ("gemma4_text", "Gemma4ForCausalLM", {}),
            ("gemma4", "Gemma4ForConditionalGeneration", {}),
            ("gemma4_unified_text", "Gemma4UnifiedForCausalLM", _UNIFIED),
            ("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", _UNIFIED),
        )
    },
    config="weightctl.families.per_layer:PerLayerConfig",
    module="weightctl.nn.models.decoder:PerLayerDecoder",
    blocks={
        "post_norms": True,
        "embedding_by_root": True,
        "qk_norm": "head",
        "attention_scale": 1.0,
        "values_normed": True,
        "expert_scales": True,
    },
    keeps_window=True,
    unloaded=_find_unlike,
    other_prefixes=("model.language_model.", "language_model.model.", "language_model."),
    names=with_lines(_LINES, MODEL_INPUT_LINES, (*_EXPERT_LINES, *LAYER_INPUT_LINES, _SCALE)),
    keys=(
        *_DECODER_KEYS,
        *_WINDOWS,
        *SHARING_KEYS,
        *SIZES_BY_TYPE,
        *LAYER_WIDTHS,
        *_VALUES,
        NO_BIASES,
        # Vision tokens see later ones in layers with a window; the tokens of texts never do.
        Key(field="sees_ahead", kind=Choice({"vision": "vision"}), default=None,
            hugging_face="use_bidirectional_attention"),
        Key(field="softcap", kind=OrNone(Real(0, 1e9), 0.0), default=None, gguf_default=30.0,
            gguf="{arch}.final_logit_softcapping", hugging_face="final_logit_softcapping",
            written=True),
        Key(field="layer_scale", kind=FLAG, default=True,
            seen=Present("blk.0.layer_output_scale.weight")),
        *layer_input_keys(262_144),
        *_EXPERTS,
        *_ROPE_KEYS,
    ),
    fusions=(
        stacked_gate_up(),
        Fusion(convention="hugging_face", name=_IN_MEMORY + "gate_up_proj", of_experts=True,
               parts=(_EXPERT + "gate", _EXPERT + "up")),
        Fusion(convention="hugging_face", name=_IN_MEMORY + "down_proj", of_experts=True,
               parts=(_EXPERT + "down",)),
    ),
    # The encoders of images and sounds, the projections to token vectors, and what some checkpoints
    # have in layers that share keys and values.
    beside=(
        r"(vision_tower|audio_tower|embed_vision|embed_audio)\..+",
        r"(layers|blk)\.\d+\.(self_attn\.[kv]_(proj|norm)|attn_[kv](_norm)?)\.weight",
    ),
    older=_NOT_OLDER,
    standard=_standard,
    checked=_check,
)  # fmt: skip

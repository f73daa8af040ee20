"""Gemma 3n, and the text model of its multimodal models.

Names and keys: transformers' `modeling_gemma3n.py` and `configuration_gemma3n.py`; llama.cpp's
`models/gemma3n.cpp`, `llama-hparams.h` and `conversion/gemma.py`.

llama.cpp has no keys for many of the sizes. It computes keys and values in the first 20 layers
only, whatever the metadata state, and loads tensors for them in the others, too: GGUF files have
copies of those of the layers that are shared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.config_keys import LOCAL, IsAbsent, Key, with_keys
from weightctl.families.config_values import ACTIVATION, FLAG, HEADS, SIZE, OrNone, Real
from weightctl.families.decoder_keys import DECODER_KEYS, NO_BIASES, check_decoder
from weightctl.families.family import Family, ModelType
from weightctl.families.layers import FLAGS, WORDS, LayerValues, every_but
from weightctl.families.modules import at_layer
from weightctl.families.multimodal import take_text
from weightctl.families.per_layer import (
    LAYER_INPUT_LINES,
    SHARING_KEYS,
    check_sharing,
    explain_unshared,
    layer_input_keys,
    share_keys,
    with_lines,
)
from weightctl.families.rope import GEMMA_ROPE, keys_of_global_layers, rope_by_layer
from weightctl.families.sizes_by_type import unify
from weightctl.families.streams import (
    STREAM_KEYS,
    STREAM_LAYER_LINES,
    STREAM_MODEL_LINES,
    STREAM_OUTPUT_LINES,
    find_usual_sparsity,
)
from weightctl.families.usual_names import DECODER, adapt
from weightctl.text.untyped import is_list, is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Fields
    from weightctl.families.streams import StreamsConfig

_PERIOD, _WINDOW, _SOFTCAP, _OWN_LAYERS = 5, 512, 30.0, 20
_ROPE, _TIED, _TYPES = "rope_parameters", "tie_word_embeddings", "layer_types"
_BASE, _LOCAL_BASE = 1_000_000.0, 10_000.0
_WIDTHS = "intermediate_size"
# What llama.cpp has one value of, which the metadata do not state.
_FIXED = {"laurel_rank": 64, "layer_input": 256, "streams": 4, "active_stream": 0,
          "softcap": _SOFTCAP}  # fmt: skip


def _standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config of the text model, with one width if the layers have the same."""
    text = take_text(document) if document.get("model_type") == "gemma3n" else document
    given = {name: value for name, value in text.items() if value is not None}
    # A cap of None is not the default.
    given |= {name: value for name, value in text.items() if name == "final_logit_softcapping"}
    if is_list(given.get(_WIDTHS)) and given[_WIDTHS]:
        given[_WIDTHS] = unify(given[_WIDTHS])
    return {**given, **rope_by_layer(given)}


_mark_windows = every_but(_PERIOD)


def _count_shared(fields: Fields) -> int:
    """Return in how many layers llama.cpp uses the keys and values of others."""
    return max(0, int(fields["layers"]) - _OWN_LAYERS)


def _check(fields: Fields) -> Fields:
    made = check_decoder(fields)
    check_sharing(fields)
    layers, widths = fields["layers"], fields["intermediate"]
    for name, values in (("intermediate", widths), ("sparsity", fields["sparsity"])):
        if is_sequence(values) and len(values) != layers:
            raise ValueError(f"`{name}` has {len(values)} values for {layers} layers")
    if fields["rope_dimensions"] != fields["head_dim"]:
        raise ValueError(f"`rope_dimensions` must be `head_dim`, {fields['head_dim']}")
    if not fields["layer_input"]:
        raise ValueError("the layers must have embeddings of their own")
    if fields["active_stream"] >= fields["streams"]:
        raise ValueError(
            f"stream {fields['active_stream']} is not one of {fields['streams']} streams"
        )
    if fields["scaling.kind"] == "yarn" and any(fields["windowed_layers"]):
        # llama.cpp would partly apply the scaling in layers with a window, too.
        raise ValueError("`yarn` scaling in a model with sliding window layers is not supported")
    return made


def _find_unlike(fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model, None if it does."""
    for name, value in _FIXED.items():
        if fields[name] != value:
            return f"its `{name}` is {fields[name]}, and llama.cpp has only {value}"
    if is_sequence(fields["intermediate"]):
        return "its layers have MLPs of different widths"
    return explain_unshared(fields, _OWN_LAYERS) if _count_shared(fields) else None


def _find_difference(fields: Fields) -> str:
    """Return what llama.cpp computes differently from transformers."""
    if fields["sparsity"] != find_usual_sparsity(fields):
        return "it has sparse activations, with a sparsity of 0.95, in the first 10 layers only"
    shared = _count_shared(fields)
    if fields["shared_layers"] != shared:
        return f"{shared} layers share keys and values in place of {fields['shared_layers']}"
    return "it divides the variance for sparse activations by one less than their number"


def _list_copies(config: StreamsConfig) -> dict[str, str]:
    """Return the tensors of keys and values in layers that use those of others."""
    return {
        f"blk.{layer}.{part}.weight": f"blk.{config.keys_of(layer)}.{part}.weight"
        for layer in range(config.layers)
        if not at_layer(config, "own_keys", layer)
        for part in ("attn_k", "attn_v", "attn_k_norm")
    }


_COUNT_SHARED, _OWN_KEYS = SHARING_KEYS
_KEYS = (
    *with_keys(
        DECODER_KEYS,
        Key(field="norm_epsilon", kind=Real(0, 1, is_closed=True), default=1e-6,
            gguf="{arch}.attention.layer_norm_rms_epsilon", hugging_face="rms_norm_eps"),
        Key(field="kv_heads", kind=HEADS, default=2, gguf="{arch}.attention.head_count_kv",
            hugging_face="num_key_value_heads", written=True),
        Key(field="head_dim", kind=SIZE, default=256, gguf="{arch}.attention.key_length",
            hugging_face="head_dim"),
        Key(field="intermediate", kind=LayerValues(SIZE), default=16384,
            gguf="{arch}.feed_forward_length", hugging_face=_WIDTHS),
        Key(field="activation", kind=ACTIVATION.preferring("gelu_pytorch_tanh"),
            default="gelu_tanh", gguf_default="gelu_tanh", hugging_face="hidden_activation"),
        Key(field="tied", kind=FLAG, default=True, hugging_face=_TIED,
            seen=IsAbsent("output.weight")),
        without=tuple(key.field for key in DECODER_KEYS
                      if key.field.startswith(("rope_", "scaling.", "rotated_"))),
    ),
    Key(field="sliding_window", kind=SIZE, default=_WINDOW,
        gguf="{arch}.attention.sliding_window", hugging_face="sliding_window"),
    Key(field="windowed_layers", kind=FLAGS, gguf_default=_mark_windows,
        gguf="{arch}.attention.sliding_window_pattern"),
    Key(field="windowed_layers", kind=WORDS, default=_mark_windows, hugging_face=_TYPES,
        written=True),
    replace(_COUNT_SHARED, default=15, gguf_default=_count_shared),
    _OWN_KEYS,
    NO_BIASES,
    Key(field="softcap", kind=OrNone(Real(0, 1e9), 0.0), default=_SOFTCAP, gguf_default=_SOFTCAP,
        gguf="{arch}.final_logit_softcapping", hugging_face="final_logit_softcapping",
        written=True),
    *(replace(key, is_in_weights=key.field == "layer_vocabulary")
      for key in layer_input_keys(262_144)),
    *STREAM_KEYS,
    *keys_of_global_layers(GEMMA_ROPE, _BASE),
    Key(field="local_rope_base", kind=Real(1e-6, 1e12, is_closed=True), default=_LOCAL_BASE,
        gguf_default=_LOCAL_BASE, gguf="{arch}.rope.freq_base_swa",
        hugging_face=f"{_ROPE}.{LOCAL}.rope_theta"),
)  # fmt: skip

_LINES = share_keys(
    adapt(
        DECODER,
        {
            "attention.q_norm": {},
            "attention.k_norm": {},
            "post_attention_norm": {},
            "mlp_norm": "pre_feedforward_layernorm",
            "post_mlp_norm": {},
        },
    )
)

_NOTES = """
llama.cpp divides the variance of `gemma3n`'s sparse activations by one less than their number, and
transformers by their number, so results differ a little. Tokens without embeddings for layers have
those of token 0 in GGUF, as in transformers; llama.cpp's converter writes zeros, which `verify`
reports. GGUF has no keys for many sizes of `gemma3n`: models with other sizes than llama.cpp
assumes are run and sharded, but not converted to GGUF.
"""

FAMILY = Family(
    name="gemma3n",
    notes=_NOTES,
    model_types={
        kind: ModelType(
            class_name=name,
            defaults={
                "vocabulary": 262_400,
                "context": 32_768,
                "hidden": 2048,
                "layers": 35,
                "heads": 8,
            },
        )
        for kind, name in (
            ("gemma3n_text", "Gemma3nForCausalLM"),
            ("gemma3n", "Gemma3nForConditionalGeneration"),
        )
    },
    config="weightctl.families.streams:StreamsConfig",
    module="weightctl.nn.models.stream_decoder:StreamDecoder",
    blocks={
        "post_norms": True,
        "embedding_by_root": True,
        "qk_norm": "head",
        "attention_scale": 1.0,
        "values_normed": True,
    },
    keeps_window=True,
    unloaded=_find_unlike,
    differs=_find_difference,
    copied=_list_copies,
    other_prefixes=("model.language_model.", "language_model.model.", "language_model."),
    names=with_lines(
        _LINES,
        STREAM_MODEL_LINES,
        (*STREAM_LAYER_LINES, *LAYER_INPUT_LINES, *STREAM_OUTPUT_LINES),
    ),
    keys=_KEYS,
    # The encoders of images and sounds, the projections to token vectors, and the keys and values
    # of layers that use those of others.
    beside=(
        r"(vision_tower|audio_tower|embed_vision|embed_audio)\..+",
        r"(layers|blk)\.\d+\.(self_attn\.[kv]_(proj|norm)|attn_[kv](_norm)?)\.weight",
    ),
    standard=_standard,
    checked=_check,
)

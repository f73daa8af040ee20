"""The config keys of RoPE in both naming conventions.

Keys: transformers' `modeling_rope_utils.py`; llama.cpp's `llama-model.cpp` and
`convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weightctl.families.keys import Key, Present, PresentAs, same
from weightctl.families.kinds import FACTORS, FLAG, SIZE, Choice, OrNone, Real
from weightctl.families.rotations import LEAST, find_rotary_size
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_ROPE, _SCALED = "rope_parameters.", "{arch}.rope.scaling."
_ORIGINAL = "original_max_position_embeddings"
_LARGE = 1e12
_NOT_SCALED = ("rope_theta", "partial_rotary_factor")
# A value of `Family.older`: the key is read inside `rope_scaling`, not beside it as in Phi-3.
IN_SCALING = "rope_scaling"
_POSITIVE = Real(LEAST, _LARGE, is_closed=True)


# For families in which a GGUF tensor contains the factors of llama3 scaling.
ROPE_FACTORS = Key(
    field="has_rope_factors", kind=FLAG, default=False, seen=Present("rope_freqs.weight")
)

# For families in which GGUF tensors contain the factors of longrope.
LONG_ROPE_FACTORS = Key(
    field="has_rope_factors", kind=FLAG, default=False, seen=Present("rope_factors_long.weight")
)

# `rotations.scaling` makes a `RopeScaling` from the fields that begin with `scaling.`.
ROPE_KEYS = (
    Key(field="rope_base", kind=_POSITIVE, default=10000.0, gguf_default=10000.0,
        gguf="{arch}.rope.freq_base", hugging_face=_ROPE + "rope_theta"),
    # Transformers' `modeling_llama.py` rotates whole heads and ignores this key.
    Key(field="rotated_share", kind=Real(0, 1), default=lambda _: 1.0,
        hugging_face=_ROPE + "partial_rotary_factor"),
    Key(field="rope_dimensions", kind=SIZE, default=same("head_dim"),
        gguf_default=same("head_dim"),
        gguf="{arch}.rope.dimension_count"),
    Key(field="scaling.kind", default=None,
        kind=Choice({"default": None, "linear": "linear", "llama3": "llama3", "yarn": "yarn"}),
        hugging_face=_ROPE + "rope_type"),
    # A factor without a type means linear scaling, which once had a key of its own.
    Key(field="scaling.kind", gguf_default="linear",
        kind=Choice({"none": None, "linear": "linear", "yarn": "yarn"}), gguf=_SCALED + "type"),
    Key(field="scaling.linear", kind=Real(0, _LARGE, is_closed=True), gguf_default=0.0,
        gguf="{arch}.rope.scale_linear", written=False),
    Key(field="scaling.factor", kind=Real(0, _LARGE, is_closed=True), default=None,
        gguf_default=same("scaling.linear"), gguf=_SCALED + "factor",
        hugging_face=_ROPE + "factor"),
    Key(field="scaling.original_context", kind=SIZE, default=same("context"),
        gguf_default=same("context"), gguf=_SCALED + "original_context_length",
        hugging_face=_ROPE + _ORIGINAL),
    Key(field="scaling.low_frequency_factor", kind=_POSITIVE, default=1.0,
        hugging_face=_ROPE + "low_freq_factor"),
    Key(field="scaling.high_frequency_factor", kind=_POSITIVE, default=4.0,
        hugging_face=_ROPE + "high_freq_factor"),
    Key(field="scaling.beta_fast", kind=_POSITIVE, default=32.0, gguf_default=32.0,
        gguf=_SCALED + "yarn_beta_fast", hugging_face=_ROPE + "beta_fast"),
    Key(field="scaling.beta_slow", kind=_POSITIVE, default=1.0, gguf_default=1.0,
        gguf=_SCALED + "yarn_beta_slow", hugging_face=_ROPE + "beta_slow"),
    Key(field="scaling.truncate", kind=FLAG, default=True, hugging_face=_ROPE + "truncate"),
    Key(field="scaling.attention_factor", kind=_POSITIVE, default=None,
        hugging_face=_ROPE + "attention_factor"),
    Key(field="scaling.mscale", kind=Real(0, _LARGE, is_closed=True), default=None,
        hugging_face=_ROPE + "mscale"),
    Key(field="scaling.mscale_all_dim", kind=Real(0, _LARGE, is_closed=True), default=None,
        hugging_face=_ROPE + "mscale_all_dim"),
    # The ratio to the factor that YaRN's paper recommends; Hugging Face's `attention_factor` is the
    # product of both.
    Key(field="scaling.attention_share", kind=_POSITIVE, gguf_default=1.0,
        gguf=_SCALED + "attn_factor"),
)  # fmt: skip

# GGUF cannot express `llama3` scaling of a Gemma: llama.cpp does not read the tensor for it there.
GEMMA_ROPE = (
    Key(field="scaling.kind", default=None,
        kind=Choice({"default": None, "linear": "linear", "yarn": "yarn"}),
        hugging_face="rope_parameters.rope_type"),
    *(key for key in ROPE_KEYS if key.field == "scaling.kind" and key.gguf),
    *(key for key in ROPE_KEYS if key.field != "scaling.kind"),
)  # fmt: skip

# The keys that replace some of `ROPE_KEYS` in families with longrope.
_OF_LONGROPE = (
    Key(field="rope_dimensions", kind=SIZE, default=find_rotary_size, gguf_default=same("head_dim"),
        gguf="{arch}.rope.dimension_count"),
    Key(field="scaling.kind", default=None, hugging_face=_ROPE + "rope_type",
        kind=Choice({"default": None, "longrope": "longrope", "su": "longrope"})),
    Key(field="scaling.kind", gguf_default="linear", gguf=_SCALED + "type",
        kind=Choice({"none": None, "linear": "linear", "longrope": "longrope"}),
        seen=PresentAs("rope_factors_long.weight", "longrope")),
    # The default is that of `Phi3Config`.
    Key(field="scaling.original_context", kind=SIZE, default=4096, gguf_default=same("context"),
        gguf=_SCALED + "original_context_length", hugging_face=_ROPE + _ORIGINAL),
)  # fmt: skip

# RoPE keys for longrope, which scales each pair by a factor of its own.
LONGROPE_KEYS = (
    *(next((line for line in _OF_LONGROPE
            if (line.field, line.gguf) == (key.field, key.gguf)), key) for key in ROPE_KEYS),
    Key(field="scaling.short_factors", kind=FACTORS, default=None,
        hugging_face=_ROPE + "short_factor"),
    Key(field="scaling.long_factors", kind=FACTORS, default=None,
        hugging_face=_ROPE + "long_factor"),
)  # fmt: skip

# In llama.cpp, this is `mscale_all_dim` of cosines and sines, and `mscale` is 1.
HEAD_MULTIPLIER = Key(
    field="scaling.head_multiplier",
    kind=OrNone(Real(0, 1e6, is_closed=True), 0.0),
    default=None,
    gguf_default=None,
    gguf="{arch}.rope.scaling.yarn_log_multiplier",
)
# The temperature of attention. transformers reads the second key even if the first one is 0.
TEMPERATURE_KEYS = (
    Key(field="temperature_scale", kind=Real(0, 1e6, is_closed=True), default=0.0,
        gguf_default=0.0, gguf="{arch}.attention.temperature_scale",
        hugging_face=_ROPE + "llama_4_scaling_beta"),
    Key(field="temperature_length", kind=SIZE, default=same("context"),
        gguf_default=same("scaling.original_context"), hugging_face=_ROPE + _ORIGINAL,
        written=True),
)  # fmt: skip

# For families whose config.json has a factor of cosines and sines for short contexts and one for
# long contexts, which must be equal.
LONG_AMPLITUDE = (
    Key(field="scaling.attention_factor", kind=_POSITIVE, default=None,
        hugging_face=_ROPE + "short_mscale"),
    Key(field="scaling.long_amplitude", kind=_POSITIVE, default=None, gguf_default=None,
        hugging_face=_ROPE + "long_mscale"),
)  # fmt: skip


def standard_of(older: Mapping[str, str]) -> Callable[[Mapping[str, Any]], Mapping[str, Any]]:
    """Return the `standard` of a family whose older config.json files have other names for keys.

    `older` maps the current names to the older ones.
    """
    return lambda document: standard(with_older_names(document, older))


def with_older_names(document: Mapping[str, Any], older: Mapping[str, str]) -> Mapping[str, Any]:
    """Return config.json with the keys that have older names, by their current names."""
    called = {new: document[old] for new, old in older.items() if old in document}
    return {**called, **document}


def with_rope_defaults(
    document: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return config.json with the RoPE keys that its class assumes if it states no object of them.

    A `rope_theta` of its own stays.
    """
    if not defaults or document.get("rope_scaling") or document.get("rope_parameters"):
        return document
    own = {name: document[name] for name in ("rope_theta",) if document.get(name) is not None}
    return {**document, "rope_parameters": {**defaults, **own}}


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with all RoPE keys in `rope_parameters`.

    Older versions of transformers wrote them in `rope_scaling` and beside it. Raises `ValueError`
    if an object is invalid.
    """
    key = "rope_scaling" if document.get("rope_scaling") else "rope_parameters"
    given: Any = document.get(key) or {}
    if not is_object(given):
        raise ValueError(f"`{key}` is not a JSON object")
    for name, value in given.items():
        if is_object(value):
            raise ValueError(f"separate RoPE settings for `{name}` are not supported")
    rope = {name: value for name, value in given.items() if value is not None}
    if "type" in rope:
        rope.setdefault("rope_type", rope["type"])
    if rope.get("rope_type") == "dynamic" and "alpha" not in rope:
        # Dynamic scaling only applies to texts that are longer than the context.
        rope = {name: rope[name] for name in _NOT_SCALED if name in rope}
    for name in _NOT_SCALED:
        if document.get(name) is not None:
            rope.setdefault(name, document[name])
    # If this key is in both places, transformers uses the outer one.
    if document.get(_ORIGINAL) is not None:
        rope[_ORIGINAL] = document[_ORIGINAL]
    return {**document, "rope_parameters": rope}


def for_older(
    document: Mapping[str, Any], called: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return config.json with the RoPE keys that transformers before version 5 reads.

    `called` maps keys to their names in this family: an empty name leaves the key out, and
    `IN_SCALING` puts it into `rope_scaling`. Layers with a sliding window that have their own RoPE,
    as in Gemma 3, get their own key.
    """
    given: Any = document.get("rope_parameters")
    if not is_object(given):
        return dict(document)
    near: Any = given.get("sliding_attention")
    rope: Any = {"rope_type": "default"} | (given["full_attention"] if near else given)
    written: Any = rope
    if near:
        written = {"full_attention": rope, "sliding_attention": {"rope_type": "default"} | near}
    older = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    scaled = {name: value for name, value in rope.items() if name not in older}
    kind = scaled["rope_type"]
    names = called or {}
    is_inside = names.get(_ORIGINAL) == IN_SCALING
    if kind == "longrope" and not is_inside:
        # `Phi3Config` only allowed these three keys.
        older[_ORIGINAL] = scaled.pop(_ORIGINAL)
        scaled = {"type": scaled.pop("rope_type")} | scaled
    is_stated = kind != "longrope" or is_inside or "attention_factor" not in scaled
    if kind != "default" and is_stated:
        older["rope_scaling"] = scaled
    if near:
        older["rope_local_base_freq"] = near["rope_theta"]
    older = {names.get(name, name): value for name, value in older.items()}
    older.pop("", None)
    return {**document, "rope_parameters": written, **older}

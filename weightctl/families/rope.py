"""RoPE in both naming conventions: the keys of its settings, their older forms, and its scaling.

`families/rope_factors.py` computes with the settings. Keys: transformers' `modeling_rope_utils.py`;
llama.cpp's `llama-model.cpp` and `convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, isclose, nextafter
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.config_keys import GLOBAL, LOCAL, Key, Present, PresentAs, same, with_keys
from weightctl.families.config_values import (
    FACTORS,
    FLAG,
    SIZE,
    Choice,
    Exactly,
    OrNone,
    Real,
    WholeNumber,
    show_value,
)
from weightctl.families.configs import shortest
from weightctl.text.untyped import is_object, is_sequence, object_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.config_keys import Default, Fields, NamingConvention
    from weightctl.families.config_values import Kind
    from weightctl.families.rope_factors import RopeScaling

_PARAMETERS, _SCALING = "rope_parameters", "rope_scaling"
_ORIGINAL = "original_max_position_embeddings"
_BASE_KEYS = ("rope_theta", "partial_rotary_factor")

# Smaller values are not meaningful in float32.
_LEAST = 1e-6
# The relative error of float32, in which GGUF stores values.
_ROUNDING = 1e-6
_POSITIVE = Real(_LEAST, 1e12, is_closed=True)
_FACTOR = Real(0, 1e12, is_closed=True)
_MULTIPLIER = Real(0, 1e6, is_closed=True)


def _key(
    field: str, kind: Kind, usual: Default, hugging_face: str = "", gguf: str = "", **more: Any
) -> Key:
    """Return a key with the default `usual` in the conventions in which it has a name."""
    given: dict[str, Any] = {}
    if hugging_face:
        given |= {"default": usual, "hugging_face": f"{_PARAMETERS}.{hugging_face}"}
    if gguf:
        given |= {"gguf_default": usual, "gguf": f"{{arch}}.{gguf}"}
    return Key(field=field, kind=kind, **given | more)


def _types(none: str, *types: str) -> Choice:
    """Return the kind of the type of scaling: one of `types`, or the word for no scaling."""
    return Choice({none: None} | {each: each for each in types})


def find_rotary_size(fields: Fields) -> int:
    """Return the rotary dimension of a head, computed from the rotated share of its elements."""
    return int(fields["head_dim"] * fields["rotated_share"])


_DIMENSIONS = _key("rope_dimensions", SIZE, same("head_dim"), gguf="rope.dimension_count",
                   default=same("head_dim"))  # fmt: skip
# A factor without a type means linear scaling, which once had a key of its own.
_TYPE_IN_GGUF = _key("scaling.kind", _types("none", "linear", "yarn"), "linear",
                     gguf="rope.scaling.type")  # fmt: skip
# `scaling` makes a `RopeScaling` from the fields that begin with `scaling.`.
ROPE_KEYS = (
    _key("rope_base", _POSITIVE, 10000.0, "rope_theta", "rope.freq_base"),
    # Transformers' `modeling_llama.py` rotates whole heads and ignores this key.
    _key("rotated_share", Real(0, 1), lambda _: 1.0, "partial_rotary_factor"),
    _DIMENSIONS,
    _key("scaling.kind", _types("default", "linear", "llama3", "yarn"), None, "rope_type"),
    _TYPE_IN_GGUF,
    _key("scaling.linear", _FACTOR, 0.0, gguf="rope.scale_linear", written=False),
    _key("scaling.factor", _FACTOR, None, "factor", "rope.scaling.factor",
         gguf_default=same("scaling.linear")),
    _key("scaling.original_context", SIZE, same("context"), _ORIGINAL,
         "rope.scaling.original_context_length"),
    _key("scaling.low_frequency_factor", _POSITIVE, 1.0, "low_freq_factor"),
    _key("scaling.high_frequency_factor", _POSITIVE, 4.0, "high_freq_factor"),
    _key("scaling.beta_fast", _POSITIVE, 32.0, "beta_fast", "rope.scaling.yarn_beta_fast"),
    _key("scaling.beta_slow", _POSITIVE, 1.0, "beta_slow", "rope.scaling.yarn_beta_slow"),
    _key("scaling.truncate", FLAG, True, "truncate"),
    _key("scaling.attention_factor", _POSITIVE, None, "attention_factor"),
    _key("scaling.mscale", _FACTOR, None, "mscale"),
    _key("scaling.mscale_all_dim", _FACTOR, None, "mscale_all_dim"),
    # The ratio to the factor that YaRN's paper recommends; Hugging Face's `attention_factor` is the
    # product of both.
    _key("scaling.attention_share", _POSITIVE, 1.0, gguf="rope.scaling.attn_factor"),
)  # fmt: skip

# For families in which only a part of each head is rotated.
PARTIAL_ROPE = replace(_DIMENSIONS, default=find_rotary_size)

# For families in which GGUF tensors contain the factors of llama3 scaling, or of longrope.
ROPE_FACTORS = Key(
    field="has_rope_factors", kind=FLAG, default=False, seen=Present("rope_freqs.weight")
)
LONG_ROPE_FACTORS = replace(ROPE_FACTORS, seen=Present("rope_factors_long.weight"))

# For families in which llama.cpp reads no tensor with the factors of `llama3` scaling.
TYPES_WITHOUT_LLAMA3 = (
    _key("scaling.kind", _types("default", "linear", "yarn"), None, "rope_type"),
    _TYPE_IN_GGUF,
)
GEMMA_ROPE = (
    *TYPES_WITHOUT_LLAMA3,
    *with_keys(ROPE_KEYS, without=("scaling.kind",)),
)

# RoPE keys for longrope, which scales each pair by a factor of its own.
LONGROPE_KEYS = with_keys(
    ROPE_KEYS,
    PARTIAL_ROPE,
    _key("scaling.kind", Choice({"default": None, "longrope": "longrope", "su": "longrope"}), None,
         "rope_type"),
    replace(_TYPE_IN_GGUF, kind=_types("none", "linear", "longrope"),
            seen=PresentAs("rope_factors_long.weight", "longrope")),
    # The default is that of `Phi3Config`.
    _key("scaling.original_context", SIZE, 4096, _ORIGINAL, "rope.scaling.original_context_length",
         gguf_default=same("context")),
    _key("scaling.short_factors", FACTORS, None, "short_factor"),
    _key("scaling.long_factors", FACTORS, None, "long_factor"),
)  # fmt: skip

# In llama.cpp, this is `mscale_all_dim` of cosines and sines, and `mscale` is 1.
HEAD_MULTIPLIER = _key("scaling.head_multiplier", OrNone(_MULTIPLIER, 0.0), None,
                       gguf="rope.scaling.yarn_log_multiplier", default=None)  # fmt: skip
# The temperature of attention. transformers reads the second key even if the first one is 0.
TEMPERATURE_KEYS = (
    _key("temperature_scale", _MULTIPLIER, 0.0, "llama_4_scaling_beta",
         "attention.temperature_scale"),
    _key("temperature_length", SIZE, same("context"), _ORIGINAL,
         gguf_default=same("scaling.original_context"), written=True),
)  # fmt: skip

# For families whose config.json has a factor of cosines and sines for short contexts and one for
# long contexts, which must be equal.
LONG_AMPLITUDE = (
    _key("scaling.attention_factor", _POSITIVE, None, "short_mscale"),
    _key("scaling.long_amplitude", _POSITIVE, None, "long_mscale", gguf_default=None),
)

# RoPE of a share of the pairs of a head, `proportional` of transformers, in the layers with full
# attention.
_UNSCALED = "llama.cpp scales the RoPE of Gemma 4 by a tensor only"
PROPORTIONAL_KEYS = (
    _key("rope_kind", Choice({"proportional": "proportional", "default": None}), None,
         f"{GLOBAL}.rope_type"),
    _key("rotated_share", Real(0, 1), 1.0, f"{GLOBAL}.partial_rotary_factor"),
    _key("rope_factor", Real(0, 1e9), lambda _: 1.0, f"{GLOBAL}.factor"),
    ROPE_FACTORS,
    _key("no_scaling", Exactly("none", _UNSCALED), "none", gguf="rope.scaling.type",
         written=False),
    _key("no_factor", Exactly(1.0, _UNSCALED), 1.0, gguf="rope.scaling.factor", written=False),
)  # fmt: skip


class RopeSections(NamedTuple):
    """The numbers of pairs for time, height and width.

    It is not a plain tuple, because that is a value for each layer.
    """

    time: int
    height: int
    width: int


class _Sections(NamedTuple):
    """A list of the numbers of pairs for time, height and width; `length` numbers are written."""

    length: int

    def read(self, content: object) -> RopeSections:
        """Return the three numbers; a fourth one must be 0."""
        if not is_sequence(content) or len(content) not in {3, 4} or any(content[3:]):
            raise ValueError(f"is {show_value(content)}; it must be a list of three integers")
        return RopeSections(*(WholeNumber(0, 1 << 16).read(each) for each in content[:3]))

    @property
    def gguf_type(self) -> str:
        """The type of an array of integers."""
        return "array[i32]"

    def write(self, value: RopeSections) -> list[int]:
        """Return the numbers, with zeros after them."""
        return [*value, *[0] * (self.length - len(value))]


def section_keys(time: int, height: int, width: int, order: str = "") -> tuple[Key, ...]:
    """Return the keys of multimodal RoPE, whose pairs are divided among time, height and width.

    In texts all three are the position, so that the model computes the same as with plain RoPE. The
    numbers are the defaults. If the order is `interleaved`, neighboring pairs belong to different
    sections; otherwise the pairs of a section follow one another.
    """
    keys = (
        _key("rope_sections", _Sections(3), lambda _: RopeSections(time, height, width),
             "mrope_section", written=True),
        Key(field="rope_sections", kind=_Sections(4), gguf="{arch}.rope.dimension_sections"),
    )  # fmt: skip
    if order != "interleaved":
        return keys
    reason = "transformers and llama.cpp always interleave the sections of RoPE in this family"
    return (*keys, _key("interleaved_sections", Exactly(True, reason), lambda _: True,
                        "mrope_interleaved", written=True))  # fmt: skip


def find_empty_sections(fields: Fields) -> str | None:
    """Return why llama.cpp does not run a model, None if it does."""
    return None if any(fields["rope_sections"]) else "its sections of RoPE are empty"


def find_unrotated(fields: Fields) -> str | None:
    """Return what llama.cpp does not rotate, None if it rotates all pairs.

    The pairs take turns; llama.cpp does not rotate those that no section contains.
    """
    sections = fields["rope_sections"]
    places = (pair % max(sum(sections), 1) for pair in range(fields["rope_dimensions"] // 2))
    if all(place < 3 * sections[place % 3] for place in places):
        return None
    return (
        "it does not rotate the pairs that no section of RoPE contains (in the published models of "
        "Qwen3-VL 2 of 64, those with the lowest frequencies)"
    )


def keys_of_global_layers(keys: tuple[Key, ...], base: float) -> tuple[Key, ...]:
    """Return keys of RoPE that only apply to the layers with full attention.

    `base` is transformers' default for their `rope_theta`.
    """

    def of_global(key: Key) -> Key:
        path = key.hugging_face.replace(f"{_PARAMETERS}.", f"{_PARAMETERS}.{GLOBAL}.")
        default = base if key.field == "rope_base" else key.default
        return replace(key, hugging_face=path, default=default)

    return tuple(
        of_global(key) if key.hugging_face.startswith(_PARAMETERS) else key for key in keys
    )


def local_base_key(default: float | None = None) -> Key:
    """Return the key of the RoPE base of layers with a window; GGUF has one base for all layers."""
    same_base = same("rope_base")
    return _key("local_rope_base", _POSITIVE, same_base if default is None else default,
                f"{LOCAL}.rope_theta", gguf_default=same_base, written=True)  # fmt: skip


# Forms of config.json.


def with_older_names(document: Mapping[str, Any], older: Mapping[str, str]) -> Mapping[str, Any]:
    """Return config.json with the keys that have older names, by their current names.

    `older` maps the current names to the older ones.
    """
    called = {new: document[old] for new, old in older.items() if old in document}
    return {**called, **document}


def with_rope_defaults(
    document: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return config.json with the RoPE keys that its class assumes if it states no object of them.

    A `rope_theta` of its own stays.
    """
    if not defaults or document.get(_SCALING) or document.get(_PARAMETERS):
        return document
    own = {name: document[name] for name in ("rope_theta",) if document.get(name) is not None}
    return {**document, _PARAMETERS: {**defaults, **own}}


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with all RoPE keys in `rope_parameters`.

    Older versions of transformers wrote them in `rope_scaling` and beside it. Raises `ValueError`
    if an object is invalid.
    """
    key = _SCALING if document.get(_SCALING) else _PARAMETERS
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
        rope = {name: rope[name] for name in _BASE_KEYS if name in rope}
    for name in _BASE_KEYS:
        if document.get(name) is not None:
            rope.setdefault(name, document[name])
    # If this key is in both places, transformers uses the outer one.
    if document.get(_ORIGINAL) is not None:
        rope[_ORIGINAL] = document[_ORIGINAL]
    return {**document, _PARAMETERS: rope}


def rope_by_layer(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters` with an object for layers with full attention and one for windows.

    The values of older versions of transformers apply to the layers with full attention. Raises
    `ValueError` if layers with a window have RoPE scaling.
    """
    given = object_of(document, _PARAMETERS)
    near = object_of(given, LOCAL)
    if near.get("rope_type", near.get("type", "default")) != "default":
        raise ValueError(f"RoPE scaling of `{LOCAL}` layers is not supported")
    flat = {name: value for name, value in given.items() if not is_object(value)}
    far = {**flat, **object_of(given, GLOBAL), **object_of(document, _SCALING)}
    base = near.get("rope_theta", document.get("rope_local_base_freq", flat.get("rope_theta")))
    made = standard({**document, _PARAMETERS: far, _SCALING: None})
    return {_PARAMETERS: {GLOBAL: made[_PARAMETERS], LOCAL: {"rope_theta": base}}}


def standard_rope_by_layer(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with an object of RoPE keys for each type of layer."""
    return {**document, **rope_by_layer(document)}


def with_default_rope(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with the RoPE type `default` in place of the older name `mrope`."""
    found = dict(document)
    for name in (_PARAMETERS, _SCALING):
        given = found.get(name)
        if is_object(given) and "mrope" in {given.get("type"), given.get("rope_type")}:
            rest = {key: value for key, value in given.items() if key != "type"}
            found[name] = {**rest, "rope_type": "default"}
    return found


def for_older(
    document: Mapping[str, Any], called: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return config.json with the RoPE keys that transformers before version 5 reads.

    `called` maps keys to their names in this family: an empty name leaves the key out, and
    `rope_scaling` puts it there, not beside it as in Phi-3. Layers with a sliding window that have
    their own RoPE, as in Gemma 3, get their own key.
    """
    given: Any = document.get(_PARAMETERS)
    if not is_object(given):
        return dict(document)
    near: Any = given.get(LOCAL)
    rope: Any = {"rope_type": "default"} | (given[GLOBAL] if near else given)
    written: Any = {GLOBAL: rope, LOCAL: {"rope_type": "default"} | near} if near else rope
    older = {name: rope[name] for name in _BASE_KEYS if name in rope}
    scaled = {name: value for name, value in rope.items() if name not in older}
    kind = scaled["rope_type"]
    names = called or {}
    is_inside = names.get(_ORIGINAL) == _SCALING
    if kind == "longrope" and not is_inside:
        # `Phi3Config` only allowed these three keys.
        older[_ORIGINAL] = scaled.pop(_ORIGINAL)
        scaled = {"type": scaled.pop("rope_type")} | scaled
    is_stated = kind != "longrope" or is_inside or "attention_factor" not in scaled
    if kind != "default" and is_stated:
        older[_SCALING] = scaled
    if near:
        older["rope_local_base_freq"] = near["rope_theta"]
    older = {names.get(name, name): value for name, value in older.items()}
    older.pop("", None)
    return {**document, _PARAMETERS: written, **older}


# Fields and their checks.


def find_rotated_share(fields: Fields) -> float:
    """Return the rotated share of a head from which `find_rotary_size` gets the same dimension."""
    share = float(fields["rope_dimensions"] / fields["head_dim"])
    # The product of a rounded quotient can be a little less than the dimension.
    is_enough = int(fields["head_dim"] * share) == fields["rope_dimensions"]
    return share if is_enough else nextafter(share, inf)


def find_local_size(fields: Fields) -> int:
    """Return the rotary dimension of a head in layers with a window."""
    return find_rotary_size({**fields, "rotated_share": fields["local_share"]})


def find_local_share(fields: Fields) -> float:
    """Return the rotated share of a head in layers with a window."""
    return find_rotated_share({**fields, "rope_dimensions": fields["local_rope_dimensions"]})


def check_heads(fields: Fields) -> None:
    """Raise `ValueError` if heads cannot be grouped by KV heads, or be rotated in pairs."""
    given: Any = fields["kv_heads"]
    queries: Any = fields.get("layer_heads") or (fields["heads"],)
    by_layer = is_sequence(given) and len(given) == len(queries)
    shared = given if is_sequence(given) else (given,)
    for count, heads in zip(shared, queries, strict=True) if by_layer else product(shared, queries):
        if heads % count:
            raise ValueError(f"{heads} query heads cannot be divided evenly among {count} KV heads")
    dimensions, head_dim = fields["rope_dimensions"], fields["head_dim"]
    if dimensions % 2 or not 0 < dimensions <= head_dim:
        raise ValueError(
            f"{dimensions} rotary dimensions are not valid for a head of {head_dim} elements; the "
            f"number must be even and at most {head_dim}"
        )
    if fields.get("value_dim", head_dim) != head_dim:
        raise ValueError("keys and values of different sizes are not supported")


def make_proportional(fields: Fields) -> RopeScaling | None:
    """Return the RoPE scaling that the fields of `PROPORTIONAL_KEYS` state, None without one."""
    from weightctl.families.rope_factors import RopeScaling

    kind = fields.get("rope_kind")
    if kind is None:
        return None
    return RopeScaling(kind=kind, factor=fields["rope_factor"], share=fields["rotated_share"])


class _Stated(NamedTuple):
    """The fields of `RopeScaling` that the keys of the two naming conventions state."""

    hugging_face: tuple[str, ...]
    gguf: tuple[str, ...]


# By the type of scaling. llama.cpp reads the factors of llama3 and longrope from tensors.
_STATED = {
    "linear": _Stated(("factor",), ("kind", "factor")),
    "llama3": _Stated(
        ("factor", "original_context", "low_frequency_factor", "high_frequency_factor"),
        ("original_context",),
    ),
    "yarn": _Stated(
        ("factor", "original_context", "beta_fast", "beta_slow", "truncate", "attention_factor",
         "mscale", "mscale_all_dim"),
        ("kind", "factor", "original_context", "beta_fast", "beta_slow"),
    ),
    # The factor is the ratio of the contexts.
    "longrope": _Stated(
        ("original_context", "attention_factor", "short_factors", "long_factors"),
        ("kind", "original_context"),
    ),
}  # fmt: skip


def scaling(fields: Fields) -> RopeScaling | None:
    """Return the RoPE scaling, None if the model does not use it.

    Raises `ValueError` if the fields of `ROPE_KEYS` contradict each other.
    """
    from weightctl.families.rope_factors import RopeScaling, find_yarn_amplitude

    given = {
        name.removeprefix("scaling."): value
        for name, value in fields.items()
        if name.startswith("scaling.")
    }
    kind, is_gguf = given["kind"], "linear" in given
    share = given.get("attention_share", 1.0)
    if kind in {None, "linear"} and share != 1:
        raise ValueError(f"`attn_factor` is {share:g}, which is only supported with RoPE scaling")
    if kind is None or (kind == "linear" and is_gguf and given["factor"] in {0, 1}):
        return None
    factor = _find_factor(fields, given)
    _check_scaling(fields, given)
    if kind == "yarn":
        if multiplier := given.get("log_multiplier"):
            given |= {"mscale": multiplier, "mscale_all_dim": multiplier}
        if multiplier := given.get("head_multiplier"):
            given |= {"mscale": 1.0, "mscale_all_dim": multiplier}
        if share != 1:
            given["attention_factor"] = shortest(share * find_yarn_amplitude(factor))
    if kind == "longrope":
        given |= {"attention_factor": share} if is_gguf else {}
        given |= _list_pairs(given, fields["rope_dimensions"] // 2, is_gguf)
    # Fields of other kinds keep their defaults.
    given["factor"] = factor
    stated: dict[str, Any] = {
        name: given[name] for name in ("factor", *_STATED[kind].hugging_face) if name in given
    }
    made = RopeScaling(kind=kind, **stated)
    return _with_usual_factor(made, fields["context"]) if kind == "longrope" else made


def _with_usual_factor(made: RopeScaling, context: int) -> RopeScaling:
    """Return longrope with the ratio of the contexts as its factor, and the same amplitude.

    The factor of longrope only decides the amplitude.
    """
    usual = replace(made, factor=context / made.original_context, attention_factor=None)
    is_same = isclose(usual.amplitude, made.amplitude, rel_tol=_ROUNDING)
    return usual if is_same else replace(usual, attention_factor=made.amplitude)


def _find_factor(fields: Fields, given: Fields) -> float:
    kind, factor = given["kind"], given["factor"]
    if not factor and (kind == "longrope" or (factor is None and kind == "yarn")):
        factor = fields["context"] / given["original_context"]
    if not factor:
        raise ValueError(f"`{kind}` RoPE scaling has no `factor`")
    if factor < _LEAST:
        raise ValueError(f"`factor` of RoPE scaling is {factor:g}, less than {_LEAST:g}")
    return float(factor)


def _check_scaling(fields: Fields, given: Fields) -> None:
    kind = given["kind"]
    if "rotated_share" in fields and find_rotary_size(fields) != fields["rope_dimensions"]:
        raise ValueError(
            f"`partial_rotary_factor` is {fields['rotated_share']:g} with `{kind}` "
            "scaling, which transformers does not support"
        )
    if kind == "yarn" and fields["rope_base"] == 1:
        raise ValueError("`rope_theta` or `freq_base` is 1, which `yarn` does not support")
    if kind == "llama3" and given["low_frequency_factor"] > given["high_frequency_factor"]:
        raise ValueError("`low_freq_factor` is greater than `high_freq_factor`")


def _list_pairs(given: Fields, pairs: int, is_gguf: bool) -> Fields:
    """Return longrope's factors for each pair; they may be empty for GGUF, which has tensors."""
    factors = {name: given.get(name) or () for name in ("short_factors", "long_factors")}
    counts = [len(each) for each in factors.values()]
    if counts != [pairs, pairs] and not (is_gguf and counts == [0, 0]):
        raise ValueError(
            f"`longrope` has {counts[0]} values in `short_factor` and {counts[1]} in "
            f"`long_factor`, but there are {pairs} pairs of rotary dimensions: each needs one value"
        )
    return factors


def convert_rope_fields(fields: Fields, convention: NamingConvention) -> Fields:
    """Return fields in which those of RoPE can be written with a naming convention's keys.

    Raises `ValueError` if the naming convention cannot express the scaling.
    """
    if "scaling.kind" not in fields:
        return fields
    found = scaling(fields)
    rest = {name: value for name, value in fields.items() if not name.startswith("scaling.")}
    if convention == "hugging_face":
        rest["rotated_share"] = find_rotated_share(rest)
    if found is None:
        return rest | {"scaling.kind": None}
    values = _for_gguf(found, fields) if convention == "gguf" else _for_hugging_face(found, fields)
    return rest | {f"scaling.{name}": value for name, value in values.items()}


def _for_gguf(found: RopeScaling, fields: Fields) -> dict[str, Any]:
    from weightctl.families.rope_factors import find_yarn_amplitude

    names = _STATED[found.kind].gguf
    values: dict[str, Any] = {"kind": None} | {name: getattr(found, name) for name in names}
    share = found.amplitude
    if found.kind == "yarn":
        # llama.cpp decides this by the family, without a key.
        is_rounded = "ramp_between_pairs" not in fields
        if found.truncate != is_rounded:
            stated = "false" if is_rounded else "true"
            raise ValueError(f"`truncate` of its `yarn` scaling is {stated}")
        if "scaling.log_multiplier" in fields:
            # If this key is given, llama.cpp uses an amplitude of 1.
            return values | {"log_multiplier": _find_multiplier(found)}
        is_stated = found.mscale == 1 and found.attention_factor is None
        if "scaling.head_multiplier" in fields and is_stated and found.mscale_all_dim:
            return values | {"head_multiplier": found.mscale_all_dim}
        share /= find_yarn_amplitude(found.factor)
    # 1 is the default.
    return values | ({} if isclose(share, 1, rel_tol=_ROUNDING) else {"attention_share": share})


def _find_multiplier(found: RopeScaling) -> float:
    """Return YaRN's factor of the logarithm for the attention scores.

    Raises `ValueError` if `mscale` and `mscale_all_dim` are missing or differ, or if
    `attention_factor` is given, which llama.cpp cannot express.
    """
    multiplier = found.mscale_all_dim
    if not multiplier or found.mscale != multiplier or found.attention_factor is not None:
        raise ValueError(
            "`mscale` and `mscale_all_dim` of its `yarn` scaling differ, but llama.cpp assumes "
            "that they are equal in this family"
        )
    return multiplier


def _for_hugging_face(found: RopeScaling, fields: Fields) -> dict[str, Any]:
    if found.kind == "longrope" and not found.short_factors:
        raise ValueError("the `longrope` factors are in tensors, which were not read")
    values = {name: getattr(found, name) for name in _STATED[found.kind].hugging_face}
    if found.kind == "yarn":
        # Older versions of transformers warn about some keys even if they have the default values.
        usual = type(found)(kind="yarn", factor=1, original_context=found.original_context)
        always = ("factor", "original_context")
        values = {
            name: value
            for name, value in values.items()
            if name in always or value != getattr(usual, name)
        }
    if "scaling.long_amplitude" in fields:
        values |= dict.fromkeys(("attention_factor", "long_amplitude"), found.amplitude)
    return values | {"kind": found.kind}

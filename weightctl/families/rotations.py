"""Conversion of RoPE scaling between the fields of a config and the keys of each convention."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isclose, log, nextafter
from typing import TYPE_CHECKING, Any

from weightctl.families.configs import shortest
from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from weightctl.families.keys import Fields, NamingConvention
    from weightctl.families.rope_scaling import RopeScaling

# Smaller values are not meaningful in float32.
LEAST = 1e-6
# The relative error of float32, in which GGUF stores values.
_ROUNDING = 1e-6
_FACTORS = ("short_factors", "long_factors")

# The fields of `RopeScaling` that belong to each kind.
_USED = {
    "linear": (),
    "llama3": ("original_context", "low_frequency_factor", "high_frequency_factor"),
    "yarn": ("original_context", "beta_fast", "beta_slow", "truncate", "attention_factor",
             "mscale", "mscale_all_dim"),
    "longrope": ("original_context", "attention_factor", "short_factors", "long_factors"),
}  # fmt: skip


def find_rotary_size(fields: Fields) -> int:
    """Return the rotary dimension of a head, computed from the rotated share of its elements."""
    return int(fields["head_dim"] * fields["rotated_share"])


def find_rotated_share(fields: Fields) -> float:
    """Return the rotated share of a head from which `find_rotary_size` gets the same dimension."""
    share = float(fields["rope_dimensions"] / fields["head_dim"])
    # The product of a rounded quotient can be a little less than the dimension.
    return (
        share
        if int(fields["head_dim"] * share) == fields["rope_dimensions"]
        else (nextafter(share, inf))
    )


def check_heads(fields: Fields) -> None:
    """Raise `ValueError` if heads cannot be grouped by KV heads, or be rotated in pairs."""
    given: Any = fields["kv_heads"]
    for count in given if is_sequence(given) else (given,):
        if fields["heads"] % count:
            raise ValueError(
                f"{fields['heads']} query heads cannot be divided evenly among {count} KV heads"
            )
    dimensions, head_dim = fields["rope_dimensions"], fields["head_dim"]
    if dimensions % 2 or not 0 < dimensions <= head_dim:
        raise ValueError(
            f"{dimensions} rotary dimensions are not valid for a head of {head_dim} elements; the "
            f"number must be even and at most {head_dim}"
        )
    if fields.get("value_dim", head_dim) != head_dim:
        raise ValueError("keys and values of different sizes are not supported")


def scaling(fields: Fields) -> RopeScaling | None:
    """Return the RoPE scaling, None if the model does not use it.

    Raises `ValueError` if the fields of `ROPE_KEYS` contradict each other.
    """
    from weightctl.families.rope_scaling import RopeScaling

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
    factor = _factor(fields, given)
    _check(fields, given)
    if kind == "yarn" and (multiplier := given.get("log_multiplier")):
        given |= {"mscale": multiplier, "mscale_all_dim": multiplier}
    if kind == "yarn" and (multiplier := given.get("head_multiplier")):
        given |= {"mscale": 1.0, "mscale_all_dim": multiplier}
    if kind == "yarn" and share != 1:
        given["attention_factor"] = shortest(share * _compute_attention_factor(factor))
    if kind == "longrope":
        given |= {"attention_factor": share} if is_gguf else {}
        given |= _of_pairs(given, fields["rope_dimensions"] // 2, is_gguf)
    # Fields of other kinds keep their defaults.
    used = {name: given[name] for name in _USED[kind] if name in given}
    stretched = RopeScaling(kind=kind, factor=factor, **used)
    return _usual(stretched, fields["context"]) if kind == "longrope" else stretched


def _usual(stretched: RopeScaling, context: int) -> RopeScaling:
    """Return longrope with the ratio of the contexts as its factor, and the same amplitude.

    The factor of longrope only decides the amplitude.
    """
    factor = context / stretched.original_context
    usual = replace(stretched, factor=factor, attention_factor=None)
    is_same = isclose(usual.amplitude, stretched.amplitude, rel_tol=_ROUNDING)
    return usual if is_same else replace(usual, attention_factor=stretched.amplitude)


def _factor(fields: Fields, given: Fields) -> float:
    kind, factor = given["kind"], given["factor"]
    if not factor and (kind == "longrope" or (factor is None and kind == "yarn")):
        factor = fields["context"] / given["original_context"]
    if not factor:
        raise ValueError(f"`{kind}` RoPE scaling has no `factor`")
    if factor < LEAST:
        raise ValueError(f"`factor` of RoPE scaling is {factor:g}, less than {LEAST:g}")
    return float(factor)


def _check(fields: Fields, given: Fields) -> None:
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


def _of_pairs(given: Fields, pairs: int, is_gguf: bool) -> Fields:
    """Return longrope's factors for each pair; they may be empty for GGUF, which has tensors."""
    factors = {name: given.get(name) or () for name in _FACTORS}
    counts = [len(each) for each in factors.values()]
    if counts != [pairs, pairs] and not (is_gguf and counts == [0, 0]):
        raise ValueError(
            f"`longrope` has {counts[0]} values in `short_factor` and {counts[1]} in "
            f"`long_factor`, but there are {pairs} pairs of rotary dimensions: each needs one value"
        )
    return factors


def convert_rope_fields(fields: Fields, convention: NamingConvention) -> Fields:
    """Return fields in which those of RoPE can be written with a naming convention's keys.

    llama.cpp reads the factors of llama3 and longrope from tensors, not from keys. Raises
    `ValueError` if the naming convention cannot express the scaling.
    """
    if "scaling.kind" not in fields:
        return fields
    stretched = scaling(fields)
    rest = {name: value for name, value in fields.items() if not name.startswith("scaling.")}
    if convention == "hugging_face":
        rest["rotated_share"] = find_rotated_share(rest)
    if stretched is None:
        return rest | {"scaling.kind": None}
    if convention == "gguf":
        # llama.cpp decides this by the family, without a key.
        is_rounded = "ramp_between_pairs" not in fields
        if stretched.kind == "yarn" and stretched.truncate != is_rounded:
            stated = "false" if is_rounded else "true"
            raise ValueError(f"`truncate` of its `yarn` scaling is {stated}")
        values = _for_gguf(stretched, fields)
    else:
        values = _for_hugging_face(stretched)
        if "scaling.long_amplitude" in fields:
            values |= dict.fromkeys(("attention_factor", "long_amplitude"), stretched.amplitude)
    return rest | {f"scaling.{name}": value for name, value in values.items()}


def _for_gguf(stretched: RopeScaling, fields: Fields) -> dict[str, Any]:
    values: dict[str, Any] = {"kind": stretched.kind, "factor": stretched.factor}
    share, original = stretched.amplitude, {"original_context": stretched.original_context}
    if stretched.kind == "yarn":
        values |= original | {name: getattr(stretched, name) for name in ("beta_fast", "beta_slow")}
        if "scaling.log_multiplier" in fields:
            # If this key is given, llama.cpp uses an amplitude of 1.
            return values | {"log_multiplier": _find_multiplier(stretched)}
        is_stated = stretched.mscale == 1 and stretched.attention_factor is None
        if "scaling.head_multiplier" in fields and is_stated and stretched.mscale_all_dim:
            return values | {"head_multiplier": stretched.mscale_all_dim}
        share /= _compute_attention_factor(stretched.factor)
    elif stretched.kind != "linear":
        # llama.cpp cannot express llama3 except by a tensor.
        values = {"kind": None if stretched.kind == "llama3" else stretched.kind, **original}
    # 1 is the default.
    return values | ({} if isclose(share, 1, rel_tol=_ROUNDING) else {"attention_share": share})


def _find_multiplier(stretched: RopeScaling) -> float:
    """Return YaRN's factor of the logarithm for the attention scores.

    Raises `ValueError` if `mscale` and `mscale_all_dim` are missing or differ, or if
    `attention_factor` is given, which llama.cpp cannot express.
    """
    multiplier = stretched.mscale_all_dim
    if not multiplier or stretched.mscale != multiplier or stretched.attention_factor is not None:
        raise ValueError(
            "`mscale` and `mscale_all_dim` of its `yarn` scaling differ, but llama.cpp assumes "
            "that they are equal in this family"
        )
    return multiplier


def _for_hugging_face(stretched: RopeScaling) -> dict[str, Any]:
    values = {name: getattr(stretched, name) for name in _USED[stretched.kind]}
    if stretched.kind == "longrope":
        if not stretched.short_factors:
            raise ValueError("the `longrope` factors are in tensors, which were not read")
        return values | {"kind": stretched.kind}
    if stretched.kind == "yarn":
        # Older versions of transformers warn about some keys even if they have the default values.
        usual = type(stretched)(kind="yarn", factor=1, original_context=stretched.original_context)
        values = {
            name: value
            for name, value in values.items()
            if name == "original_context" or value != getattr(usual, name)
        }
    return values | {"kind": stretched.kind, "factor": stretched.factor}


def _compute_attention_factor(factor: float) -> float:
    """Return the factor of cosines and sines that YaRN's paper recommends."""
    return 1 + 0.1 * log(max(factor, 1))

"""Where either dialect says how positions are told by rotation.

Keys: transformers' `modeling_rope_utils.py`; llama.cpp's `llama-model.cpp` and
`convert_hf_to_gguf.py`.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Any

from weightctl.archs.keys import Key, Present, same
from weightctl.archs.kinds import FLAG, SIZE, Choice, Real
from weightctl.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.archs.keys import Fields
    from weightctl.nn.rope_scaling import RopeScaling

__all__ = ["ROPE_KEYS", "scaling", "standard"]

_ROPE, _SCALED = "rope_parameters.", "{arch}.rope.scaling."
# What is beyond these is no rotation in float32.
_LEAST, _LARGE = 1e-6, 1e12
_POSITIVE = Real(_LEAST, _LARGE, is_closed=True)


# Those of `scaling.` are put together by `scaling`.
ROPE_KEYS = (
    Key(field="rope_interleaved", kind=FLAG, default=False, gguf_default=True),
    Key(field="has_rope_factors", kind=FLAG, default=False, seen=Present("rope_freqs.weight")),
    Key(field="rope_base", kind=_POSITIVE, default=10000.0, gguf_default=10000.0,
        gguf="{arch}.rope.freq_base", hugging_face=_ROPE + "rope_theta"),
    # Transformers' `modeling_llama.py` rotates whole heads whatever this says.
    Key(field="rotated_share", kind=Real(0, 1), default=1.0,
        hugging_face=_ROPE + "partial_rotary_factor"),
    Key(field="rope_dimensions", kind=SIZE, default=same("head_dim"),
        gguf_default=same("head_dim"),
        gguf="{arch}.rope.dimension_count"),
    Key(field="scaling.kind", default=None,
        kind=Choice({"default": None, "linear": "linear", "llama3": "llama3", "yarn": "yarn"}),
        hugging_face=_ROPE + "rope_type"),
    # Without a type a factor is of linear scaling, which once had a key of its own.
    Key(field="scaling.kind", gguf_default="linear",
        kind=Choice({"none": None, "linear": "linear", "yarn": "yarn"}), gguf=_SCALED + "type"),
    Key(field="scaling.linear", kind=Real(0, _LARGE, is_closed=True), gguf_default=0.0,
        gguf="{arch}.rope.scale_linear"),
    Key(field="scaling.factor", kind=Real(0, _LARGE, is_closed=True), default=None,
        gguf_default=same("scaling.linear"), gguf=_SCALED + "factor",
        hugging_face=_ROPE + "factor"),
    Key(field="scaling.original_context", kind=SIZE, default=same("context"),
        gguf_default=same("context"), gguf=_SCALED + "original_context_length",
        hugging_face=_ROPE + "original_max_position_embeddings"),
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
    # Of what YaRN advises, which is what Hugging Face's key replaces.
    Key(field="scaling.attention_share", kind=_POSITIVE, gguf_default=1.0,
        gguf=_SCALED + "attn_factor"),
)  # fmt: skip

# The fields of `RopeScaling` that belong to each kind.
_USED = {
    "linear": (),
    "llama3": ("original_context", "low_frequency_factor", "high_frequency_factor"),
    "yarn": ("original_context", "beta_fast", "beta_slow", "truncate", "attention_factor",
             "mscale", "mscale_all_dim"),
}  # fmt: skip


def standard(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Bring what older transformers wrote beside `rope_scaling` into `rope_parameters`."""
    given: Any = document.get("rope_scaling") or document.get("rope_parameters") or {}
    if not is_object(given):
        raise ValueError("`rope_parameters` or `rope_scaling` is no object")
    for name, value in given.items():
        if is_object(value):
            raise ValueError(f"`{name}` has rotary embeddings of its own, which are not built")
    rope = {name: value for name, value in given.items() if value is not None}
    if "type" in rope:
        rope.setdefault("rope_type", rope["type"])
    for name in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
        if document.get(name) is not None:
            rope.setdefault(name, document[name])
    return {**document, "rope_parameters": rope}


def scaling(fields: Fields) -> RopeScaling | None:
    """Return how rotations are stretched, None where they are not.

    Raises `ValueError` where the fields of `ROPE_KEYS` contradict each other.
    """
    from weightctl.nn.rope_scaling import RopeScaling

    given = {
        name.removeprefix("scaling."): value
        for name, value in fields.items()
        if name.startswith("scaling.")
    }
    kind, factor = given["kind"], given["factor"]
    share, is_gguf = given.get("attention_share", 1.0), "linear" in given
    if kind is None or (kind == "linear" and is_gguf and factor in {0, 1}):
        return None
    if factor is None and kind == "yarn":
        factor = fields["context"] / given["original_context"]
    if not factor:
        raise ValueError(f"`{kind}` scaling of rotary embeddings has no `factor`")
    if factor < _LEAST:
        raise ValueError(f"`factor` of rotary embeddings is {factor:g}, below {_LEAST:g}")
    if int(fields["head_dim"] * fields.get("rotated_share", 1)) != fields["head_dim"]:
        raise ValueError(
            f"`partial_rotary_factor` is {fields['rotated_share']:g} beside `{kind}` scaling, and "
            "transformers has no such llama"
        )
    if kind == "yarn" and fields["rope_base"] == 1:
        raise ValueError("`rope_theta` or `freq_base` is 1, by which `yarn` cannot scale")
    if kind == "llama3" and not given["low_frequency_factor"] < given["high_frequency_factor"]:
        raise ValueError("`low_freq_factor` is not below `high_freq_factor`")
    if kind == "yarn" and share != 1:
        given["attention_factor"] = share * (1 + 0.1 * log(max(factor, 1)))
    # What belongs to another kind stays as it is by default.
    used = {name: given[name] for name in _USED[kind] if name in given}
    return RopeScaling(kind=kind, factor=factor, **used)

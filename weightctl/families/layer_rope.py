"""RoPE that differs between layers with a sliding window and layers with full attention.

Transformers' `rope_parameters` then has an object for each type of layer. Only layers with full
attention have RoPE scaling.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.families.keys import Key, same
from weightctl.families.kinds import Real
from weightctl.families.rope_keys import standard as standard_rope
from weightctl.families.windowed_layers import GLOBAL, LOCAL
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROPE = "rope_parameters"


def keys_of_global_layers(keys: tuple[Key, ...], base: float) -> tuple[Key, ...]:
    """Return keys of RoPE that only apply to the layers with full attention.

    `base` is transformers' default for their `rope_theta`.
    """

    def of_global(key: Key) -> Key:
        path = key.hugging_face.replace(f"{_ROPE}.", f"{_ROPE}.{GLOBAL}.")
        default = base if key.field == "rope_base" else key.default
        return replace(key, hugging_face=path, default=default)

    return tuple(of_global(key) if key.hugging_face.startswith(_ROPE) else key for key in keys)


def local_base_key(default: float | None = None) -> Key:
    """Return the key of the RoPE base of layers with a window; GGUF has one base for all layers."""
    return Key(
        field="local_rope_base",
        kind=Real(1e-6, 1e12, is_closed=True),
        default=same("rope_base") if default is None else default,
        gguf_default=same("rope_base"),
        hugging_face=f"{_ROPE}.{LOCAL}.rope_theta",
        written=True,
    )


def rope_by_layer(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_parameters` with an object for each type of layer.

    The values of older versions of transformers apply to the layers with full attention. Raises
    `ValueError` if layers with a window have RoPE scaling.
    """
    given = object_of(document, _ROPE)
    near = object_of(given, LOCAL)
    if near.get("rope_type", near.get("type", "default")) != "default":
        raise ValueError(f"RoPE scaling of `{LOCAL}` layers is not supported")
    flat = {name: value for name, value in given.items() if not is_object(value)}
    far = {**flat, **object_of(given, GLOBAL), **object_of(document, "rope_scaling")}
    base = near.get("rope_theta", document.get("rope_local_base_freq", flat.get("rope_theta")))
    made = standard_rope({**document, _ROPE: far, "rope_scaling": None})
    return {_ROPE: {GLOBAL: made[_ROPE], LOCAL: {"rope_theta": base}}}


def standard_rope_by_layer(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return config.json with an object of RoPE keys for each type of layer."""
    return {**document, **rope_by_layer(document)}


def object_of(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the JSON object at a key, an empty one if the key is missing or null.

    Raises `ValueError` if the value is not an object.
    """
    found: Any = document.get(name)
    if found is None:
        return {}
    if not is_object(found):
        raise ValueError(f"`{name}` is not a JSON object")
    return found

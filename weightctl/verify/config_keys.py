"""Finds the key or tensor in which a checkpoint states a field of its config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import WeightctlError
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.keys import REQUIRED
from weightctl.families.model import ARCHITECTURE
from weightctl.text.untyped import is_object
from weightctl.weights.steps.numbers import numbers_of
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from weightctl.families import RecognizedModel
    from weightctl.families.keys import Fields, Key, Seen

# The fields of RoPE scaling that config.json has, and the field that GGUF has in their place.
_LOUDNESS = {
    f"scaling.{name}": "scaling.attention_share"
    for name in ("attention_factor", "mscale", "mscale_all_dim")
}


class Spelling(NamedTuple):
    """The place where a checkpoint states a field: a key, or a tensor whose presence states it.

    `is_stated` says whether the checkpoint states the field. If not, `default` is its value, or a
    function that computes the value from other fields. `seen` describes the tensor that states the
    field; it is None if `key` is a metadata key. `follows` names the field or family key that
    determines a field without a key of its own; `key` is then the key of that field.
    """

    key: str
    is_stated: bool
    default: Any = None
    seen: Seen | None = None
    follows: str = ""


def find_spelling(checkpoint: RecognizedModel, field: str) -> Spelling:
    """Return the key or tensor in which a checkpoint states a field, or would state it."""
    lines = [key for key in checkpoint.family.keys if key.field == field]
    own = [key for key in lines if key.is_in(checkpoint.convention)] or lines
    found = [_spell_key(checkpoint, key) for key in own]
    stated = [each for each in found if each.is_stated]
    named = [each for each in found if each.key]
    chosen = (stated or named or found or [Spelling("", is_stated=False)])[0]
    if chosen.key:
        return chosen
    if tensor := _find_tensor_of(checkpoint, field):
        return Spelling(tensor, is_stated=True, follows=tensor)
    return _follow_default(checkpoint, field, chosen)


def _follow_default(checkpoint: RecognizedModel, field: str, spelling: Spelling) -> Spelling:
    """Return the place of the value that determines a field without a key."""
    sources = _find_sources(spelling.default, checkpoint.fields)
    if field.startswith("scaling."):
        sources = [_LOUDNESS.get(field, "scaling.kind"), "scaling.kind"]
    # Sources that are fields of the config come last: they are compared as fields of their own.
    for source in sorted(sources, key=lambda name: hasattr(checkpoint.config, name)):
        found = find_spelling(checkpoint, source) if source != field else spelling
        if found.key:
            return Spelling(found.key, found.is_stated, spelling.default, follows=source)
    family = ARCHITECTURE if checkpoint.convention == "gguf" else MODEL_TYPE
    return Spelling(family, False, spelling.default, follows=family)


def _find_tensor_of(checkpoint: RecognizedModel, field: str) -> str:
    """Return the name of the tensor whose values state a field; empty if none does."""
    fields: Fields = checkpoint.fields
    for names in checkpoint.family.tensors(checkpoint.config):
        add_fields, tensor = names.line.add_fields, checkpoint.tensors.get(names.module)
        if add_fields is None or tensor is None:
            continue
        try:
            made = add_fields(fields, numbers_of(tensor))
        except (KeyError, ValueError, WeightctlError):
            continue
        if made.get(field) != fields.get(field):
            return tensor.info.name
    return ""


class _Watched(Mapping[str, Any]):
    """A mapping of fields that records the names that were looked up."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self.asked: list[str] = []

    def __getitem__(self, name: str) -> Any:
        self.asked.append(name)
        return self._fields[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


def _find_sources(default: Any, fields: Fields) -> list[str]:
    """Return the fields that a default is computed from."""
    watched = _Watched(fields)
    if callable(default):
        try:
            default(watched)
        except (KeyError, TypeError, ValueError):
            return watched.asked
    return watched.asked


def _spell_key(checkpoint: RecognizedModel, key: Key) -> Spelling:
    if checkpoint.convention == "gguf":
        if key.seen is not None and key.seen.see(header_of(checkpoint.tree).tensors) is not None:
            return Spelling(key.seen.tensor, True, seen=key.seen)
        name = key.gguf.format(arch=checkpoint.family.gguf_name)
        is_stated = name in header_of(checkpoint.tree).metadata
        default = None if key.gguf_default is REQUIRED else key.gguf_default
        return Spelling(name, is_stated, default)
    path, is_stated = _spell_path(checkpoint, key.hugging_face)
    return Spelling(path, is_stated, None if key.default is REQUIRED else key.default)


def _spell_path(checkpoint: RecognizedModel, path: str) -> tuple[str, bool]:
    """Return the spelling of a normalized config path in this config.json, and if it is stated."""
    if not path:
        return "", False
    document = checkpoint.document
    *_, last = path.split(".")
    # In order of precedence.
    for spelling in (path, f"rope_scaling.{last}", last):
        if _has_path(document, spelling):
            return spelling, True
    try:
        is_stated = _has_path(checkpoint.family.standard(document), path)
    except ValueError:
        is_stated = False
    return last, is_stated


def _has_path(document: Mapping[str, Any], path: str) -> bool:
    found: Any = document
    for part in path.split("."):
        if not is_object(found) or found.get(part) is None:
            return False
        found = found[part]
    return True

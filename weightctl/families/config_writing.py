"""The config of a model as GGUF's metadata, or as config.json."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError, GraphError
from weightctl.families.config_keys import REQUIRED
from weightctl.families.config_values import show_value, show_values_apart
from weightctl.families.configs import MODEL_TYPE, from_gguf, from_hugging_face, is_same_float32
from weightctl.families.llama_cpp import find_unloaded_layers, find_unloaded_tensors
from weightctl.families.model import ARCHITECTURE
from weightctl.families.mtp import to_block_values
from weightctl.families.rope import convert_rope_fields, for_older
from weightctl.text.untyped import is_sequence
from weightctl.weights.metadata import MetadataValue, element_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from weightctl.families.config_keys import Fields, Key, NamingConvention
    from weightctl.families.family import Family, ModelType

_WORDS: dict[NamingConvention, tuple[str, str]] = {
    "gguf": ("GGUF's metadata", "llama.cpp"),
    "hugging_face": ("config.json", "transformers"),
}


def to_gguf(family: Family, fields: Fields) -> dict[str, MetadataValue]:
    """Return the keys of GGUF's metadata that state the fields of a config.

    The fields may come from the keys of either naming convention. Raises `ArchitectureError` if
    GGUF cannot express the model, or if llama.cpp does not load it. llama.cpp does not read some of
    the keys: the sliding window of the family llama, and the ends of YaRN's ramp.
    """
    _check_loading(family, fields)
    given = _convert_fields(family, fields, "gguf")
    if fields.get("scaling.kind") == "llama3" and not any(line.made for line in family.names):
        # llama.cpp reads this scaling from a tensor, but only in some families.
        raise _cannot_express(family, "gguf", "its RoPE uses `llama3` scaling")
    metadata = {
        key.gguf.format(arch=family.gguf_name): _make_typed_value(
            key.gguf_type or key.kind.gguf_type, content
        )
        for key, content in _contents(family, given, "gguf")
    }
    described = {ARCHITECTURE: MetadataValue("string", family.gguf_name)} | metadata
    found = from_gguf(family, described, {}, _WORDS["gguf"][0])
    _compare(family, given, found.fields, "gguf")
    return metadata


def to_hugging_face(family: Family, fields: Fields, model_type: str) -> dict[str, Any]:
    """Return a config.json that states the fields of a config.

    The fields may come from the keys of either naming convention, and `model_type` is one of the
    family's. Current and older versions of transformers read the same model from it. Raises
    `ArchitectureError` if transformers does not support the model.
    """
    kind = family.model_types[model_type]
    given = _convert_fields(family, fields, "hugging_face")
    document: dict[str, Any] = {MODEL_TYPE: model_type}
    if kind.class_name:
        document["architectures"] = [kind.class_name]
    for key, content in _contents(family, given, "hugging_face", kind):
        _put(document, key.hugging_face, content)
    document = dict(family.completed(for_older(document, family.older)))
    found = from_hugging_face(family, document, _WORDS["hugging_face"][0])
    _compare(family, given, found.fields, "hugging_face")
    return document


def _check_loading(family: Family, fields: Fields) -> None:
    """Raise `ArchitectureError` if llama.cpp does not load the model."""
    reason = find_unloaded_layers(family.gguf_name, fields)
    if reason is None and family.unloaded is not None:
        reason = family.unloaded(fields)
    if family.heads_fill_hidden:
        heads, head_dim, hidden = (fields[name] for name in ("heads", "head_dim", "hidden"))
        if heads * head_dim != hidden:
            reason = f"`head_dim` is {head_dim} instead of hidden size / heads = {hidden} / {heads}"
    _refuse_unloaded(family, reason)


def check_loaded(
    family: Family, metadata: Mapping[str, MetadataValue], names: Collection[str]
) -> None:
    """Raise `ArchitectureError` if llama.cpp does not load a GGUF with tensors of these names."""
    _refuse_unloaded(family, find_unloaded_tensors(metadata, names))


def _refuse_unloaded(family: Family, reason: str | None) -> None:
    if reason is not None:
        raise ArchitectureError(
            f"llama.cpp does not load this {family.name}: {reason}",
            hint='to convert only its tensors, use --names keep (names="keep" in Python)',
        )


def model_type_of(family: Family, fields: Fields, source: object = None) -> str:
    """Return the first of the family's model types in config.json that allows these fields.

    `source` is the type that the model had before; it is tried first. Raises `ArchitectureError` if
    no type allows the fields.
    """
    wrong: list[str] = []
    for name in sorted(family.model_types, key=lambda name: name != source):
        kind = family.model_types[name]
        differing = [
            field
            for field, value in kind.fixed.items()
            if field in fields and (fields[field] or None) != (value or None)
        ]
        if not differing:
            return name
        wrong.append(
            f"`{name}` does not allow `{differing[0]}` = {show_value(fields[differing[0]])}"
        )
    raise ArchitectureError(
        f"no `model_type` of transformers fits this {family.name}: {', and '.join(wrong)}",
        hint='to convert only its tensors, use --names keep (names="keep" in Python)',
    )


def _convert_fields(family: Family, fields: Fields, convention: NamingConvention) -> Fields:
    """Return the fields with RoPE in the form of a naming convention's keys."""
    try:
        return convert_rope_fields(fields, convention)
    except (ValueError, GraphError) as error:
        message = error.message if isinstance(error, GraphError) else str(error)
        raise _cannot_express(family, convention, message) from error


def _contents(
    family: Family, fields: Fields, convention: NamingConvention, kind: ModelType | None = None
) -> Iterator[tuple[Key, Any]]:
    """Yield the keys that are written, each with its content."""
    known = dict(fields)
    for key in family.keys:
        name = key.gguf if convention == "gguf" else key.hugging_face
        is_fixed = kind is not None and key.field in kind.fixed
        if not name or key.written is False or is_fixed:
            continue
        default = _default(key, convention, kind)
        try:
            if key.field not in known:
                if not _is_derived(key, convention, default):
                    continue
                known[key.field] = default(known) if callable(default) else default
            value = known[key.field]
            if _goes_without_saying(key, value, convention, default, known):
                continue
            if convention == "gguf":
                value = to_block_values(key, value, known, family)
            is_null = value is None and convention == "hugging_face"
            yield key, None if is_null else key.kind.write(value)
        except ValueError as error:
            name = name.format(arch=family.gguf_name)
            raise _cannot_express(family, convention, f"`{name}` {error}") from error


def _default(key: Key, convention: NamingConvention, kind: ModelType | None) -> Any:
    if convention == "gguf":
        return key.gguf_default
    return key.default if kind is None else kind.defaults.get(key.field, key.default)


def _is_derived(key: Key, convention: NamingConvention, default: Any) -> bool:
    """Whether a field that the other naming convention does not define is written by default."""
    if key.field.startswith("scaling.") or default is REQUIRED:
        return False
    return callable(default) or (convention == "gguf" and key.written is True)


def _goes_without_saying(
    key: Key, value: Any, convention: NamingConvention, default: Any, known: Fields
) -> bool:
    """Whether a value is left out because the reader would use it anyway."""
    if value is None and (key.field.startswith("scaling.") or convention == "gguf"):
        return key.written is None
    if value is None and default is None:
        return True
    if convention == "gguf" or key.written or not callable(default):
        return False
    try:
        return bool(default(known) == value)
    except ValueError:
        # The default cannot be computed, so the value must be written.
        return False


def _make_typed_value(kind: str, content: Any) -> MetadataValue:
    if element_type(kind) is not None and not is_sequence(content):
        kind = "u32"  # llama.cpp takes a number in place of a list
    if kind == "f32":
        content = struct.unpack("<f", struct.pack("<f", content))[0]
    return MetadataValue(kind, content)


def _put(document: dict[str, Any], path: str, content: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        document = document.setdefault(parent, {})
    document[name] = content


def _compare(family: Family, fields: Fields, found: Fields, convention: NamingConvention) -> None:
    """Raise `ArchitectureError` unless the written config is read as the same model."""
    for key in family.keys:
        name = key.field
        if name.startswith("scaling.") or name not in fields or name not in found:
            continue
        is_of_convention = not (key.gguf or key.hugging_face or key.seen)
        is_in_tensors = key.seen is not None or key.is_in_weights
        if is_of_convention or key.seen_name or (convention == "gguf" and is_in_tensors):
            continue
        if not _is_same(fields[name], found[name]):
            _, runtime = _WORDS[convention]
            value, other = show_values_apart(fields[name], found[name])
            raise _cannot_express(
                family, convention, f"`{name}` is {value}, but {runtime} would read {other}"
            )


def _is_same(value: Any, found: Any) -> bool:
    if isinstance(value, float) and isinstance(found, float):
        return is_same_float32(value, found)
    return bool(value == found)


def _cannot_express(
    family: Family, convention: NamingConvention, message: str
) -> ArchitectureError:
    where, _ = _WORDS[convention]
    return ArchitectureError(
        f"{where} cannot describe this {family.name}: {message}",
        hint='to convert only its tensors, use --names keep (names="keep" in Python)',
    )

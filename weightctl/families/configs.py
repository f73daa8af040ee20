"""Reading of a family's config from GGUF's metadata, or from config.json."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ArchitectureError, GraphError
from weightctl.families.common_keys import refuse_keys
from weightctl.families.config_keys import REQUIRED, LayersWith
from weightctl.families.model import ARCHITECTURE
from weightctl.families.mtp import from_block_values
from weightctl.families.mtp_tensors import MTP_COUNT, show_in_first_layer
from weightctl.text.untyped import is_object, is_sequence
from weightctl.weights.metadata import element_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from weightctl.families.config_keys import Config, Fields, Key, NamingConvention
    from weightctl.families.family import Family, ModelType
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue

MODEL_TYPE = "model_type"

# The limit of a list with a value for each layer.
_MOST_LAYERS = 100_000
_MISSING = object()


class Read(NamedTuple):
    """The result of reading a config: the fields of the family's keys, and the config itself."""

    fields: Fields
    config: Config


def from_gguf(
    family: Family,
    metadata: Mapping[str, MetadataValue],
    tensors: Mapping[str, TensorInfo],
    where: str,
) -> Read:
    """Return the config that GGUF's metadata describe, as llama.cpp reads them.

    Raises `ArchitectureError`, which names `where` and the key, if the metadata are invalid.
    """
    architecture = metadata[ARCHITECTURE].content
    has_mtp = MTP_COUNT.format(arch=architecture) in metadata
    shown = show_in_first_layer(tensors) if has_mtp else tensors

    def find(key: Key) -> tuple[str, object]:
        of_layers = isinstance(key.seen, LayersWith)
        seen = None if key.seen is None else key.seen.see(tensors if of_layers else shown)
        name = key.gguf.format(arch=architecture)
        if seen is not None:
            return name or key.field, seen
        if not name or name not in metadata or metadata[name].content is None:
            return name, _MISSING
        if element_type(key.kind.gguf_type) is not None:
            return name, metadata[name].content
        return name, _one(metadata[name], f"{where}: `{name}`")

    return _config(family, "gguf", where, find, lambda key: key.gguf_default)


def from_hugging_face(
    family: Family, document: Mapping[str, Any], where: str, names: Collection[str] | None = None
) -> Read:
    """Return the config that a config.json of one of the family's types describes.

    `names` are those of the tensors, if there are tensors. Missing keys get the defaults of
    transformers. Raises `ArchitectureError`, which names `where`
    and the key, if config.json is invalid.
    """
    kind = family.model_types[document[MODEL_TYPE]]
    try:
        standard = family.standard(document)
        refuse_keys(family, document, standard)
    except ValueError as error:
        raise ArchitectureError(f"{where}: {error}") from error

    def find(key: Key) -> tuple[str, object]:
        if key.seen_name and names is not None:
            return key.field, any(family.plain(name) == key.seen_name for name in names)
        if key.field in kind.fixed or not key.hugging_face:
            return key.hugging_face, _MISSING
        content = _at(standard, key.hugging_face)
        # If the field may be undefined, null leaves it undefined, whatever the type's own default
        # is.
        is_open = key.default is None or callable(key.default)
        if content is None and not is_open:
            content = _MISSING
        return key.hugging_face, content

    return _config(family, "hugging_face", where, find, lambda key: _default(key, kind))


def _default(key: Key, kind: ModelType) -> Any:
    if key.field in kind.fixed:
        return kind.fixed[key.field]
    return kind.defaults.get(key.field, key.default)


def _config(
    family: Family,
    convention: NamingConvention,
    where: str,
    find: Callable[[Key], tuple[str, object]],
    default: Callable[[Key], Any],
) -> Read:
    fields: dict[str, Any] = {}
    for key in family.keys:
        if not key.is_in(convention):
            continue
        name, content = find(key)
        try:
            value = _read(key, content, default(key), fields)
            if convention == "gguf":
                value = from_block_values(key, value, fields, family)
            fields[key.field] = value
        except ValueError as error:
            raise ArchitectureError(
                f"{where}: `{name or key.field}` {error}",
                hint="check that the config belongs to this model and is not damaged",
            ) from error
    try:
        # The tensors decide whether there are layers for MTP.
        checked = {**family.checked(fields), "mtp_layers": 0}
        return Read(fields, family.make_config(checked, convention))
    except (ValueError, GraphError) as error:
        message = error.message if isinstance(error, GraphError) else str(error)
        raise ArchitectureError(f"{where}: {message}") from error


def _read(key: Key, content: object, default: Any, fields: Mapping[str, Any]) -> Any:
    if content is None:
        default = key.default
    elif content is not _MISSING:
        return key.kind.read(content)
    if default is REQUIRED:
        raise ValueError("is missing")
    return default(fields) if callable(default) else default


def _at(document: Mapping[str, Any], path: str) -> object:
    """Return the value at a dotted path, `_MISSING` if there is none."""
    found: Any = document
    for part in path.split("."):
        if not is_object(found) or part not in found:
            return _MISSING
        found = found[part]
    return found


def _one(value: MetadataValue, place: str) -> object:
    """Return a value; of a list with an equal value for each layer, return that value."""
    content = value.content
    if is_sequence(content):
        if (
            not content
            or len(content) > _MOST_LAYERS
            or any(each != content[0] for each in content)
        ):
            raise ArchitectureError(
                f"{place} differs between layers, which is not supported",
                hint="weightctl can still list the tensors, and convert them with --names keep "
                '(names="keep" in Python)',
            )
        content = content[0]
    return shortest(content) if value.type == "f32" and isinstance(content, float) else content


def shortest(number: float) -> float:
    """Return the shortest decimal with the same float32 value: 1e-05 for 9.999999747378752e-06."""
    rounded = (float(f"{number:.{digits}g}") for digits in range(6, 9))
    return next((short for short in rounded if is_same_float32(short, number)), number)


def is_same_float32(one: float, other: float) -> bool:
    """Whether two numbers are equal after they are rounded to float32."""
    if not max(abs(one), abs(other)) < 1e38:
        return one == other
    return struct.pack("<f", one) == struct.pack("<f", other)

"""The supported family that is most similar to an unsupported model, and the differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.families.common_keys import HARMLESS, REFUSED
from weightctl.families.index import FAMILIES
from weightctl.families.model import ARCHITECTURE
from weightctl.schemes.buffers import is_buffer
from weightctl.text.folding import mask_numbers
from weightctl.text.wording import join_names

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from weightctl.families.config_keys import NamingConvention
    from weightctl.families.family import Family
    from weightctl.families.modules import Name
    from weightctl.weights.info import TensorInfo
    from weightctl.weights.metadata import MetadataValue

_MOST = 4
_USUAL = "llama"
# Keys of config.json that are not compared, because they do not show what a model computes.
_ASIDE = HARMLESS | {
    "architectures", "attention_dropout", "auto_map", "dtype", "initializer_range",
    "max_window_layers", "model_type", "pretraining_tp", "quantization_config", "rope_parameters",
    "rope_scaling", "rope_theta", "torch_dtype",
}  # fmt: skip


class Likeness(NamedTuple):
    """How similar a model is to a family.

    `common` are the names of tensors that both have, `beyond` those that the family does not have,
    and `unread` the keys of the config that it does not read. Numbers in names are masked.
    """

    family: Family
    common: set[str]
    beyond: list[str]
    unread: list[str]


def describe_nearest(
    tensors: Collection[TensorInfo],
    convention: NamingConvention,
    document: Mapping[str, Any] | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
) -> str:
    """Return a text about the supported family that is most similar to a model.

    The text names the tensors that the family does not have, or else the keys of config.json
    (`document`) or of GGUF's `metadata` that it does not read. It is empty if no family has a third
    of the tensors.
    """
    kinds = {mask_numbers(each.name) for each in tensors if not is_buffer(each)}
    closest = find_nearest(tensors, convention, document, metadata)
    if closest is None:
        return ""
    share = (
        f"the closest is {closest.family.name}, which has {len(closest.common)} of the "
        f"{len(kinds)} tensor names of this model (layer numbers are ignored)"
    )
    if closest.beyond:
        shown = join_names([f"`{kind}`" for kind in closest.beyond], _MOST)
        return f"{share}, but not {shown}"
    if closest.unread:
        shown = join_names([f"`{key}`" for key in closest.unread], _MOST)
        return f"{share}, but does not read {shown} of the config, so it computes something else"
    has_keys = _list_keys(document or {}, metadata or {})[convention]
    return f"{share}, and supports all keys of its config" if has_keys else share


def find_nearest(
    tensors: Iterable[TensorInfo],
    convention: NamingConvention,
    document: Mapping[str, Any] | None = None,
    metadata: Mapping[str, MetadataValue] | None = None,
) -> Likeness | None:
    """Return the supported family that is most similar to a model.

    None if no family has a third of the tensors.
    """
    kinds = dict.fromkeys(mask_numbers(each.name) for each in tensors if not is_buffer(each))
    keys = _list_keys(document or {}, metadata or {})
    likenesses = [
        _measure_likeness(line.load(), kinds, convention, keys) for line in FAMILIES.values()
    ]
    closest = max(likenesses, key=_rank)
    return None if 3 * len(closest.common) < len(kinds) or not kinds else closest


def describe_unread_keys(family: Family, document: Mapping[str, Any]) -> str:
    """Return a text about keys of config.json that neither rows nor rules of a family read.

    It is empty if there are none. Keys that do not show what a model computes are left out.
    """
    rows = {key.hugging_face.partition(".")[0] for key in family.keys} | REFUSED.keys()
    standard = family.standard(document)

    def is_read_by_rule(name: str) -> bool:
        rest = {key: value for key, value in document.items() if key != name}
        try:
            without = family.standard(rest)
        except (KeyError, ValueError):
            return True
        return {**standard, name: None} != {**without, name: None}

    unread = [
        f"`{name}`"
        for name in _list_keys(standard, {})["hugging_face"]
        if name not in rows and not (name in document and is_read_by_rule(name))
    ]
    if not unread:
        return ""
    return (
        f"the family {family.name} does not read {join_names(unread, _MOST)}, so the model may "
        "compute something else"
    )


def _rank(each: Likeness) -> tuple[int, int, bool, int]:
    """Return the rank of a family; of those that are equally similar, the plainest has the best."""
    is_usual = each.family.name == _USUAL
    return len(each.common), -len(each.unread), is_usual, -len(each.family.names)


def _list_keys(
    document: Mapping[str, Any], metadata: Mapping[str, MetadataValue]
) -> dict[NamingConvention, list[str]]:
    """Return the keys of each naming convention that may change what a model computes.

    GGUF's keys come without the prefix of the architecture.
    """
    architecture = f"{metadata[ARCHITECTURE].content}." if ARCHITECTURE in metadata else None
    own = [key for key, value in document.items() if key not in _ASIDE and _says_something(value)]
    in_gguf = [
        key.removeprefix(architecture)
        for key in metadata
        if architecture is not None and key.startswith(architecture)
    ]
    return {"hugging_face": own, "gguf": in_gguf}


def _says_something(value: object) -> bool:
    return value is not None and value is not False and value != []


def _measure_likeness(
    family: Family,
    kinds: Iterable[str],
    convention: NamingConvention,
    keys: Mapping[NamingConvention, list[str]],
) -> Likeness:
    names = (
        each
        for line in family.names
        for kind in ("weight", "bias")
        if (each := _name_kind(family, line, convention, kind)) is not None
    )
    known = set(names)
    by_kind = {kind: family.plain(kind) in known for kind in kinds}
    common = {kind for kind, is_known in by_kind.items() if is_known}
    beyond = [kind for kind, is_known in by_kind.items() if not is_known]
    read = {
        "gguf": {key.gguf.removeprefix("{arch}.") for key in family.keys},
        "hugging_face": {key.hugging_face.partition(".")[0] for key in family.keys},
    }
    unread = [key for key in keys[convention] if key not in read[convention]]
    return Likeness(family, common, beyond, unread)


def _name_kind(family: Family, line: Name, convention: NamingConvention, kind: str) -> str | None:
    """Return the name of a line's tensor with N in place of numbers, None if it is not stored."""
    name = line.tensor(convention, kind, "N", "N")
    if name is None:
        written = (
            each.tensor(kind, "N", "N")
            for each in family.fusions
            if each.convention == convention and line.module in each.parts
        )
        name = next(written, None)
    return None if name is None else family.plain(name)

"""Recognition of the model family of a checkpoint, and reading of its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from weightctl.errors import ArchitectureError, UnknownArchitectureError
from weightctl.families.checkpoint import RecognizedModel
from weightctl.families.config_file import is_draft, read_config
from weightctl.families.config_values import show_value
from weightctl.families.configs import MODEL_TYPE, from_gguf, from_hugging_face
from weightctl.families.diffusion import find_diffusion
from weightctl.families.index import DRAFTS, FAMILIES
from weightctl.families.matching import match
from weightctl.families.model import ARCHITECTURE, CLIP, SOURCE_TYPE
from weightctl.families.mtp import find_mtp_layers, with_mtp_layers
from weightctl.weights.tree import Checkpoint, header_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from weightctl.families.config_keys import NamingConvention
    from weightctl.families.configs import Read
    from weightctl.families.family import Family
    from weightctl.families.index import FamilyLine
    from weightctl.weights.metadata import MetadataValue

_OF_TOWER = (
    "this is an mmproj file, the tower of a multimodal model: convert the GGUF file of the text "
    "model to a directory, and add this file with --mmproj (mmproj in Python)"
)


def recognize(weights: Checkpoint, config: Mapping[str, Any] | None = None) -> RecognizedModel:
    """Return a checkpoint as a recognized model; no tensor is read.

    The family is read from GGUF metadata, or from `config`, by default the config.json beside the
    files. Raises `ArchitectureError` if its family is not supported, or its config is missing or
    invalid.
    """
    _require_tree(weights)
    metadata, tensors = header_of(weights).metadata, header_of(weights).tensors
    if config is None and (diffusion := find_diffusion(header_of(weights))) is not None:
        raise UnknownArchitectureError(
            f"this is a diffusion transformer ({diffusion.architecture}), which weightctl lists, "
            "compares and converts, but does not run or shard",
            hint="`weightctl ls --families` lists the families of text models",
        )
    if config is None and ARCHITECTURE in metadata:
        where = header_of(weights).files[0] if header_of(weights).files else "the metadata"
        family = _of_name(weights, where)
        read = from_gguf(family, metadata, tensors, where)
        return _checkpoint(weights, family, read, where)
    where, document = read_config(header_of(weights)) if config is None else _check_config(config)
    family = find_typed_family(weights, document, where)
    read = from_hugging_face(family, document, where, tensors)
    return _checkpoint(weights, family, read, where, document)


def find_named_family(weights: Checkpoint) -> Family | None:
    """Return the family that the GGUF metadata name, None if it is not supported."""
    return choose_family(header_of(weights).metadata, header_of(weights).tensors)


def choose_family(metadata: Mapping[str, MetadataValue], tensors: Collection[str]) -> Family | None:
    """Return the family that GGUF metadata name, None if it is not supported.

    If several families have the name, the `model_type` of the source decides, or else
    `Family.is_of` and `Family.lacks`.
    """
    name = metadata[ARCHITECTURE].content
    if name in DRAFTS:
        return DRAFTS[str(name)].load()
    lines = _select(lambda line: line.gguf == name)
    source = metadata[SOURCE_TYPE].content if SOURCE_TYPE in metadata else None
    of_source = [line for line in lines if source in line.model_types]
    if len(of_source) == 1:
        return of_source[0].load()
    alike = [line.load() for line in lines]
    named = [
        family
        for family in alike
        if family.is_of is not None and family.is_of(metadata) and family.lacks not in tensors
    ]
    usual = [family for family in alike if family.is_of is None]
    return next(iter(named or usual), None)


def _require_tree(weights: object) -> None:
    if not isinstance(weights, Checkpoint):
        raise ArchitectureError(
            f"{show_value(weights)} is not a tree of weights",
            hint="use `open_weights(path)` to get one",
        )


def _checkpoint(
    weights: Checkpoint,
    family: Family,
    read: Read,
    where: str,
    document: Mapping[str, Any] | None = None,
) -> RecognizedModel:
    convention: NamingConvention = "gguf" if document is None else "hugging_face"
    fields, config, lost = read.fields, read.config, 0
    if family.mtp is not None:
        header = header_of(weights)
        names = (*header.tensors, *header.aliases)
        mtp, given = find_mtp_layers(family, convention, fields, names)
        config = with_mtp_layers(family, config, fields, given)
        fields, lost = {**fields, **given}, mtp.stated if mtp.is_lost else 0
    found = match(weights, family, convention, config, where)
    return RecognizedModel(
        tree=weights,
        where=where,
        family=family,
        convention=convention,
        config=config,
        fields=fields,
        document=document or {},
        tensors=found.tensors,
        missing=found.missing,
        unexpected=found.unexpected,
        beside=found.beside,
        stored=found.stored,
        outputs_first=found.outputs_first,
        has_mlx_form=found.has_mlx_form,
        lost_mtp=lost,
    )


def _check_config(config: object) -> tuple[str, Mapping[str, Any]]:
    where = "the config"
    if not isinstance(config, Mapping):
        raise ArchitectureError(
            f"{where} is {show_value(config)}, which is not a mapping",
            hint="pass the content of a config.json as a dictionary",
        )
    return where, dict(cast("Mapping[str, Any]", config))


def _of_name(weights: Checkpoint, where: str) -> Family:
    name = header_of(weights).metadata[ARCHITECTURE].content
    found = find_named_family(weights)
    if found is None:
        says = _says(f"`{ARCHITECTURE}`", name, where)
        hint = _OF_TOWER if name == CLIP else _hint(weights, "gguf", {})
        raise UnknownArchitectureError(says, hint=hint)
    return found


def find_typed_family(weights: Checkpoint, document: Mapping[str, Any], where: str) -> Family:
    """Return the family of a config.json's `model_type`; the tensors only decide about hints.

    Raises `UnknownArchitectureError` if the family is not supported.
    """
    found = choose_typed_family(document)
    if found is not None:
        return found
    says = _says(f"`{MODEL_TYPE}`", document.get(MODEL_TYPE), where)
    raise UnknownArchitectureError(says, hint=_hint(weights, "hugging_face", document))


def choose_typed_family(document: Mapping[str, Any]) -> Family | None:
    """Return the family of a config.json's `model_type`, None if it is not supported.

    If several families have the type, `Family.is_of_config` decides.
    """
    if is_draft(document):
        return DRAFTS["eagle3"].load()
    kind = document.get(MODEL_TYPE)
    alike = [line.load() for line in _select(lambda line: kind in line.model_types)]
    if len(alike) == 1:
        return alike[0]
    named = [each for each in alike if each.is_of_config and each.is_of_config(document)]
    usual = [each for each in alike if each.is_of_config is None]
    return next(iter(named or usual), None)


def _select(is_wanted: Callable[[FamilyLine], bool]) -> list[FamilyLine]:
    """Return lines of the table; those of installed packages if no other is wanted."""
    found = [line for line in FAMILIES.values() if is_wanted(line)]
    if not found:
        from weightctl.families.added import add_installed_families  # it looks for packages

        if add_installed_families():
            found = [line for line in FAMILIES.values() if is_wanted(line)]
    return found


def _says(key: str, found: object, where: str) -> str:
    if found is None:
        return f"{where} has no {key}"
    return f"{where}: {key} is {show_value(found)}, a model family that weightctl does not support"


def _hint(weights: Checkpoint, convention: NamingConvention, document: Mapping[str, Any]) -> str:
    from weightctl.families.nearest import describe_nearest

    header = header_of(weights)
    near = describe_nearest(header.tensors.values(), convention, document, header.metadata)
    known = "`weightctl ls --families` lists the supported families, and --family adds one"
    return "; ".join(filter(None, (known, near)))

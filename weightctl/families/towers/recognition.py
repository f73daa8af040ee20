"""Recognition of the tower of a multimodal checkpoint, and of the tower in a file of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.errors import ArchitectureError
from weightctl.families.checkpoint import RecognizedModel
from weightctl.families.config_values import show_value
from weightctl.families.configs import from_gguf, from_hugging_face
from weightctl.families.llama_cpp import describe_difference
from weightctl.families.matching import match
from weightctl.families.model import ARCHITECTURE, CLIP
from weightctl.families.towers import TOWERS, find_tower
from weightctl.formats.huggingface import config as read_document
from weightctl.text.untyped import is_object
from weightctl.weights.derived import Derived, tensor_of
from weightctl.weights.tree import Checkpoint, header_of, source_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.families.towers.tower import Tower
    from weightctl.weights.info import Header

# The file that is written; files that are read, the last of which takes precedence.
PREPROCESSOR = "preprocessor_config.json"
_READ = (PREPROCESSOR, "processor_config.json")
_UP, _DOWN = "ffn_up", "ffn_down"
_PROJECTORS = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")
_SUPPORTED = "weightctl supports the towers "


class RecognizedTower(NamedTuple):
    """A tower, and its checkpoint as a recognized model; `notes` are for the user."""

    tower: Tower
    model: RecognizedModel
    notes: tuple[str, ...] = ()


def find_own_tower(text: RecognizedModel) -> RecognizedTower:
    """Return the tower of a multimodal checkpoint in Hugging Face's convention.

    `text` is the recognized text model of the checkpoint. Raises `ArchitectureError` if the
    checkpoint has no tower, or one that is not supported.
    """
    kind = text.document.get("model_type")
    tower = find_tower(kind) or (find_tower(kind) if _add_installed() else None)
    # The text model that a checkpoint of the same type can contain without the tower.
    if tower is None or not text.beside:
        what = "no tensors of a tower" if tower is not None else f"the type {show_value(kind)}"
        raise ArchitectureError(
            f"{text.where}: the model has {what}, so there is nothing to write to an mmproj file",
            hint=f"leave out --mmproj (mmproj in Python); {_SUPPORTED}{_list_towers()}",
        )
    _refuse_text(tower, text)
    settings, notes = _complete(tower, _read_processor(header_of(text.tree)))
    document = {
        **text.document,
        "text": {
            "hidden_size": text.config.hidden,
            "norm_epsilon": getattr(text.config, "norm_epsilon", None),
        },
        "preprocessor": settings,
    }
    read = from_hugging_face(tower.family, document, text.where)
    source = source_of(text.tree)
    own = {name: tensor_of(source, name) for name in text.beside}
    tree = Checkpoint(Derived(source, own, {}))
    found = match(tree, tower.family, "hugging_face", read.config, text.where)
    model = RecognizedModel(
        tree=tree,
        where=text.where,
        family=tower.family,
        convention="hugging_face",
        config=read.config,
        fields=read.fields,
        document=document,
        **found._asdict(),
    )
    if differs := tower.family.find_difference(read.fields):
        notes = (*notes, describe_difference(differs))
    return RecognizedTower(tower, model, notes)


def read_tower_file(weights: Checkpoint, text: RecognizedModel) -> RecognizedTower:
    """Return the tower in a GGUF file, which belongs to the text model of another file.

    Raises `ArchitectureError` if the file is not an mmproj file, if its tower is not supported, or
    if it belongs to another text model.
    """
    header = header_of(weights)
    where = header.files[0] if header.files else "the tower"
    architecture = header.metadata.get(ARCHITECTURE)
    if architecture is None or architecture.content != CLIP:
        stated = "nothing" if architecture is None else show_value(architecture.content)
        raise ArchitectureError(
            f"{where} is not an mmproj file: `{ARCHITECTURE}` is {stated} instead of `{CLIP}`",
            hint="llama.cpp's converter writes this file with --mmproj",
        )
    named = [header.metadata[key].content for key in _PROJECTORS if key in header.metadata]
    name = str(named[0]) if named else ""
    line = TOWERS.get(name) or (TOWERS.get(name) if _add_installed() else None)
    if line is None:
        says = show_value(named[0]) if named else "missing"
        raise ArchitectureError(
            f"{where}: `{_PROJECTORS[0]}` is {says}, a tower that weightctl does not support",
            hint=f"{_SUPPORTED}{_list_towers()}",
        )
    tower = line.load()
    _refuse_text(tower, text)
    read = from_gguf(tower.family, header.metadata, header.tensors, where)
    given: Any = read.config
    if given.text_hidden != text.config.hidden:
        raise ArchitectureError(
            f"{where} belongs to another model: it projects to vectors of {given.text_hidden} "
            f"values (`projection_dim`), but the hidden size of {text.where} is "
            f"{text.config.hidden}",
            hint="use the mmproj file that was made from the same checkpoint",
        )
    weights = _with_usual_names(weights, given)
    found = match(weights, tower.family, "gguf", read.config, where)
    model = RecognizedModel(
        tree=weights,
        where=where,
        family=tower.family,
        convention="gguf",
        config=read.config,
        fields=read.fields,
        document={},
        **found._asdict(),
    )
    return RecognizedTower(tower, model)


def _with_usual_names(weights: Checkpoint, config: Any) -> Checkpoint:
    """Return the tensors of a tower with the names of the MLP that converters write now.

    Older converters swapped the names of its two matrices. llama.cpp detects that by
    their shapes, too.
    """
    tensors = header_of(weights).tensors
    first = tensors.get(f"v.blk.0.{_DOWN}.weight")
    swapped = (config.intermediate, config.hidden)
    if first is None or first.shape != swapped or config.intermediate == config.hidden:
        return weights
    source = source_of(weights)
    names = {name: name.replace(_DOWN, _UP) for name in tensors if _DOWN in name}
    names |= {name: name.replace(_UP, _DOWN) for name in tensors if _UP in name}
    renamed = {names.get(name, name): tensor_of(source, name) for name in tensors}
    return Checkpoint(Derived(source, renamed, header_of(weights).metadata))


def _refuse_text(tower: Tower, text: RecognizedModel) -> None:
    if text.family.name not in tower.texts:
        raise ArchitectureError(
            f"{text.where}: {tower.family.name} cannot be beside a text model of the family "
            f"{text.family.name}",
            hint=f"text models of this tower: {', '.join(tower.texts)}",
        )


def _read_processor(header: Header) -> dict[str, Any]:
    """Return the settings of the image processor in the files beside a checkpoint."""
    made: dict[str, Any] = {}
    for name in _READ:
        document = read_document(header, name)
        inner = document.get("image_processor")
        made |= {**document, **(inner if is_object(inner) else {})}
    return made


def _complete(
    tower: Tower, settings: Mapping[str, Any]
) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return the settings with mean and deviation, and notes on those that are assumed."""
    if not tower.mean:
        return settings, ()
    usual = {"image_mean": list(tower.mean), "image_std": list(tower.deviation)}
    missing = [name for name in usual if settings.get(name) is None]
    if not missing:
        return settings, ()
    note = (
        f"{PREPROCESSOR} is missing or lacks {' and '.join(missing)}: the usual values of "
        f"{tower.family.name} are written"
    )
    return {**settings, **{name: usual[name] for name in missing}}, (note,)


def _add_installed() -> bool:
    from weightctl.families.added import add_installed_families  # it looks for packages

    return add_installed_families()


def _list_towers() -> str:
    return ", ".join(f"`{name}`" for name in TOWERS)

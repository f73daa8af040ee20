"""Reading of the config.json beside a checkpoint's files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError, FormatError
from weightctl.families.model import ARCHITECTURE, DRAFT_LAYER
from weightctl.formats.huggingface import CONFIG, model_directory
from weightctl.storage.files import open_reader
from weightctl.text.untyped import is_object, object_of
from weightctl.weights.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.info import Header

# The longest known ones list a few hundred thousand labels.
_MAX_SIZE = 20_000_000
_HINT = (
    "download config.json from where you got the checkpoint, or pass its content as `config` in "
    "Python"
)


def read_config(header: Header) -> tuple[str, Mapping[str, Any]]:
    """Return the path and the content of the config.json beside a checkpoint.

    That of a draft model is completed by that of its target, if this is named. Raises
    `ArchitectureError` if it is missing, cannot be read, or is not a JSON object.
    """
    directory = model_directory(header)
    if directory is None:
        raise ArchitectureError(
            "tensors in memory have no config.json",
            hint="pass the content of config.json as `config`",
        )
    path = os.path.join(directory, CONFIG)
    document = _read(path, header)
    if not is_draft(document):
        return path, document
    from weightctl.families.eagle3 import standard_draft

    place = header.documents.target
    target = _read(os.path.join(place, CONFIG), header) if place else None
    try:
        return path, standard_draft(document, target)
    except ValueError as error:
        raise ArchitectureError(f"{os.path.join(place, CONFIG)}: {error}") from error


def is_draft(document: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of an EAGLE-3 draft."""
    if document.get("draft_vocab_size") is None:
        return False
    # llama.cpp's converter decides by the number of layers, because not all name their class.
    layers = {**object_of(document, DRAFT_LAYER), **document}.get("num_hidden_layers")
    return layers == 1 or "eagle3" in str(document.get("architectures")).lower()


def _read(path: str, header: Header) -> Mapping[str, Any]:
    try:
        file = open_reader(path)
    except FormatError as error:
        why = f"the GGUF has no `{ARCHITECTURE}`, and " if header.format == "gguf" else ""
        raise ArchitectureError(
            f"{path}: {error.reason}; {why}weightctl needs config.json to detect the model family",
            hint=_HINT,
        ) from error
    try:
        document = read_json(file, _MAX_SIZE, _unique)
    except FormatError as error:
        raise ArchitectureError(f"{path}: {error.reason}", hint=_HINT) from error
    if not is_object(document):
        raise ArchitectureError(f"{path}: the file is not a JSON object", hint=_HINT)
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made and made[key] != value:
            raise ValueError(f"`{key}` appears twice with different values")
        made[key] = value
    return made

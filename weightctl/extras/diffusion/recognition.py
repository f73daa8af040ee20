"""Recognition of diffusion transformers by config.json, metadata, and the names of tensors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from weightctl.extras.diffusion.index import FAMILIES, find_architecture
from weightctl.families.diffusion import CONFIG_KEY, PREFIXES, FoundDiffusion
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import CLASS_NAME, config, is_config_of
from weightctl.text.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.extras.diffusion.index import DiffusionLine
    from weightctl.families.config_keys import NamingConvention
    from weightctl.weights.info import Header


def find_names(header: Header) -> FoundDiffusion | None:
    """Return what a header shows of a diffusion transformer; None if it is not one.

    The family is the one that config.json or GGUF metadata state; else the names of the tensors
    show it.
    """
    beside = _read_beside(header)
    stated = beside or _read_kept(header)
    architecture = None
    if ARCHITECTURE in header.metadata:
        architecture = str(header.metadata[ARCHITECTURE].content)
    elif CLASS_NAME in stated:
        architecture = find_architecture(stated[CLASS_NAME]) or ""
    usual: NamingConvention = "hugging_face" if beside else "gguf"
    for name, line in FAMILIES.items():
        if architecture in {None, name}:
            found = _find_convention(header, line, usual)
            if found is not None or architecture is not None:
                convention, prefix = found or (usual, "")
                return FoundDiffusion(name, convention, prefix, stated)
    return None


def _find_convention(
    header: Header, line: DiffusionLine, usual: NamingConvention
) -> tuple[NamingConvention, str] | None:
    """Return the naming convention and the prefix of a family's names, None without them.

    If the names are the same in both conventions, it is the usual one.
    """
    markers: dict[NamingConvention, tuple[str, ...]] = {
        "gguf": line.original,
        "hugging_face": line.diffusers,
    }
    if line.original == line.diffusers:
        markers = {usual: line.original}
    for convention, names in markers.items():
        for prefix in PREFIXES:
            if all(prefix + each in header.tensors for each in names):
                return convention, prefix
    return None


def _read_beside(header: Header) -> Mapping[str, Any]:
    """Return the config of diffusers beside a checkpoint that it describes, empty without one."""
    document = config(header)
    return document if CLASS_NAME in document and is_config_of(document, header) else {}


def _read_kept(header: Header) -> Mapping[str, Any]:
    """Return the config of diffusers in the metadata, empty without a valid one."""
    kept = header.metadata.get(CONFIG_KEY)
    try:
        content = json.loads(kept.content) if kept and isinstance(kept.content, str) else None
    except (ValueError, RecursionError):
        return {}
    return content if is_object(content) else {}

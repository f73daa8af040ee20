"""The config.json that stands beside a checkpoint's files."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from weightctl.archs.model import ARCHITECTURE
from weightctl.errors import ArchitectureError, FormatError
from weightctl.untyped import is_object
from weightctl.weights.mapping import MappedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.info import Header

__all__ = ["NAME", "read_config"]

NAME = "config.json"
# The longest that are known list a few hundred thousand labels.
_MAX_SIZE = 20_000_000
_HINT = "fetch it from where the checkpoint is from, or give its content as `config`"


def read_config(header: Header) -> tuple[str, Mapping[str, Any]]:
    """Return the path and the content of the config.json beside a checkpoint.

    Raises `ArchitectureError` where there is none that is a JSON object.
    """
    if not header.files:
        raise ArchitectureError(
            "tensors in memory have no config.json beside them", hint="give it as `config`"
        )
    path = os.path.join(os.path.dirname(header.files[0]), NAME)
    try:
        file = MappedFile(path)
        if file.size > _MAX_SIZE:
            raise ArchitectureError(f"{path}: a config of {file.size} bytes is none", hint=_HINT)
        document = json.loads(str(file.whole, "utf-8"), object_pairs_hook=_unique)
    except FormatError as error:
        why = f"the GGUF has no `{ARCHITECTURE}`, and " if header.format == "gguf" else ""
        raise ArchitectureError(
            f"{path}: {error.reason}; {why}without it nothing tells how the model is built",
            hint=_HINT,
        ) from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, ArchitectureError):
            raise
        raise ArchitectureError(f"{path}: it is no JSON: {error}", hint=_HINT) from error
    if not is_object(document):
        raise ArchitectureError(f"{path}: it is no JSON object", hint=_HINT)
    return path, document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made and made[key] != value:
            raise ValueError(f"`{key}` stands twice, with different values")
        made[key] = value
    return made

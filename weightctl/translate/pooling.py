"""The pooling of sentence encoders, which computes one vector from those of all tokens."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from weightctl.errors import ArchitectureError, FormatError
from weightctl.storage.files import exists, open_reader
from weightctl.text.untyped import is_list, is_object
from weightctl.weights.json_file import read_json
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# llama.cpp's `llama_pooling_type`, by keys in the config of a `Pooling` module.
_KINDS = {
    "pooling_mode_mean_tokens": 1,
    "pooling_mode_cls_token": 2,
    "pooling_mode_lasttoken": 3,
}
_MAX_SIZE = 1_000_000
_HINT = "move modules.json away to convert the model without its pooling"


def pooling_keys(
    directory: str, architecture: str, tell: Callable[[str], object]
) -> dict[str, MetadataValue]:
    """Return the metadata key of GGUF for a directory's pooling; empty if it has none.

    If the config of the pooling is missing, `tell` is called with a sentence. Raises
    `ArchitectureError` if it cannot be read, or if llama.cpp does not support the pooling.
    """
    modules = _content(os.path.join(directory, "modules.json"))
    if not is_list(modules):
        return {}
    for module in modules:
        if not is_object(module) or not str(module.get("type")).endswith(".Pooling"):
            continue
        path = os.path.join(directory, _below(module.get("path"), directory), "config.json")
        config = _content(path)
        key = f"{architecture}.pooling_type"
        if is_object(config):
            return {key: MetadataValue("u32", _kind(config, path))}
        tell(
            f"{path} is missing, so the GGUF does not define the pooling of sentence "
            f"embeddings: download the file, or use --set {key}:u32=1 (metadata in "
            "Python) for mean pooling"
        )
    return {}


def _below(path: object, directory: str) -> str:
    """Return the path of a module; raises `ArchitectureError` if it is outside of the directory."""
    if (
        not isinstance(path, str)
        or os.path.isabs(path)
        or ".." in path.replace("\\", "/").split("/")
    ):
        raise ArchitectureError(
            f"{os.path.join(directory, 'modules.json')}: the pooling path {path!r:.200} "
            "is not inside the directory",
            hint=_HINT,
        )
    return path


def _kind(config: Mapping[str, Any], path: str) -> int:
    chosen = [kind for key, kind in _KINDS.items() if config.get(key) is True]
    if len(chosen) != 1:
        raise ArchitectureError(
            f"{path}: llama.cpp supports only pooling by mean, first token or last token, but the "
            "config selects none of these",
            hint=_HINT,
        )
    return chosen[0]


def _content(path: str) -> object:
    if not exists(path):
        return None
    try:
        return read_json(open_reader(path), _MAX_SIZE)
    except FormatError as error:
        raise ArchitectureError(f"{path}: {error.reason}", hint=_HINT) from error

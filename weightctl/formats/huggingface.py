"""What stands beside a checkpoint in a model's directory, as Hugging Face lays it out."""

from __future__ import annotations

import json
import os
import shutil
from typing import IO, TYPE_CHECKING, Any, TypeGuard

from weightctl.untyped import is_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["carry", "companions", "config", "file_name"]

_SUFFIXES = (".json", ".txt", ".model", ".md", ".jinja", ".tiktoken", ".py")
_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
_MAX_SIZE = 100_000_000
_CONFIG = "config.json"
_ADAPTER_CONFIG = "adapter_config.json"


def companions(files: Sequence[str]) -> Mapping[str, str]:
    """Return the files to carry along with a checkpoint, by name: config, tokenizer, licence.

    A directory without the config of a model or an adapter is none of a model, and nothing is
    carried from it.
    """
    directory = os.path.dirname(files[0]) if files else ""
    configs = (os.path.join(directory, name) for name in (_CONFIG, _ADAPTER_CONFIG))
    if not files or not any(map(os.path.isfile, configs)):
        return {}
    return {
        entry.name: entry.path
        for entry in os.scandir(directory or ".")
        if entry.is_file()
        and entry.stat().st_size <= _MAX_SIZE
        and not entry.name.endswith(".index.json")
        and (entry.name.endswith(_SUFFIXES) or entry.name.startswith(_NAMES))
    }


def file_name(files: Sequence[str], usual: str) -> str:
    """Return what the file in a model's directory is called, `adapter_model` where it is PEFT's."""
    directory = os.path.dirname(files[0]) if files else ""
    is_adapter = files and os.path.isfile(os.path.join(directory, _ADAPTER_CONFIG))
    if not is_adapter or os.path.isfile(os.path.join(directory, _CONFIG)):
        return usual
    return "adapter_model" + os.path.splitext(usual)[1]


def carry(companions: Mapping[str, str], directory: str, dtype: str | None) -> None:
    """Copy companions into a directory; the config gets to know the dtype of the weights.

    `dtype` is torch's name of it, None where the weights stay as they are. Raises `OSError`.
    """
    for name, path in companions.items():
        copy = os.path.join(directory, name)
        document: Mapping[str, Any] = {}
        if name == _CONFIG and dtype is not None:
            document = _document(path)
        if not _states_dtype(document):
            with open(path, "rb") as source, open(copy, "xb") as target:
                shutil.copyfileobj(source, target)
                _sync(target)
            continue
        with open(copy, "x", encoding="utf-8") as stream:
            json.dump(_with_dtype(document, dtype), stream, indent=2)
            stream.write("\n")
            _sync(stream)


_DTYPES = ("torch_dtype", "dtype")


def _states_dtype(document: Mapping[str, Any]) -> bool:
    below = (value for key, value in document.items() if _is_config(key, value))
    return any(key in document for key in _DTYPES) or any(map(_states_dtype, below))


def _is_config(key: str, value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is the config of a part of the model, as `text_config` is."""
    return key.endswith("_config") and key != "quantization_config" and is_object(value)


def _with_dtype(document: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    """State the dtype wherever one is stated: models of text and images have configs inside."""
    return {
        key: dtype
        if key in _DTYPES and isinstance(value, str)
        else _with_dtype(value, dtype)
        if _is_config(key, value)
        else value
        for key, value in document.items()
    }


def _sync(stream: IO[Any]) -> None:
    stream.flush()
    os.fsync(stream.fileno())


def config(files: Sequence[str], name: str = _CONFIG) -> Mapping[str, Any]:
    """Return the config.json beside a checkpoint; empty where there is none that is JSON.

    `name` is that of another such file, as `adapter_config.json`.
    """
    return _document(os.path.join(os.path.dirname(files[0]), name)) if files else {}


def _document(path: str) -> Mapping[str, Any]:
    try:
        if os.path.getsize(path) > _MAX_SIZE:
            return {}
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError, RecursionError):
        return {}
    return document if is_object(document) else {}

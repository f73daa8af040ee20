"""The files beside a checkpoint in a model's directory, as Hugging Face lays it out."""

from __future__ import annotations

import json
import os
from typing import IO, TYPE_CHECKING, Any, TypeGuard

from weightctl.errors import FormatError
from weightctl.formats.sharded.record import MANIFEST
from weightctl.storage.location import open_reader
from weightctl.text.untyped import is_object
from weightctl.weights.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

__all__ = [
    "CONFIG",
    "carry",
    "companions",
    "config",
    "file_name",
    "is_config_of",
    "is_licence",
    "json_document",
    "write_beside",
]

CONFIG = "config.json"

_SUFFIXES = (".json", ".txt", ".model", ".md", ".jinja", ".tiktoken", ".py")
_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
_MAX_SIZE = 100_000_000
_COPIED = 1 << 20
ADAPTER_CONFIG = "adapter_config.json"
# How the files that a config.json describes are called.
_USUAL_NAMES = (
    "model", "pytorch_model", "adapter_model", "diffusion_pytorch_model", "consolidated",
)  # fmt: skip
# The sizes in a config that are dimensions of tensors, by the name of the first.
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim")
_OTHER_SIZES = ("vocab_size", "intermediate_size", "n_inner", "d_ff", "ffn_dim")


def companions(files: Sequence[str]) -> Mapping[str, str]:
    """Return the files to carry along with a checkpoint, by name: config, tokenizer, licence.

    A directory without the config of a model or an adapter is none of a model, and nothing is
    carried from it.
    """
    directory = os.path.dirname(files[0]) if files else ""
    configs = (os.path.join(directory, name) for name in (CONFIG, ADAPTER_CONFIG))
    if not files or not any(map(os.path.isfile, configs)):
        return {}
    return {
        entry.name: entry.path
        for entry in os.scandir(directory or ".")
        if entry.is_file()
        and entry.stat().st_size <= _MAX_SIZE
        and not entry.name.endswith(".index.json")
        and not _is_manifest(entry)
        and (entry.name.endswith(_SUFFIXES) or is_licence(entry.name))
    }


def _is_manifest(entry: os.DirEntry[str]) -> bool:
    """Whether a file says which rank has what of a checkpoint, which is true of no other."""
    from weightctl.formats.sharded.manifest import is_manifest  # seldom needed

    return entry.name == MANIFEST and is_manifest(entry.path)


def is_licence(name: str) -> bool:
    """Whether a file says under which terms a model may be used, by its name."""
    return name.startswith(_NAMES)


def file_name(files: Sequence[str], usual: str) -> str:
    """Return what the file in a model's directory is called, `adapter_model` where it is PEFT's."""
    directory = os.path.dirname(files[0]) if files else ""
    is_adapter = files and os.path.isfile(os.path.join(directory, ADAPTER_CONFIG))
    if not is_adapter or os.path.isfile(os.path.join(directory, CONFIG)):
        return usual
    return "adapter_model" + os.path.splitext(usual)[1]


def carry(companions: Mapping[str, str], directory: str, dtype: str | None) -> None:
    """Copy companions into a directory; the config gets to know the dtype of the weights.

    `dtype` is torch's name of it, None if the weights stay as they are. Raises `OSError`.
    """
    for name, path in companions.items():
        copy = os.path.join(directory, name)
        document: Mapping[str, Any] = {}
        if name == CONFIG and dtype is not None:
            document = _document(path)
        made = _stating(document, dtype)
        if made is None:
            source = _open_file(path)
            with open(copy, "xb") as target:
                starts = range(0, source.size, _COPIED)
                target.writelines(source.read(start, _COPIED) for start in starts)
                source.refuse_change()
                _sync(target)
            continue
        with open(copy, "xb") as stream:
            stream.write(made)
            _sync(stream)


def _open_file(path: str) -> Reader:
    try:
        return open_reader(path)
    except FormatError as error:
        hint = "check the permissions of the file; it is copied beside the output"
        raise FormatError(path, None, error.reason, hint=hint) from error


def write_beside(documents: Mapping[str, bytes], directory: str, dtype: str | None) -> None:
    """Write documents into a directory; the config gets to know the dtype as in `carry`.

    Raises `OSError`.
    """
    for name, content in documents.items():
        made = None
        if name == CONFIG and dtype is not None:
            made = _stating(json.loads(content), dtype)
        with open(os.path.join(directory, name), "xb") as stream:
            stream.write(content if made is None else made)
            _sync(stream)


def json_document(content: Mapping[str, Any]) -> bytes:
    """Return a JSON object as transformers writes its configs: indented, and in ASCII alone."""
    return (json.dumps(content, indent=2) + "\n").encode("ascii")


_DTYPES = ("torch_dtype", "dtype")


def _stating(document: Mapping[str, Any], dtype: str | None) -> bytes | None:
    """Return a config with another dtype, None if it states none or is nested too deeply."""
    try:
        return json_document(_with_dtype(document, dtype)) if _states_dtype(document) else None
    except RecursionError:
        return None


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


def config(files: Sequence[str], name: str = CONFIG) -> Mapping[str, Any]:
    """Return the config.json beside a checkpoint; empty if there is none that is JSON.

    `name` is that of another such file, as `adapter_config.json`.
    """
    return _document(os.path.join(os.path.dirname(files[0]), name)) if files else {}


def is_config_of(document: Mapping[str, Any], header: Header) -> bool:
    """Whether the config.json beside a checkpoint describes it, not another file of the directory.

    It describes files that have the usual names, and those whose tensors have the sizes that it
    states. A GGUF that states its architecture describes itself.
    """
    if "general.architecture" in header.metadata or not header.files:
        return False
    first, *others = header.files
    if header.listing or others or os.path.basename(first).startswith(_USUAL_NAMES):
        return True
    configs = [document, *(value for key, value in document.items() if _is_config(key, value))]
    widths, sizes = (_sizes(configs, keys) for keys in (_WIDTHS, _OTHER_SIZES))
    present = {size for info in header.tensors.values() for size in info.shape}
    return not widths.isdisjoint(present) and not (sizes and sizes.isdisjoint(present))


def _sizes(configs: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> set[int]:
    values = (config.get(key) for config in configs for key in keys)
    return {value for value in values if isinstance(value, int)}


def _document(path: str) -> Mapping[str, Any]:
    try:
        document = read_json(open_reader(path), _MAX_SIZE)
    except FormatError:
        return {}
    return document if is_object(document) else {}

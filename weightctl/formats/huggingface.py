"""The other files in a model directory of Hugging Face: config, tokenizer, license."""

from __future__ import annotations

import json
import os
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard

from weightctl.errors import FormatError
from weightctl.formats import DIRECTORY_FORMATS, FORMATS, INDEX_SUFFIX, OTHER_SUFFIXES
from weightctl.formats.sharded.opening import MANIFEST, is_manifest
from weightctl.formats.training.detection import DIRECTORY_OF_RANK
from weightctl.storage.files import (
    exists,
    file_size,
    is_directory,
    is_file,
    list_names,
    open_reader,
    prepare,
)
from weightctl.system.temporary import is_temporary
from weightctl.text.sizes import format_size
from weightctl.text.untyped import is_list, is_object
from weightctl.text.wording import join_names
from weightctl.weights.info import TOKENIZER_FILES
from weightctl.weights.json_file import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from weightctl.storage.base import Reader
    from weightctl.weights.info import Header

CONFIG = "config.json"
# The config of an OpenCLIP model.
OPEN_CLIP = "open_clip_config.json"
# The key of diffusers' config.json that names the class of the model.
CLASS_NAME = "_class_name"

_NAMES = ("LICENSE", "LICENCE", "NOTICE", "USE_POLICY")
# The usual names of files beside the weights, for web servers, which cannot list a directory.
_USUAL_COMPANIONS = (
    "config.json", "generation_config.json", "adapter_config.json", "preprocessor_config.json",
    *TOKENIZER_FILES, "processor_config.json", "config_sentence_transformers.json",
    "sentence_bert_config.json", "1_Pooling/config.json", "modules.json", "README.md", "LICENSE",
    "LICENSE.txt", "LICENSE.md",
)  # fmt: skip
_MAX_SIZE = 100_000_000
_MAX_FILES = 1000
# The suffixes of weights, also in formats that are not supported.
_WEIGHTS = (
    *chain.from_iterable(line.suffixes for line in (FORMATS | DIRECTORY_FORMATS).values()),
    *OTHER_SUFFIXES,
)
# Files of Orbax, whose folders have weights.
_ORBAX = frozenset({"manifest.ocdbt", "_CHECKPOINT_METADATA", "_METADATA"})
ADAPTER_CONFIG = "adapter_config.json"
# The usual names of files with weights, which a config.json describes.
_USUAL_NAMES = (
    "model", "pytorch_model", "adapter_model", "diffusion_pytorch_model", "consolidated",
)  # fmt: skip
# Keys of config sizes that are dimensions of tensors; a config has one of `_WIDTHS`.
_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "hidden_dim")
_OTHER_SIZES = ("vocab_size", "intermediate_size", "n_inner", "d_ff", "ffn_dim")


def model_directory(header: Header) -> str | None:
    """Return the directory of the config and the tokenizer of a checkpoint; None without files.

    By default it is that of the first file, or the directory above that of a rank of Megatron-LM.
    """
    if header.documents.config or not header.files:
        return header.documents.config or None
    directory = os.path.dirname(header.files[0])
    is_of_rank = DIRECTORY_OF_RANK.fullmatch(os.path.basename(directory))
    return os.path.dirname(directory) if is_of_rank else directory


def companions(header: Header) -> dict[str, str]:
    """Return the paths of the files to copy with a checkpoint, by name: config, tokenizer, license.

    These are all files of the directory and of its folders, except weights, indices, caches, hidden
    files and what is large. Returns nothing for a directory without the config of a model or an
    adapter, because it is not a model directory.
    """
    found, _ = _list_beside(header)
    if directory := header.documents.tokenizer:
        own = {name: os.path.join(directory, name) for name in TOKENIZER_FILES}
        found = {name: path for name, path in (found | own).items() if is_file(path)}
    return found


def describe_left_out(header: Header) -> list[str]:
    """Return a note on the files beside a checkpoint that are not copied with it, if there are any.

    Hidden files, caches, indices and the files of the checkpoint itself are not mentioned.
    """
    beside = {} if header.documents.config else _list_beside(header)[1]
    left_out = [f"{name} ({why})" for name, why in beside.items()]
    return [f"not copied: {join_names(left_out, 5)}"] if left_out else []


def _list_beside(header: Header) -> tuple[dict[str, str], dict[str, str]]:
    """Return the paths of the files to copy, and why others are left out, both by name."""
    found: dict[str, str] = {}
    left_out: dict[str, str] = {}
    directory = model_directory(header)
    configs = (os.path.join(directory or "", name) for name in (CONFIG, ADAPTER_CONFIG))
    if directory is None or not any(map(is_file, configs)):
        return found, left_out
    names = _list_names(directory)
    is_orbax = not _ORBAX.isdisjoint(names)
    modules = _list_modules(directory)
    for name in names:
        path = os.path.join(directory, name)
        is_own = any(file == path or file.startswith(f"{path}/") for file in header.files)
        if is_own or _is_ignored(name) or (name == MANIFEST and is_manifest(path)):
            continue
        if is_orbax and not is_file(path):
            continue
        inside, why = _list_inside(path, name, is_module=name in modules)
        found |= inside
        left_out |= {name: why} if why else {}
    return found, left_out


def _list_modules(directory: str) -> set[str]:
    """Return the folders of the further modules of a model for sentence embeddings."""
    try:
        content = read_json(open_reader(os.path.join(directory, "modules.json")), _MAX_SIZE)
    except FormatError:
        return set()
    found = filter(is_object, content) if is_list(content) else ()
    return {str(each.get("path")) for each in found}


def _list_inside(path: str, name: str, *, is_module: bool) -> tuple[dict[str, str], str]:
    """Return the files to copy of an entry of a directory, or why it is left out.

    A folder is copied as a whole or not at all; only with `is_module`, it can contain weights.
    """
    found: dict[str, str] = {}
    size, waiting = 0, [(name, path)]
    while waiting:
        at, path = waiting.pop()
        if is_file(path):
            if at.lower().endswith(_WEIGHTS) and not is_module:
                return {}, "weights"
            size += file_size(path)
            found[at] = path
        elif is_directory(path) and not os.path.islink(path):
            try:
                names = [each for each in list_names(path) if not _is_ignored(each)]
            except (OSError, FormatError):
                return {}, "it cannot be listed"
            if not _ORBAX.isdisjoint(names):
                return {}, "weights"
            waiting += [(f"{at}/{each}", os.path.join(path, each)) for each in names]
        elif exists(path):
            return {}, "a link to a folder" if is_directory(path) else "not a file"
        if size > _MAX_SIZE or len(found) + len(waiting) > _MAX_FILES:
            return {}, f"more than {format_size(_MAX_SIZE)} or {_MAX_FILES} files"
    return dict(sorted(found.items())), ""


def _is_ignored(name: str) -> bool:
    """Whether a file is hidden, a cache, an index, or a temporary file."""
    is_cache = name.startswith(".") or name == "__pycache__"
    return is_cache or name.endswith(INDEX_SUFFIX) or is_temporary(name)


def _list_names(directory: str) -> Sequence[str]:
    """Return the names in a directory; if it cannot be listed, return the usual names."""
    try:
        return list_names(directory)
    except FormatError:
        prepare([os.path.join(directory, name) for name in _USUAL_COMPANIONS])
        return _USUAL_COMPANIONS


def is_license(name: str) -> bool:
    """Whether a file has the name of a license."""
    return name.startswith(_NAMES)


def file_name(header: Header, usual: str, documents: Mapping[str, bytes]) -> str:
    """Return the name of an output in a model directory, in which it has some documents.

    It is `usual`, `adapter_model` for PEFT, `diffusion_pytorch_model` for diffusers, or
    `open_clip_model` for OpenCLIP.
    """
    if OPEN_CLIP in documents:
        return "open_clip_model" + os.path.splitext(usual)[1]
    written = json.loads(documents[CONFIG]) if CONFIG in documents else config(header)
    if CLASS_NAME in written:
        return "diffusion_pytorch_model" + os.path.splitext(usual)[1]
    if written or not config(header, ADAPTER_CONFIG):
        return usual
    return "adapter_model" + os.path.splitext(usual)[1]


def open_companion(path: str) -> Reader:
    """Open a file that is copied with the checkpoint; raises `FormatError` if it cannot be read."""
    try:
        return open_reader(path)
    except FormatError as error:
        hint = "weightctl copies this file to the output directory: check that it is readable"
        raise FormatError(path, None, error.reason, hint=hint) from error


def restate_dtype(name: str, source: str | bytes, dtype: str | None) -> bytes | None:
    """Return a config with the dtype of converted weights; None if the file does not change.

    `name` is the name of the file, which can be any file of the directory, and `source` is its path
    or content. `dtype` is torch's name of the new dtype, or None if the weights are not converted.
    """
    if name != CONFIG or dtype is None:
        return None
    document = read_object(source) if isinstance(source, str) else json.loads(source)
    try:
        return json_document(_with_dtype(document, dtype)) if _states_dtype(document) else None
    except RecursionError:  # the document is nested too deeply
        return None


def json_document(content: Mapping[str, Any]) -> bytes:
    """Return a JSON object in the layout of transformers' configs: indented, in ASCII."""
    return (json.dumps(content, indent=2) + "\n").encode("ascii")


_DTYPES = ("torch_dtype", "dtype")


def _states_dtype(document: Mapping[str, Any]) -> bool:
    below = (value for key, value in document.items() if _is_config(key, value))
    return any(key in document for key in _DTYPES) or any(map(_states_dtype, below))


def _is_config(key: str, value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value is the config of a part of the model, such as `text_config`."""
    return key.endswith("_config") and key != "quantization_config" and is_object(value)


def _with_dtype(document: Mapping[str, Any], dtype: str | None) -> dict[str, Any]:
    """Return a config with each dtype replaced, also in nested configs (`text_config`)."""
    return {
        key: dtype
        if key in _DTYPES and isinstance(value, str)
        else _with_dtype(value, dtype)
        if _is_config(key, value)
        else value
        for key, value in document.items()
    }


def config(header: Header, name: str = CONFIG) -> Mapping[str, Any]:
    """Return the content of the config.json beside a checkpoint; empty if missing or not JSON.

    `name` selects another file, such as `adapter_config.json`.
    """
    directory = header.documents.find_directory(name) or model_directory(header)
    return {} if directory is None else read_object(os.path.join(directory, name))


def is_config_of(document: Mapping[str, Any], header: Header) -> bool:
    """Whether the config.json beside a checkpoint describes it, and not another file there.

    It describes files with the usual names, and files whose tensors have the sizes that the config
    states. It does not describe a GGUF that states its own architecture.
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
    return {each[key] for each in configs for key in keys if isinstance(each.get(key), int)}


def read_object(path: str) -> Mapping[str, Any]:
    """Return the content of a JSON file; empty if it is missing, damaged, or not an object."""
    try:
        document = read_json(open_reader(path), _MAX_SIZE)
    except FormatError:
        return {}
    return document if is_object(document) else {}

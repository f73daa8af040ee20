"""Models that other programs keep on this machine, and the names under which people know them.

The places are the cache of the Hugging Face Hub (`models--ORG--NAME/snapshots/COMMIT`), the store
of Ollama (manifests that name blobs by SHA-256), and the folders of LM Studio (`PUBLISHER/NAME`).
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, NamedTuple

from weightctl.errors import FormatError
from weightctl.storage.location import is_remote, parse_location
from weightctl.system.files import SEPARATORS
from weightctl.text.untyped import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterator

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MAIN = "main"
_IN_CACHE = "models--"
# Web pages of a model, of one of its files, or of a directory.
_PAGE = re.compile(
    r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/(?P<repository>[\w.-]+/[\w.-]+)"
    r"(?:/(?:blob|tree)/(?P<revision>[^/?#]+)(?P<path>/[^?#]*)?)?/?(?:[?#].*)?"
)
_NOT_MODELS = {"datasets", "spaces", "docs", "blog", "papers", "collections", "api"}
_REPOSITORY = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<path>[^:]+))?")
# Names that are more alike are suggested for each other.
_ALIKE = 0.85
_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?(?::[\w.-]+)?")
# Of a reference to a model of Ollama, only the name is required.
_REFERENCE = re.compile(r"(?:ollama://)?(?P<path>[\w.-]+(?:/[\w.-]+)*)(?::(?P<tag>[\w.-]+))?")
_REGISTRY, _LIBRARY, _LATEST = "registry.ollama.ai", "library", "latest"
_MODEL_LAYER = "application/vnd.ollama.image.model"
# A manifest has some hundred bytes.
_MOST_READ = 1 << 20
_UNSUPPORTED = {
    "modelscope": "use `modelscope download`, and the path of the directory that it prints",
    "ollama": "`ollama list` shows the models of this machine, such as smollm2:135m",
}


class LocalModel(NamedTuple):
    """A model that another program keeps: its name, the program's, and the path of its files."""

    name: str
    program: str
    path: str


def find_model(text: str) -> str:
    """Return the path or URL of the model that a text names; the text itself if it is a path.

    The text can also be the address of a page of the Hugging Face Hub, a folder of its cache, or
    the name of a model on this machine: `ORG/NAME` and `ORG/NAME/FILE` in the cache of the Hub or
    among the models of LM Studio, and `NAME:TAG` in the store of Ollama. Raises `FormatError` for
    URLs of places that are not supported.
    """
    if page := _PAGE.fullmatch(text):
        return _find_page(page) or parse_location(text).name
    if is_remote(text):
        return parse_location(text).name
    path = parse_location(text).name
    if os.path.lexists(path):
        return _find_model_of(path) or path
    if found := _find_in_cache(text) or _find_in_lm_studio(text) or _find_in_ollama(text):
        return found
    scheme, separator, _ = text.partition("://")
    if separator and scheme in _UNSUPPORTED:
        raise FormatError(text, None, f"{scheme}:// is not supported", hint=_UNSUPPORTED[scheme])
    return path


def list_local_models() -> Iterator[LocalModel]:
    """Yield the models that other programs keep on this machine, each place in order of names."""
    for folder in _list_names(hub_cache()):
        if folder.startswith(_IN_CACHE) and (root := _find_snapshot(hub_cache(), folder)):
            repository = folder.removeprefix(_IN_CACHE).replace("--", "/", 1)
            yield LocalModel(repository, "Hugging Face", root)
    for store in _list_ollama_stores():
        yield from _list_ollama_models(store)
    for root in _list_lm_studio_folders():
        for publisher in _list_names(root):
            for name in _list_names(os.path.join(root, publisher)):
                path = os.path.join(root, publisher, name)
                if os.path.isdir(path):
                    yield LocalModel(f"{publisher}/{name}", "LM Studio", path)


def hint_for_name(text: str) -> str:
    """Return a hint with the name of a model or file that is like a text; empty if none is."""
    import difflib

    directory, base = os.path.split(text)
    files = _list_names(directory or ".")
    names = [model.name for model in list_local_models()] if _NAME.fullmatch(text) else []
    near = next((name for name in files if os.path.splitext(name)[0] == base), "")
    near = near or next(iter(difflib.get_close_matches(base, files, 1, _ALIKE)), "")
    if near:
        return f"did you mean {os.path.join(directory, near)}?"
    near = next((name for name in names if text.lower() in name.lower()), "")
    near = near or next(iter(difflib.get_close_matches(text, names, 1, _ALIKE)), "")
    return f"did you mean `{near}`? `weightctl ls` lists the models on this machine" if near else ""


def name_blob(path: str) -> str:
    """Return the name of the model of Ollama that is at a path; empty if there is none."""
    store = os.path.dirname(os.path.dirname(os.path.abspath(path)))
    return next((each.name for each in _list_ollama_models(store) if each.path == path), "")


# The cache of the Hugging Face Hub.


def hub_home() -> str:
    """Return the directory in which the Hub's tools keep their files."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    return expand(os.environ.get("HF_HOME") or os.path.join(cache, "huggingface"))


def hub_cache() -> str:
    """Return the directory of the cache of the Hub's tools."""
    names = ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE")
    given = next((os.environ[name] for name in names if os.environ.get(name)), "")
    return expand(given) if given else os.path.join(hub_home(), "hub")


def find_repository(repository: str) -> str:
    """Return the directory of a repository in the cache, whether or not it exists."""
    return os.path.join(hub_cache(), f"{_IN_CACHE}{repository.replace('/', '--')}")


def is_commit(text: object) -> bool:
    """Whether text is the full hash of a commit."""
    return isinstance(text, str) and _COMMIT.fullmatch(text) is not None


def find_commit(directory: str, revision: str) -> str:
    """Return the commit of a revision that the cache has; empty if it does not have it.

    `directory` is that of the repository in the cache.
    """
    commit = revision
    if not is_commit(commit):
        try:
            with open(os.path.join(directory, "refs", revision), encoding="utf-8") as file:
                commit = file.read(100).strip()
        except (OSError, ValueError):
            return ""
    is_there = is_commit(commit) and os.path.isdir(os.path.join(directory, "snapshots", commit))
    return commit if is_there else ""


def _find_snapshot(cache: str, folder: str) -> str:
    directory = os.path.join(cache, folder)
    commit = find_commit(directory, _MAIN)
    return os.path.join(directory, "snapshots", commit) if commit else ""


def _find_in_cache(text: str) -> str:
    wanted = _REPOSITORY.fullmatch(text)
    if wanted is None:
        return ""
    repository, below = wanted["repository"], wanted["path"] or ""
    root = _find_snapshot(hub_cache(), f"{_IN_CACHE}{repository.replace('/', '--')}")
    path = os.path.join(root, below) if below else root
    return path if root and os.path.exists(path) else ""


def _find_page(page: re.Match[str]) -> str:
    """Return the `hf://` URL of a web page; empty if it is not that of a model."""
    if page["repository"].partition("/")[0] in _NOT_MODELS:
        return ""
    revision = page["revision"] or _MAIN
    at = "" if revision == _MAIN else f"@{revision}"
    return f"hf://{page['repository']}{at}{page['path'] or ''}".rstrip("/")


def _find_model_of(path: str) -> str:
    """Return the model that a folder of the cache or a manifest of Ollama stands for, or empty."""
    parent, name = os.path.split(path.rstrip(SEPARATORS) or path)
    if name.startswith(_IN_CACHE) and os.path.isdir(os.path.join(path, "snapshots")):
        return _find_snapshot(parent or ".", name)
    store, separator, _ = os.path.abspath(path).rpartition(f"{os.sep}manifests{os.sep}")
    return _find_blob(store, path) if separator and os.path.isfile(path) else ""


# Ollama.


def _list_ollama_stores() -> list[str]:
    """Return the stores of Ollama: the user's, and that of its service."""
    given = os.environ.get("OLLAMA_MODELS")
    usual = (os.path.join("~", ".ollama", "models"), "/usr/share/ollama/.ollama/models")
    return [path for path in map(expand, [given] if given else usual) if os.path.isdir(path)]


def _find_in_ollama(text: str) -> str:
    wanted = _REFERENCE.fullmatch(text)
    if wanted is None:
        return ""
    words = wanted["path"].split("/")
    if len(words) == 1:
        words = [_LIBRARY, *words]
    if len(words) == 2:
        words = [_REGISTRY, *words]
    for store in _list_ollama_stores():
        manifest = os.path.join(store, "manifests", *words, wanted["tag"] or _LATEST)
        if os.path.isfile(manifest):
            return _find_blob(store, manifest)
    return ""


def _find_blob(store: str, manifest: str) -> str:
    """Return the file with the model of a manifest; empty if there is none."""
    try:
        with open(manifest, "rb") as file:
            document = json.loads(file.read(_MOST_READ))
    except (OSError, ValueError, RecursionError):
        return ""
    layers = document.get("layers") if is_object(document) else None
    for layer in filter(is_object, layers if is_list(layers) else []):
        digest = layer.get("digest")
        if layer.get("mediaType") == _MODEL_LAYER and isinstance(digest, str):
            path = os.path.join(store, "blobs", os.path.basename(digest.replace(":", "-")))
            return path if os.path.isfile(path) else ""
    return ""


def _list_ollama_models(store: str) -> Iterator[LocalModel]:
    root = os.path.join(store, "manifests")
    for folder, inner, names in os.walk(root):
        inner.sort()
        words = os.path.relpath(folder, root).split(os.sep)
        usual = [_REGISTRY, _LIBRARY]
        shown = words[2:] if words[:2] == usual else words[1:] if words[0] == _REGISTRY else words
        for name in sorted(names):
            if path := _find_blob(store, os.path.join(folder, name)):
                yield LocalModel(f"{'/'.join(shown)}:{name}", "Ollama", path)


# LM Studio.


def _list_lm_studio_folders() -> list[str]:
    """Return the folders in which LM Studio keeps models."""
    homes = [os.path.join("~", ".lmstudio"), os.path.join("~", ".cache", "lm-studio")]
    try:
        with open(expand(os.path.join("~", ".lmstudio-home-pointer")), encoding="utf-8") as file:
            homes.insert(0, file.read(4096).strip())
    except (OSError, ValueError):
        pass
    folders = (os.path.join(expand(home), "models") for home in homes if home)
    return [path for path in dict.fromkeys(folders) if os.path.isdir(path)]


def _find_in_lm_studio(text: str) -> str:
    if _REPOSITORY.fullmatch(text) is None:
        return ""
    places = (os.path.join(root, text) for root in _list_lm_studio_folders())
    return next(filter(os.path.exists, places), "")


def _list_names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def expand(path: str) -> str:
    """Return a path with the home directory and variables of the environment replaced."""
    return os.path.expandvars(os.path.expanduser(path))

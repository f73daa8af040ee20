"""Model cards: the `general.*` keys of GGUF, and the front matter of a README.

The keys that are read, and their names in GGUF, are those of llama.cpp's `gguf/metadata.py`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

from weightctl.errors import FormatError
from weightctl.storage.files import open_reader
from weightctl.storage.location import absolute
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.card.origins import (
    LISTS,
    NAMES,
    SOURCES,
    TEXTS,
    origin,
    parse_model_id,
    title,
)
from weightctl.translate.card.readme import read_front_matter, to_readme
from weightctl.weights.json_file import read_json
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from weightctl.translate.card.origins import ModelId

_README, _CONFIG = "README.md", "config.json"
_MOST_CONFIG = 20_000_000
_MOST_LISTED = 1000
# In huggingface_hub's cache, the name of a model's directory is that of a commit.
_CACHED = re.compile(r"models--([^/]+)--([^/]+)/snapshots/[^/]+")
_HUB = "hf://"
_NAMED = ("finetune", "basename", "version", "size_label")
__all__ = ["from_directory", "size_label", "to_readme"]


# The `general.*` keys of a model, from the files of its directory.


def from_directory(
    directory: str,
    parameters: int = 0,
    tell: Callable[[str], object] | None = None,
    *,
    experts: int = 0,
    of_experts: int = 0,
) -> dict[str, MetadataValue]:
    """Return the facts in a model's README, in its config.json, and in the name of its directory.

    Earlier sources in this order take precedence. `parameters` is the number of parameters, 0 if
    unknown; `experts` and `of_experts` are as in `size_label`. If a file cannot be read, `tell` is
    called with a sentence, and the other files are read.
    """
    directory = absolute(directory)
    readme = os.path.join(directory, _README)
    card: Mapping[str, Any] = {}
    try:
        card = read_front_matter(readme, NAMES)
    except ValueError as error:
        if tell is not None:
            tell(f"{readme} {error}; its content is not added to the metadata")
    texts = {key: text for key, names in TEXTS.items() if (text := _text(card, names))}
    for text in (_read_stated_name(os.path.join(directory, _CONFIG)), _directory_name(directory)):
        if text:
            _complete(texts, parse_model_id(_whole(text), parameters))
    if parameters and "size_label" not in texts:
        texts["size_label"] = size_label(parameters, experts, of_experts)
    metadata = {
        f"general.{key}": MetadataValue("string", texts[key]) for key in TEXTS if key in texts
    }
    for kind, names in SOURCES.items():
        metadata |= _origins(kind, card, names, parameters)
    for key, called in LISTS.items():
        listed = [text for name in called for text in _texts(card.get(name))]
        if listed:
            metadata[f"general.{key}"] = MetadataValue("array[string]", list(dict.fromkeys(listed)))
    return metadata


def size_label(parameters: int, experts: int = 0, of_experts: int = 0) -> str:
    """Return `135M` for a model with this many parameters, or `8x7B` for a mixture of experts.

    `of_experts` is the number of parameters of all experts together. The label then counts one
    expert and the shared parameters.
    """
    if experts:
        parameters += of_experts // experts - of_experts
    scaled, unit = float(parameters), "K"
    for exponent, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "K")):
        scaled, unit = parameters / 10**exponent, letter
        if scaled > 1:
            break
    digits = max(2 - len(str(round(scaled)).lstrip("0")), 0)
    text = f"{scaled:.{digits}f}{unit}"
    return f"{experts}x{text}" if experts else text


def _complete(texts: dict[str, str], found: ModelId) -> None:
    """Add missing facts from a model's name."""
    names = {"name": found.name, "organization": found.organization}
    stated = {key: title(text) for key, text in names.items() if text}
    stated |= {key: text for key in _NAMED if (text := getattr(found, key))}
    for key, text in stated.items():
        texts.setdefault(key, text)


def _read_stated_name(path: str) -> str:
    """Return the name in a config.json of the model that was loaded; empty if it is a path."""
    try:
        document = read_json(open_reader(path), _MOST_CONFIG)
    except FormatError:
        return ""  # the error is reported when the config itself is read
    name = document.get("_name_or_path") if is_object(document) else None
    return name if isinstance(name, str) and name.count("/") <= 1 else ""


def _directory_name(directory: str) -> str:
    if directory.startswith(_HUB):
        from weightctl.storage.remote.hub_url import parse_hub_url

        return parse_hub_url(directory).repository
    cached = _CACHED.search(directory.replace(os.sep, "/"))
    return "/".join(cached.groups()) if cached else os.path.basename(directory)


def _text(card: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return a card's text under the first existing name; empty if it is not text."""
    content = next((card[name] for name in names if name in card), "")
    return ",".join(_texts(content))


def _texts(content: object) -> list[str]:
    """Return a list of the text, or of the texts of a list."""
    found = content if is_list(content) else [content]
    return [_whole(each) for each in found[:_MOST_LISTED] if isinstance(each, str) and each]


def _whole(text: str) -> str:
    """Return a text with `?` in place of lone surrogates, which cannot be stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _origins(
    kind: str, card: Mapping[str, Any], names: tuple[str, ...], parameters: int
) -> dict[str, MetadataValue]:
    """Return a card's facts about the models, or the data, that this model was made from."""
    content = next((card[name] for name in names if name in card), None)
    listed = content[:_MOST_LISTED] if is_list(content) else [content]
    entries = [entry for each in listed if (entry := origin(each, parameters))]
    if not entries:
        return {}
    metadata = {f"general.{kind}.count": MetadataValue("u32", len(entries))}
    for place, entry in enumerate(entries):
        for key, text in entry.items():
            metadata[f"general.{kind}.{place}.{key}"] = MetadataValue("string", _whole(text))
    return metadata

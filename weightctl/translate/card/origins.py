"""Names and origins of models: keys of facts, parts of a model's name, and what it was made from.

The rules for names are those of llama.cpp's `gguf/metadata.py`, so that both tools write the same
facts.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from weightctl.text.untyped import is_object

_HUB = "https://huggingface.co/"

# GGUF's keys, without `general.`, and their names in a README. The first name that exists is read,
# and the first name is written.
TEXTS = {
    "name": ("name", "model_name"),
    "author": ("author", "model_author", "model_creator"),
    "version": ("version", "model_version"),
    "organization": ("organization", "model_organization"),
    "finetune": ("finetune", "model_finetune"),
    "basename": ("basename", "model_basename", "model_type"),
    "description": ("description", "model_description"),
    "quantized_by": ("quantized_by",),
    "size_label": ("size_label", "model_size_label"),
    "license": ("license",),
    "license.name": ("license_name",),
    "license.link": ("license_link",),
    "source.url": ("url", "model_url"),
    "source.doi": ("doi", "model_doi"),
    "source.uuid": ("uuid", "model_uuid"),
    "source.repo_url": ("repo_url", "model_repo_url"),
}
# The values of these keys are joined into one list.
LISTS = {"tags": ("tags", "pipeline_tag"), "languages": ("language", "languages")}
_BASE, _DATASET = "base_model", "dataset"
# Keys of the models and the data that a model was made from.
SOURCES = {
    _BASE: ("base_model", "base_models", "base_model_sources"),
    _DATASET: ("datasets", "dataset", "dataset_sources"),
}
# The facts that GGUF has for each of these models or datasets.
ENTRY = (
    "name", "author", "version", "organization", "description", "url", "doi", "uuid", "repo_url",
)  # fmt: skip
NAMES = frozenset(
    name for table in (TEXTS, LISTS, SOURCES) for names in table.values() for name in names
)


_VERSION = re.compile(r"(v|iter)?\d+(\.\d+)*", re.IGNORECASE)
_TYPE = re.compile(r"i?q\d(_\w)*|b?fp?(16|32)", re.IGNORECASE)
_SIZE = re.compile(
    r"(A|\d+x)?\d+([._]\d+)?[KMBT]\d?|small|mini|medium|large|x?xl", re.IGNORECASE
)  # fmt: skip
_FINETUNE = re.compile(r"chat|instruct|vision|lora", re.IGNORECASE)
_KEPT_AS_WRITTEN = re.compile(r"v\d+(\.\d+)*|\d.*")
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MOST = 1000  # the longest name that is parsed, in characters
_ADDRESSES = ("http://", "https://", "ssh://")


class ModelId(NamedTuple):
    """The parts of a model's name; a part is None if the name does not have it."""

    name: str | None = None
    organization: str | None = None
    basename: str | None = None
    finetune: str | None = None
    version: str | None = None
    size_label: str | None = None


def title(text: str) -> str:
    """Return a name in the usual spelling: `tiny-llama-v1.1` is `Tiny Llama v1.1`."""
    return " ".join(
        word.title() if word.islower() and not _KEPT_AS_WRITTEN.fullmatch(word) else word
        for word in text.replace("-", " ").split()
    )


def parse_model_id(text: str, parameters: int = 0) -> ModelId:
    """Return the parts of `organization/name`, or of a name alone.

    `Mistral-7B-Instruct-v0.2` has a base name, a size, a fine-tune and a version. `parameters` is
    the number of parameters, 0 if unknown: a part that looks like a size, but is very different, is
    a context length.
    """
    if " " in text or len(text) > _MOST:
        return ModelId(text)
    organization, slash, name = text.rpartition("/") if text.count("/") < 2 else text.partition("/")
    parts = [part for part in name.split("-") if part]
    kinds: list[set[str]] = []
    for place, part in enumerate(parts):
        parts[place], kind = _classify_part(part, parameters, is_first=place == 0)
        kinds.append({kind} if kind else set())
    sizes = [part for part, kind in zip(parts, kinds, strict=True) if "size_label" in kind]
    if any(map(_has_digit, sizes)):  # a number is more specific than a word
        for part, its in zip(parts, kinds, strict=True):
            if part.isalpha():
                its.discard("size_label")
    _mark_base(parts, kinds)

    def join_parts(kind: str) -> str | None:
        found = [
            part
            for part, its in zip(parts, kinds, strict=True)
            if kind in its and (kind != "version" or "basename" not in its)
        ]
        return "-".join(dict.fromkeys(found) if kind == "size_label" else found) or None

    size, finetune, version = (
        join_parts("size_label"),
        join_parts("finetune"),
        join_parts("version"),
    )
    return ModelId(
        name,
        organization if slash and not organization.startswith(".") else None,
        # Without another known part, the name could mean anything.
        join_parts("basename") if size or finetune or version else None,
        finetune,
        version,
        size,
    )


def _has_digit(text: str) -> bool:
    return any(letter.isdecimal() for letter in text)


def _classify_part(part: str, parameters: int, *, is_first: bool) -> tuple[str, str]:
    """Return a part of a name in its usual spelling, and its kind; empty if unknown."""
    if _VERSION.fullmatch(part):
        return part, "version"
    if _TYPE.fullmatch(part):
        return part.upper(), "type"
    if is_first:
        return part, ""
    if _SIZE.fullmatch(part):
        size = _size(part)
        number, unit = size[:-1], _UNITS.get(size[-1])
        if parameters and unit and number.replace(".", "", 1).isdecimal():
            stated = float(number) * unit
            if abs(stated - parameters) > 7 * parameters // 8:
                return size[:-1] + size[-1].lower(), "finetune"
        return size, "size_label"
    return part, "finetune" if _FINETUNE.fullmatch(part) else ""


def _size(part: str) -> str:
    """Return `7B` for `7b`, `1.1B` for `1_1b`, `7.1B` for the `7b1` of bloom."""
    part = part.replace("_", ".")
    if part[-1].isdecimal():
        part = f"{part[:-2]}.{part[-1]}{part[-2]}"
    if len(part) > 1 and part[-2].isdecimal():
        part = part[:-1] + part[-1].upper()
    return part


def _mark_base(parts: list[str], kinds: list[set[str]]) -> None:
    """Mark the first parts of a name as the base name, and unknown parts as a fine-tune."""
    at_start = True
    for part, kind in zip(parts, kinds, strict=True):
        if at_start and ("version" in kind or (not kind and part[0].isalpha())):
            kind.add("basename")
            continue
        at_start = False
        if not kind:
            kind.add("finetune")
    for kind in reversed(kinds):
        if "basename" not in kind or len(kind) == 1:
            break
        kind.discard("basename")  # a version at the end is that of the model, not of its base


def origin(written: object, parameters: int = 0) -> dict[str, str]:
    """Return the facts in a card's entry; empty if it is neither text nor a mapping."""
    if is_object(written):
        return {key: text for key in ENTRY if isinstance(text := written.get(key), str) and text}
    if not isinstance(written, str) or not written:
        return {}
    is_address = written.startswith(_ADDRESSES)
    name = written.removeprefix(_HUB) if is_address else written
    if is_address and (name == written or name.count("/") != 1):
        return {"repo_url": written}
    found = parse_model_id(name, parameters)
    facts = {
        "name": found.name and title(found.name),
        "version": found.version,
        "organization": found.organization and title(found.organization),
        "repo_url": f"{_HUB}{found.organization}/{found.name}" if found.organization else None,
    }
    return {key: text for key, text in facts.items() if text} | (
        {"repo_url": written} if is_address else {}
    )


def format_origin(facts: dict[str, str]) -> str | dict[str, str]:
    """Return a card's entry for these facts: a model id or an address if that is sufficient."""
    address = facts.get("repo_url", "")
    for text in (address.removeprefix(_HUB), address, facts.get("name", "").replace(" ", "-")):
        if text and origin(text) == facts:
            return text
    return facts

"""The parts of a model's name: `Mistral-7B-Instruct-v0.2` has a base, a size and a version.

The rules are those of llama.cpp's `gguf/metadata.py`, so that both tools say the same of a model.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["ModelId", "parse_model_id", "title"]

_VERSION = re.compile(r"(v|iter)?\d+(\.\d+)*", re.IGNORECASE)
_TYPE = re.compile(r"i?q\d(_\w)*|b?fp?(16|32)", re.IGNORECASE)
_SIZE = re.compile(
    r"(A|\d+x)?\d+([._]\d+)?[KMBT]\d?|small|mini|medium|large|x?xl", re.IGNORECASE
)  # fmt: skip
_FINETUNE = re.compile(r"chat|instruct|vision|lora", re.IGNORECASE)
_KEPT_AS_WRITTEN = re.compile(r"v\d+(\.\d+)*|\d.*")
_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_MOST = 1000  # characters of a name that is worth taking apart


class ModelId(NamedTuple):
    """The parts of a model's name, each None if it does not say."""

    name: str | None = None
    organization: str | None = None
    basename: str | None = None
    finetune: str | None = None
    version: str | None = None
    size_label: str | None = None


def title(text: str) -> str:
    """Return a name as a person writes it: `tiny-llama-v1.1` is `Tiny Llama v1.1`."""
    return " ".join(
        word.title() if word.islower() and not _KEPT_AS_WRITTEN.fullmatch(word) else word
        for word in text.replace("-", " ").split()
    )


def parse_model_id(text: str, parameters: int = 0) -> ModelId:
    """Return what `organization/name` says, or a name alone.

    `parameters` is the size of the model, 0 where it is not known: what looks like a size and is
    far from it is a context length.
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
    if any(map(_has_digit, sizes)):  # a number says more than a word
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
        # A name of which nothing else is known may be anything.
        join_parts("basename") if size or finetune or version else None,
        finetune,
        version,
        size,
    )


def _has_digit(text: str) -> bool:
    return any(letter.isdecimal() for letter in text)


def _classify_part(part: str, parameters: int, *, is_first: bool) -> tuple[str, str]:
    """Return a part of a name as it is usually written, and what it says, "" where any."""
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
    """Mark as the base what a name begins with, and as a fine-tune what nothing else explains."""
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
        kind.discard("basename")  # a version at the end is of the model, not of its base

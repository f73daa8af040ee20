"""The parts of a tokenizer that GGUF cannot express, stored for conversion back to Hugging Face.

Examples are the truncation of text, the spaces that an added token removes, and which of two rules
that are the same in llama.cpp a tokenizer uses. They are one JSON string, under a key that
llama.cpp does not read. They apply to the tokenizer that they were read with: if other keys have
changed since, only these are used.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.added import to_added_tokens, type_of_added
from weightctl.translate.tokenizer.differences import list_added_entries
from weightctl.translate.tokenizer.record import WORDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.translate.tokenizer.record import Tokenizer

_PARTS = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
_NO_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
_FLAGS = (*_NO_FLAGS, "special")
# Settings that other keys of GGUF have, or that name code or paths outside of the tokenizer.
_KEPT_ELSEWHERE = {
    "chat_template",
    "added_tokens_decoder",
    "auto_map",
    "name_or_path",
    "tokenizer_file",
}
_VOCABULARY = {"vocab", "merges"}
_CHARSMAP = "precompiled_charsmap"  # GGUF has a key for it
# A limit that no tokenizer is known to reach.
_MAX_SIZE = 200_000


def remember_document(tokenizer: Tokenizer, files: TokenizerFiles) -> Tokenizer:
    """Return a tokenizer with a remainder: what its files state beyond GGUF's keys."""
    document = files.tokenizer
    if document is None:
        listed = list_added_entries(files)
        flags = _unusual(({**listed[token], "id": token} for token in listed), tokenizer)
        remainder: dict[str, Any] = {"parts": {}, "model": {}, "added": flags}
        return _with(tokenizer, remainder) if listed else tokenizer
    model = document.get("model")
    vocabulary = model.get("vocab") if is_object(model) else None
    added = document.get("added_tokens")
    entries: list[Any] = added if is_list(added) else []
    return _with(
        tokenizer,
        {
            "parts": {
                part: _exchange_charsmap(document.get(part), _map_charsmap(tokenizer))
                for part in _PARTS
            },
            "model": {
                key: value
                for key, value in (model if is_object(model) else {}).items()
                if key not in _VOCABULARY
            },
            "added": _unusual(entries, tokenizer),
            "outside": _runs(
                entry["id"]
                for entry in entries
                if is_object(vocabulary) and entry["content"] not in vocabulary
            ),
            "config": _list_settings(files),
        },
    )


def remember_config(tokenizer: Tokenizer, files: TokenizerFiles) -> Tokenizer:
    """Return a tokenizer with a remainder that only has its tokenizer_config.json."""
    settings = _list_settings(files)
    return _with(tokenizer, {"config": settings}) if settings else tokenizer


def _list_settings(files: TokenizerFiles) -> dict[str, Any]:
    return {key: value for key, value in files.config.items() if key not in _KEPT_ELSEWHERE}


def _with(tokenizer: Tokenizer, remainder: Mapping[str, Any]) -> Tokenizer:
    text = json.dumps({"of": _identity(tokenizer), **remainder}, separators=(",", ":"))
    return tokenizer if len(text) > _MAX_SIZE else replace(tokenizer, remainder=text)


def _map_charsmap(tokenizer: Tokenizer) -> dict[str, str | None]:
    """Return a mapping from the compiled normalizer, as in tokenizer.json, to its placeholder."""
    return {base64.b64encode(tokenizer.charsmap or b"").decode("ascii"): None}


def _exchange_charsmap(part: Any, texts: Mapping[Any, Any]) -> Any:
    """Return a part of tokenizer.json with each compiled normalizer replaced as `texts` maps it."""
    if is_list(part):
        return [_exchange_charsmap(each, texts) for each in part]
    if not is_object(part):
        return part
    return {
        key: texts.get(each, each)
        if key == _CHARSMAP and (each is None or isinstance(each, str))
        else _exchange_charsmap(each, texts)
        for key, each in part.items()
    }


def restore_document(tokenizer: Tokenizer, document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of tokenizer.json with the stored parts of the original document."""
    remainder = _read_remainder(tokenizer)
    parts = remainder.get("parts")
    model = remainder.get("model")
    if not is_object(parts) or not is_object(model):
        return dict(document)
    kind = document["model"]["type"]
    if model.get("type", kind) != kind:  # old files omit it
        return dict(document)
    stored = {own: written for written, own in _map_charsmap(tokenizer).items()}
    made = dict(document)
    made |= {part: _exchange_charsmap(parts[part], stored) for part in _PARTS if part in parts}
    model_settings = {key: value for key, value in model.items() if key not in _VOCABULARY}
    made["model"] = {**document["model"], **model_settings}
    made["added_tokens"] = _usual(document["added_tokens"], remainder.get("added"))
    vocabulary = made["model"].get("vocab")
    if is_object(vocabulary):
        outside = _ids(remainder.get("outside"), len(tokenizer.tokens))
        named = {entry["content"] for entry in made["added_tokens"] if entry["id"] in outside}
        made["model"]["vocab"] = {
            text: token for text, token in vocabulary.items() if text not in named
        }
    return made


def config_of(tokenizer: Tokenizer) -> dict[str, Any] | None:
    """Return the stored content of tokenizer_config.json; None if there is none."""
    config = _read_remainder(tokenizer).get("config")
    if not is_object(config):
        return None
    return {key: value for key, value in config.items() if key not in _KEPT_ELSEWHERE}


def _read_remainder(tokenizer: Tokenizer) -> dict[str, Any]:
    try:
        remainder = json.loads(tokenizer.remainder or "null")
    except (ValueError, RecursionError):
        return {}
    return remainder if is_object(remainder) and remainder.get("of") == _identity(tokenizer) else {}


def _identity(tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "model": tokenizer.model,
        "pre": tokenizer.pre,
        # Keys that only end generation are not in these files.
        "special": {
            word: token for word, token in tokenizer.special.items() if word in WORDS.values()
        },
        "flags": dict(tokenizer.flags),
    }


def _unusual(entries: Iterable[Mapping[str, Any]], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    usual = {entry["id"]: entry for entry in to_added_tokens(tokenizer)}
    return [
        {"id": entry["id"], **{flag: bool(entry.get(flag)) for flag in _FLAGS}}
        for entry in entries
        if any(bool(entry.get(flag)) != usual.get(entry["id"], {}).get(flag) for flag in _FLAGS)
    ]


def _usual(entries: Iterable[dict[str, Any]], added: Any) -> list[dict[str, Any]]:
    flags = {
        entry["id"]: {flag: entry[flag] for flag in _FLAGS if isinstance(entry.get(flag), bool)}
        for entry in (added if is_list(added) else [])
        if is_object(entry) and isinstance(entry.get("id"), int)
    }
    made: list[dict[str, Any]] = []
    for entry in entries:
        other = {**entry, **_NO_FLAGS, **flags.get(entry["id"], {})}
        # If the type was changed, the new type is used.
        made.append(other if type_of_added(other) == type_of_added(entry) else entry)
    return made


def _runs(ids: Iterable[int]) -> list[list[int]]:
    made: list[list[int]] = []
    for token in sorted(ids):
        if made and made[-1][1] == token:
            made[-1][1] = token + 1
        else:
            made.append([token, token + 1])
    return made


def _ids(runs: Any, count: int) -> set[int]:
    made: set[int] = set()
    for run in runs if is_list(runs) else []:
        if is_list(run) and len(run) == 2 and all(isinstance(each, int) for each in run):
            made.update(range(max(run[0], 0), min(run[1], count)))
    return made

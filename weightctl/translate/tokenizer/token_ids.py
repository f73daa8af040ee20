"""Ids of special tokens as config.json and generation_config.json give them.

GGUF has one key for each special token, and transformers has two files that need not agree. So the
entries of both files are also kept as they are, in a key that llama.cpp does not read. They count
as long as the ids that were written with them are unchanged.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object, is_sequence
from weightctl.translate.tokenizer.ends import DEFAULT_ENDS, list_ends
from weightctl.translate.tokenizer.files import read_document
from weightctl.translate.tokenizer.record import WORDS
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.translate.tokenizer.record import Tokenizer

__all__ = ["TokenIds", "ids_of", "read_token_ids"]

_CONFIG, _GENERATION = "config.json", "generation_config.json"
_KEPT = "tokenizer.weightctl.token_ids"
_PREFIX, _ID, _IDS = "tokenizer.ggml.", "_token_id", "_token_ids"
_KEYS = tuple(f"{name}{_ID}" for name in WORDS)
# Many times what the longest known lists take.
_MAX_TEXT, _MAX_LIST = 20_000, 1_000


class TokenIds(NamedTuple):
    """The entries `bos_token_id`, `eos_token_id` ... of config.json and generation_config.json.

    `generation` is None if the file does not exist.
    """

    config: Mapping[str, Any]
    generation: Mapping[str, Any] | None = None

    def first(self, name: str) -> int | None:
        """Return the id of a special token, `bos` ...; None if neither file gives one."""
        return next(iter(self._all(f"{name}{_ID}")), None)

    @property
    def ends(self) -> tuple[int, ...]:
        """All ids that end generation; those of generation_config.json come first."""
        return tuple(dict.fromkeys(self._all("eos_token_id")))

    def _all(self, key: str) -> list[int]:
        found: list[int] = []
        for document in (self.generation or {}, self.config):
            value = document.get(key)
            found += [each for each in (value if is_list(value) else [value]) if _is_id(each)]
        return found

    def to_metadata(self, metadata: Mapping[str, MetadataValue]) -> dict[str, MetadataValue]:
        """Return the key that keeps the entries, for a GGUF file that has these other keys."""
        if not self.config and self.generation is None:
            return {}
        kept = {"of": _collect_ids(metadata), _CONFIG: self.config, _GENERATION: self.generation}
        return {_KEPT: MetadataValue("string", json.dumps(kept, separators=(",", ":")))}


def read_token_ids(directory: str, config: Mapping[str, Any] | None = None) -> TokenIds:
    """Return what the files of a model's directory say.

    `config` is the content of config.json where that is known. Raises `TokenizerError` for a
    damaged file, and for an entry that is not an id or a list of ids.
    """
    config = read_document(directory, _CONFIG) or {} if config is None else config
    nested = config.get("text_config")
    generation = read_document(directory, _GENERATION)
    return TokenIds(
        _entries({**(nested if is_object(nested) else {}), **config}, directory, _CONFIG),
        None if generation is None else _entries(generation, directory, _GENERATION),
    )


def ids_of(metadata: Mapping[str, MetadataValue], tokenizer: Tokenizer | None) -> TokenIds:
    """Return what config.json and generation_config.json are to say of a GGUF file's tokens.

    `tokenizer` is what the metadata describes, None if they describe none.
    """
    kept = _read_kept_ids(metadata)
    if kept is not None:
        return kept
    special = _special(metadata) if tokenizer is None else tokenizer.special
    ids = {"pad_token_id": special.get("padding")}
    if tokenizer is not None and tokenizer.model == "bert":
        return TokenIds(ids)  # an encoder begins and ends nothing
    # What is left out would be an id of the first model of the family that transformers had.
    ids |= {"bos_token_id": special.get("bos"), "eos_token_id": special.get("eos")}
    if tokenizer is None:
        return TokenIds(ids)
    if tokenizer.model == "llama":  # files of the first versions leave out the usual ids
        usual = {"bos_token_id": 1, "eos_token_id": DEFAULT_ENDS["llama"]}
        ids |= {key: token for key, token in usual.items() if ids[key] is None}
    ends = list_ends(tokenizer)
    generation: dict[str, Any] = {key: token for key, token in ids.items() if token is not None}
    if len(ends) > 1:
        generation["eos_token_id"] = ends
    return TokenIds(ids, generation)


def _entries(document: Mapping[str, Any], directory: str, name: str) -> dict[str, Any]:
    found = {key: document[key] for key in _KEYS if key in document}
    for key, value in found.items():
        if not _is_entry(value):
            expected = "an id or a list of ids" if key == "eos_token_id" else "an id"
            raise TokenizerError(
                f"{os.path.join(directory, name)}: `{key}` is {value!r:.200}; it must be "
                f"{expected}",
                hint="correct the file; transformers cannot load it either",
            )
    return found


def _read_kept_ids(metadata: Mapping[str, MetadataValue]) -> TokenIds | None:
    value = metadata.get(_KEPT)
    if value is None or not isinstance(value.content, str) or len(value.content) > _MAX_TEXT:
        return None
    try:
        kept = json.loads(value.content)
    except (ValueError, RecursionError):
        return None
    if not is_object(kept) or kept.get("of") != _collect_ids(metadata):
        return None
    config, generation = kept.get(_CONFIG), kept.get(_GENERATION)
    if not _are_entries(config) or not (generation is None or _are_entries(generation)):
        return None
    return TokenIds(config, generation)


def _collect_ids(metadata: Mapping[str, MetadataValue]) -> dict[str, Any]:
    """Return the ids of a GGUF file by their keys."""
    found: dict[str, Any] = dict(_special(metadata))
    for key, value in metadata.items():
        content = value.content
        is_list_of_ids = key.startswith(_PREFIX) and key.endswith(_IDS) and is_sequence(content)
        if is_list_of_ids and len(content) <= _MAX_LIST:
            found[key] = list(content)
    return found


def _special(metadata: Mapping[str, MetadataValue]) -> dict[str, int]:
    return {
        key.removeprefix(_PREFIX).removesuffix(_ID): value.content
        for key, value in metadata.items()
        if key.startswith(_PREFIX) and key.endswith(_ID) and _is_id(value.content)
    }


def _are_entries(entries: Any) -> TypeGuard[dict[str, Any]]:
    return is_object(entries) and all(
        key in _KEYS and _is_entry(value) for key, value in entries.items()
    )


def _is_entry(value: Any) -> bool:
    values = value if is_list(value) else [value]
    return value is None or (len(values) <= _MAX_LIST and all(map(_is_integer, values)))


def _is_id(value: Any) -> TypeGuard[int]:
    return _is_integer(value) and value >= 0


def _is_integer(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)

"""Ids of special tokens in config.json and generation_config.json.

GGUF has one key for each special token, and transformers has two files that can differ. So the
entries of both files are also stored unchanged, in a key that llama.cpp does not read. They are
used if the ids that were written with them are unchanged.

transformers stops at each id of the list `eos_token_id`. llama.cpp stops at the ids of some keys of
GGUF, and at tokens with certain texts. Source: `llama_vocab::impl::load` in llama.cpp's
`llama-vocab.cpp`.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object, is_sequence
from weightctl.text.wording import join_names
from weightctl.translate.tokenizer.files import KEEP_HINT, read_document
from weightctl.translate.tokenizer.record import WORDS
from weightctl.weights.metadata import MetadataValue

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weightctl.translate.tokenizer.record import Tokenizer

# llama.cpp's default for the end of generation if no key has it, by `tokenizer.ggml.model`.
_DEFAULT_ENDS = {"llama": 2, "gpt2": 11, "t5": 1}
# Texts of tokens that end a turn, if the key `eot` is missing.
_TURN_ENDS = frozenset({
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>",
})  # fmt: skip
_END_TEXTS = _TURN_ENDS | {
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>",
    "<turn|>", "<|tool_response>",
}  # fmt: skip
# Texts of tokens for fill-in-the-middle, by their keys. llama.cpp also stops at the last three
# keys.
_FILL_TEXTS = {
    "fim_pre": ("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<PRE>", "<|code_prefix|>",
                "<|prefix|>"),
    "fim_suf": ("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<SUF>", "<|code_suffix|>",
                "<|suffix|>"),
    "fim_mid": ("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<MID>", "<|code_middle|>",
                "<|middle|>"),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}  # fmt: skip
_OLD_FILL_WORDS = ("prefix", "suffix", "middle")
_END_WORDS = ("eos", "eot", "eom")
_FILL_ENDS = ("fim_pad", "fim_rep", "fim_sep")
_KNOWN = _END_TEXTS.union(*_FILL_TEXTS.values())
_MOST_NAMED = 8
_CONFIG, _GENERATION = "config.json", "generation_config.json"
_KEPT = "tokenizer.weightctl.token_ids"
_PREFIX, _ID, _IDS = "tokenizer.ggml.", "_token_id", "_token_ids"
_KEYS = tuple(f"{name}{_ID}" for name in WORDS)
# Many times the length of the longest known lists.
_MAX_TEXT, _MAX_LIST = 20_000, 1_000


def stops(tokenizer: Tokenizer) -> frozenset[int]:
    """Return the tokens at which llama.cpp ends generation with the keys of a tokenizer."""
    ids = _ids(tokenizer)
    named = {word: tokenizer.special[word] for word in _END_WORDS if word in tokenizer.special}
    default = _default(tokenizer)
    if default is not None:
        named.setdefault("eos", default)
    ends = {*named.values(), *(ids[text] for text in _END_TEXTS if text in ids)}
    for word in _FILL_ENDS:
        by_text = [ids[text] for text in _FILL_TEXTS[word] if text in ids]
        found = [tokenizer.special[word]] if word in tokenizer.special else by_text
        ends |= {*found} if len(found) == 1 else set()  # llama.cpp chooses any of several
    texts = {tokenizer.tokens[token]: token for token in ends}
    calls = texts.keys() & {"<|call|>", "<|calls|>"}
    if calls and texts.keys() & {"<|return|>", "<|flush|>"}:
        ends.discard(texts.get("<|end|>", -1))  # this token ends parts of a message in these models
    if "<|tool_response>" in texts:
        ends.discard(texts.get("</s>", -1))
    return frozenset(ends)


def with_ends(tokenizer: Tokenizer, directory: str) -> Tokenizer:
    """Return a tokenizer with keys that make llama.cpp stop at all of its `ends`.

    Raises `TokenizerError`, which names the tokens, if GGUF does not have enough keys.
    """
    if not tokenizer.ends or tokenizer.model == "bert":
        return tokenizer
    known = stops(tokenizer)
    left = [token for token in tokenizer.ends if token not in known]
    special = {**tokenizer.special, **dict(zip(_free_words(tokenizer), left, strict=False))}
    made = replace(tokenizer, special=special)
    lost = [token for token in tokenizer.ends if token not in stops(made)]
    if lost:
        names = [f"{token} ({tokenizer.tokens[token]!r:.60})" for token in lost]
        count = len(tokenizer.ends)
        raise TokenizerError(
            f"{directory}: `eos_token_id` has {count} ids, but GGUF has no key for "
            f"{join_names(names, _MOST_NAMED)}: llama.cpp would not stop at these tokens",
            hint="remove these ids from `eos_token_id` in generation_config.json and config.json, "
            f"and give their texts to llama.cpp as stop strings (`--reverse-prompt`); {KEEP_HINT}",
        )
    return made


def describe_assumed_end(tokenizer: Tokenizer) -> str:
    """Return a note if no end of generation is given and llama.cpp uses its default; else empty."""
    default = _default(tokenizer)
    if "eos" in tokenizer.special or default is None:
        return ""
    return (
        "no `eos_token` or `eos_token_id` defines the end of generation: llama.cpp stops "
        f"at its default, token {default} ({tokenizer.tokens[default]!r:.60})"
    )


def list_ends(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens at which transformers should end generation, so that it is as in llama.cpp.

    These are the `ends` if there are any, else the tokens of the keys, then those that llama.cpp
    detects by their texts. Fill-in-the-middle tokens are not included if the model has such tokens,
    because it only generates them in this mode.
    """
    if tokenizer.ends:
        return list(tokenizer.ends)
    words = _END_WORDS if _fills_gaps(tokenizer) else (*_END_WORDS, *_FILL_ENDS)
    named = [tokenizer.special[word] for word in words if word in tokenizer.special]
    ids = _ids(tokenizer)
    by_text = sorted(ids[text] for text in _END_TEXTS if text in ids)
    ends = stops(tokenizer)
    return [token for token in dict.fromkeys((*named, *by_text)) if token in ends]


def _free_words(tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the unused keys that make llama.cpp stop at one more token each."""
    ids = _ids(tokenizer)
    # The token that llama.cpp detects as the end of a turn should keep this role, so `eot` is last.
    words = ["eom", "eot"] if _TURN_ENDS & ids.keys() else ["eot", "eom"]
    if not _fills_gaps(tokenizer):
        words += _FILL_ENDS
    yield from (word for word in words if word not in tokenizer.special)


def _fills_gaps(tokenizer: Tokenizer) -> bool:
    """Whether the model has tokens for fill-in-the-middle."""
    ids = _ids(tokenizer)
    words = (*list(_FILL_TEXTS)[:3], *_OLD_FILL_WORDS)
    is_named = any(word in tokenizer.special for word in words)
    return is_named or any(text in ids for texts in _FILL_TEXTS.values() for text in texts)


def _ids(tokenizer: Tokenizer) -> dict[str, int]:
    return {text: token for token, text in enumerate(tokenizer.tokens) if text in _KNOWN}


def _default(tokenizer: Tokenizer) -> int | None:
    """Return llama.cpp's default for the end of generation; None if it has none."""
    default = _DEFAULT_ENDS.get(tokenizer.model)
    return default if default is not None and default < len(tokenizer.tokens) else None


class TokenIds(NamedTuple):
    """The entries `bos_token_id`, `eos_token_id` ... of config.json and generation_config.json.

    `generation` is None if the file does not exist.
    """

    config: Mapping[str, Any]
    generation: Mapping[str, Any] | None = None

    def first(self, name: str) -> int | None:
        """Return the id of a special token such as `bos`; None if neither file has it."""
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
        """Return the key that stores the entries; `metadata` has the other keys of the GGUF."""
        if not self.config and self.generation is None:
            return {}
        kept = {"of": _collect_ids(metadata), _CONFIG: self.config, _GENERATION: self.generation}
        return {_KEPT: MetadataValue("string", json.dumps(kept, separators=(",", ":")))}


def read_token_ids(directory: str, config: Mapping[str, Any] | None = None) -> TokenIds:
    """Return the entries in the files of a model directory.

    `config` is the content of config.json if it is known. Raises `TokenizerError` for a damaged
    file, and for an entry that is not an id or a list of ids.
    """
    config = read_document(directory, _CONFIG) or {} if config is None else config
    nested = config.get("text_config")
    generation = read_document(directory, _GENERATION)
    return TokenIds(
        _entries({**(nested if is_object(nested) else {}), **config}, directory, _CONFIG),
        None if generation is None else _entries(generation, directory, _GENERATION),
    )


def ids_of(metadata: Mapping[str, MetadataValue], tokenizer: Tokenizer | None) -> TokenIds:
    """Return the entries of config.json and generation_config.json for a GGUF file's tokens.

    `tokenizer` is the tokenizer in the metadata, None if there is none.
    """
    kept = _read_kept_ids(metadata)
    if kept is not None:
        return kept
    special = _special(metadata) if tokenizer is None else tokenizer.special
    ids = {"pad_token_id": special.get("padding")}
    if tokenizer is not None and tokenizer.model == "bert":
        return TokenIds(ids)  # encoders have no tokens for the start and end of generation
    # If entries are missing, transformers uses the ids of the family's first model.
    ids |= {"bos_token_id": special.get("bos"), "eos_token_id": special.get("eos")}
    if tokenizer is None:
        return TokenIds(ids)
    if tokenizer.model == "llama":  # early files do not state the usual ids
        usual = {"bos_token_id": 1, "eos_token_id": _DEFAULT_ENDS["llama"]}
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
    """Return the ids of special tokens in a GGUF file, by their keys."""
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

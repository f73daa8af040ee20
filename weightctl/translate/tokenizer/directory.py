"""Reading and writing of the tokenizer of a model directory, of any kind."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.system.registry import load
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.added import (
    ADDED,
    MAX_TOKENS,
    is_padding,
    padding,
    refuse_gaps,
    to_added_tokens,
    type_of_added,
)
from weightctl.translate.tokenizer.differences import differences, list_added_entries
from weightctl.translate.tokenizer.files import (
    GENERIC_CLASSES,
    KEEP_HINT,
    PLAMO,
    PLAMO_VOCABULARY,
    RWKV,
    RWKV_VOCABULARY,
    TENSORS_HINT,
    TokenizerFiles,
    open_files,
)
from weightctl.translate.tokenizer.record import WORDS, Tokenizer, TokenType
from weightctl.translate.tokenizer.token_ids import read_token_ids
from weightctl.translate.tokenizer.tokenizer_config import (
    read_chat_templates,
    read_flags,
    read_special,
    special_entries,
    state_surroundings,
    template_documents,
    template_entries,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from weightctl.translate.tokenizer.token_ids import TokenIds

# The readers of each kind of tokenizer: `(files: TokenizerFiles, model_type: str) -> Tokenizer`.
# Ids of special tokens, flags, templates and padding from the other files are added to the result.
READERS: dict[str, str] = {
    "byte-level BPE": "weightctl.translate.tokenizer.bpe:from_files",
    "BPE of words": "weightctl.translate.tokenizer.bpe:from_words",
    "WordPiece": "weightctl.translate.tokenizer.wordpiece:from_files",
    "SentencePiece": "weightctl.translate.tokenizer.sentencepiece.model:from_files",
    "ranks of tokens": "weightctl.translate.tokenizer.tiktoken:from_files",
    "RWKV": "weightctl.translate.tokenizer.rwkv:from_files",
    "PLaMo": "weightctl.translate.tokenizer.plamo:from_files",
}
# The writers for each `tokenizer.ggml.model`: `(tokenizer: Tokenizer, model_type: str) -> the
# document of tokenizer.json`. The tokenizer is given without the padding at the end of `tokens`.
WRITERS: dict[str, str] = {
    "gpt2": "weightctl.translate.tokenizer.bpe:to_tokenizer_json",
    "whitespace": "weightctl.translate.tokenizer.bpe:to_words_json",
    "bert": "weightctl.translate.tokenizer.wordpiece:to_tokenizer_json",
    "llama": "weightctl.translate.tokenizer.sentencepiece.documents:to_tokenizer_json",
    "gemma4": "weightctl.translate.tokenizer.sentencepiece.documents:to_merged_json",
    "t5": "weightctl.translate.tokenizer.sentencepiece.documents:to_unigram_json",
}
# The modules of those with a file of their own in place of tokenizer.json.
_OF_OWN_FILES = {
    RWKV: "weightctl.translate.tokenizer.rwkv",
    PLAMO: "weightctl.translate.tokenizer.plamo",
}

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
# The files of each kind of tokenizer without a tokenizer.json.
_OTHER_FILES = (
    ("SentencePiece", ("tokenizer.model",)),
    ("SentencePiece", ("sentencepiece.bpe.model",)),
    ("SentencePiece", ("spiece.model",)),
    ("byte-level BPE", ("vocab.json", "merges.txt")),
    ("WordPiece", ("vocab.txt",)),
    ("RWKV", (RWKV_VOCABULARY,)),
    ("PLaMo", (PLAMO_VOCABULARY,)),
)
# The second one is read if it has ranks of tokens.
_UNSUPPORTED = ("tokenizer.tiktoken", "hy.tiktoken")
# The class that loads tokenizer.json unchanged, in transformers 4 and (as TokenizersBackend) 5.
_CLASS = "PreTrainedTokenizerFast"
_CONFIG = "tokenizer_config.json"
_CONTEXTS = ("max_position_embeddings", "n_positions")


def from_directory(
    directory: str,
    vocabulary: int,
    model_type: str,
    name: str = "",
    ids: TokenIds | None = None,
) -> Tokenizer | None:
    """Return the tokenizer of a model directory; None if it has no tokenizer files.

    `vocabulary` is the number of rows of the embedding, 0 if unknown: the tokenizer gets this many
    tokens, with padding at the end. `name` is the model's name in GGUF. `ids` are those that the
    configs of the model state, by default those in the directory. `notes` of the result
    describe where llama.cpp treats text differently. Raises `TokenizerError` if files are damaged,
    if the kind of tokenizer or its treatment of text is not supported by llama.cpp, or if it has
    more tokens than the embedding.
    """
    files = open_files(directory)
    kind = _kind(files)
    if kind is None:
        return None
    read = load(READERS[kind])
    try:
        tokenizer: Tokenizer = read(files, model_type)
        if files.tokenizer is not None:
            refuse_gaps(files.tokenizer, files.path("tokenizer.json"))
        tokenizer = _match_embedding(tokenizer, vocabulary, directory)
        return _complete_tokenizer(tokenizer, files, name, ids or read_token_ids(directory))
    except RecursionError as error:
        raise TokenizerError(
            f"{directory}: the JSON in tokenizer.json has too many levels of nesting",
            hint=KEEP_HINT,
        ) from error


def _kind(files: TokenizerFiles) -> str | None:
    if files.tokenizer is not None:
        return _kind_of(files.tokenizer, files)
    if files.find_ranks():
        return "ranks of tokens"
    for kind, names in _OTHER_FILES:
        if all(map(files.has, names)):
            return kind
    for name in filter(files.has, _UNSUPPORTED):
        raise TokenizerError(
            f"{files.path(name)}: weightctl does not support this kind of tokenizer file",
            hint="write a tokenizer.json with transformers' `AutoTokenizer.from_pretrained(...)"
            f".save_pretrained(...)`; {KEEP_HINT}",
        )
    return None


def _kind_of(document: Mapping[str, Any], files: TokenizerFiles) -> str:
    model = document.get("model")
    kind = model.get("type") if is_object(model) else None
    if kind is None and is_object(model):  # older files omit it
        kind = "BPE" if "merges" in model else "WordPiece"
    if kind == "BPE" and _is_byte_level(document):
        return "byte-level BPE"
    if kind == "BPE" and document.get("pre_tokenizer") == {"type": "Whitespace"}:
        return "BPE of words"
    if kind in ("BPE", "Unigram"):
        return "SentencePiece"
    if kind == "WordPiece":
        return "WordPiece"
    raise TokenizerError(
        f"{files.path('tokenizer.json')}: GGUF does not support tokenizer models of type "
        f"{kind!r:.200}",
        hint=KEEP_HINT,
    )


def _is_byte_level(document: Mapping[str, Any]) -> bool:
    parts = [document.get("decoder"), document.get("pre_tokenizer")]
    while parts:
        part = parts.pop()
        if not is_object(part):
            continue
        if part.get("type") == "ByteLevel":
            return True
        for within in (part.get("decoders"), part.get("pretokenizers")):
            parts += within if is_list(within) else []
    return False


def _match_embedding(tokenizer: Tokenizer, vocabulary: int, directory: str) -> Tokenizer:
    count = len(tokenizer.tokens)
    if not vocabulary or vocabulary == count:
        return tokenizer
    if (
        vocabulary < count
        and tokenizer.model in ("llama", "gemma4")
        and {*tokenizer.types[vocabulary:]} <= ADDED
    ):
        # Tokens for inputs that this model does not support, such as images in the text models of
        # gemma3.
        return tokenizer.first(vocabulary)
    if vocabulary < count:
        raise TokenizerError(
            f"{directory}: the tokenizer has {count} tokens, but the model's embedding "
            f"has {vocabulary} rows",
            hint="the files belong to different models: download the tokenizer of this model; "
            f"{KEEP_HINT}",
        )
    if vocabulary > MAX_TOKENS:
        raise TokenizerError(
            f"{directory}: an embedding of {vocabulary} rows is too large for a vocabulary",
            hint=KEEP_HINT,
        )
    from weightctl.translate.tokenizer.sentencepiece.added_tokens import ADDED_SCORE

    more = range(count, vocabulary)
    scores = tokenizer.scores
    return replace(
        tokenizer,
        tokens=(*tokenizer.tokens, *map(padding, more)),
        types=(*tokenizer.types, *[int(TokenType.UNUSED)] * len(more)),
        scores=None if scores is None else (*scores, *[ADDED_SCORE] * len(more)),
    )


def _complete_tokenizer(
    tokenizer: Tokenizer, files: TokenizerFiles, name: str, given: TokenIds
) -> Tokenizer:
    ids = {text: token for token, text in enumerate(tokenizer.tokens)}
    if tokenizer.model == RWKV:
        # Configs of these models state ids of other tokens.
        made = replace(tokenizer, chat_templates=read_chat_templates(files))
        _check_text(made, files.directory)
        return remember_config(made, files)
    special = {**tokenizer.special, **read_special(files, ids, given)}
    ends = tuple(token for token in given.ends if token < len(tokenizer.tokens))
    if {*ends} <= {special.get("eos")}:
        ends = ()
    flags = dict(tokenizer.flags)
    if tokenizer.model != "bert":  # llama.cpp always adds the tokens around its texts
        stated = read_flags(files, special, ids)
        # Without a tokenizer.json, the reader knows the defaults of the model's tokenizer class.
        known = tokenizer.flags if files.tokenizer is None else dict[str, bool]()
        flags |= {
            flag: stated[flag] for flag in stated if flag in files.config or flag not in known
        }
        named = special.get("eos")
        special, flags = state_surroundings(files, special, flags, ids)
        if named is not None and special["eos"] != named and not ends:
            ends = (named,)
    templates = {**tokenizer.chat_templates, **read_chat_templates(files)}
    if tokenizer.model == "bert" and "cls" in special:
        special["bos"] = special["cls"]  # llama.cpp adds it before each text
    # Other classes have the added tokens of tokenizer.json alone.
    has_added = files.config.get("tokenizer_class") not in GENERIC_CLASSES
    types = _types_of(tokenizer, files.special_texts(has_added=has_added), ids)
    complete = replace(
        tokenizer, types=types, special=special, ends=ends, flags=flags, chat_templates=templates
    )
    _check_text(complete, files.directory)
    notes = (*complete.notes, *differences(complete, files, name))
    remember = remember_config if complete.model in _OF_OWN_FILES else remember_document
    return replace(remember(complete, files), notes=notes)


def _types_of(
    tokenizer: Tokenizer, special: Iterable[str], ids: Mapping[str, int]
) -> tuple[int, ...]:
    """Return the types of tokens; tokens that the configs call special are found in a text."""
    types = [*tokenizer.types]
    if tokenizer.model == "bert":  # GGUF has its tokens under other names
        return tokenizer.types
    for token in (ids[text] for text in special if text in ids):
        if types[token] == TokenType.NORMAL:
            types[token] = int(TokenType.CONTROL)
    return tuple(types)


def _check_text(tokenizer: Tokenizer, directory: str) -> None:
    templates = tokenizer.chat_templates
    texts = (*tokenizer.tokens, *(tokenizer.merges or ()), *templates, *templates.values())
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:  # JSON can contain lone surrogates
        raise TokenizerError(
            f"{directory}: a token of the tokenizer is not valid Unicode text: {error}",
            hint=KEEP_HINT,
        ) from error


def to_documents(
    tokenizer: Tokenizer, model_type: str, config: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return the files of a tokenizer by name: tokenizer.json, tokenizer_config.json ...

    Those of RWKV and PLaMo have their vocabulary file in place of tokenizer.json. `config` is the
    content of config.json. Raises `TokenizerError` if these files cannot express the tokenizer, or
    if its parts contradict each other.
    """
    if tokenizer.model not in {*WRITERS, *_OF_OWN_FILES}:
        raise TokenizerError(
            f"`tokenizer.ggml.model` is `{tokenizer.model}`, which cannot be converted to "
            "tokenizer.json",
            hint=f"supported tokenizer types: {', '.join([*WRITERS, *_OF_OWN_FILES])}; "
            f"{TENSORS_HINT}",
        )
    trimmed = _drop_padding(tokenizer)
    _check_unique(trimmed)
    if (module := _OF_OWN_FILES.get(tokenizer.model)) is not None:
        usual = load(f"{module}:default_config")(trimmed)
        stated = {**(config_of(trimmed) or usual), **_templates(trimmed)}
        return {
            **load(f"{module}:to_files")(trimmed),
            _CONFIG: _format_json(stated, indent=2),
            **template_documents(tokenizer.chat_templates),
        }
    document = restore_document(trimmed, load(WRITERS[tokenizer.model])(trimmed, model_type))
    return {
        "tokenizer.json": _format_json(document),
        _CONFIG: _format_json(
            {**(config_of(trimmed) or _config(trimmed, config)), **_templates(trimmed)}, indent=2
        ),
        **template_documents(tokenizer.chat_templates),
    }


def _drop_padding(tokenizer: Tokenizer) -> Tokenizer:
    count = len(tokenizer.tokens)
    while count and is_padding(tokenizer, count - 1):
        count -= 1
    return tokenizer.first(count)


def _check_unique(tokenizer: Tokenizer) -> None:
    if len({*tokenizer.tokens}) == len(tokenizer.tokens):
        return
    seen: dict[str, int] = {}
    for token, text in enumerate(tokenizer.tokens):
        if seen.setdefault(text, token) != token:
            raise TokenizerError(
                f"tokens {seen[text]} and {token} have the same text {text!r:.200}",
                hint=f"`tokenizer.ggml.tokens` is damaged; {TENSORS_HINT}",
            )


def _config(tokenizer: Tokenizer, config: Mapping[str, Any]) -> dict[str, Any]:
    made = special_entries(tokenizer)
    separates = "add_sep_token" in tokenizer.flags or tokenizer.model == "bert"
    for flag in ("add_bos_token", "add_eos_token"):
        # From these flags, transformers creates a post_processor that puts no separator between two
        # texts.
        if flag in tokenizer.flags and not separates:
            made[flag] = tokenizer.flags[flag]
    # This would remove spaces before punctuation, but BPE decodes to the exact text.
    made["clean_up_tokenization_spaces"] = tokenizer.model == "bert"
    length = next((config[key] for key in _CONTEXTS if isinstance(config.get(key), int)), None)
    if length is not None:
        made["model_max_length"] = length
    if tokenizer.model != "bert":  # text generators use no segment ids
        made["model_input_names"] = ["input_ids", "attention_mask"]
    made["tokenizer_class"] = _CLASS
    return made


def _templates(tokenizer: Tokenizer) -> dict[str, Any]:
    templates = template_entries(tokenizer.chat_templates)
    return {} if templates is None else {"chat_template": templates}


def _format_json(document: Any, indent: int | None = None) -> bytes:
    try:
        return f"{json.dumps(document, ensure_ascii=False, indent=indent)}\n".encode()
    except RecursionError as error:
        raise TokenizerError(
            "the tokenizer JSON in the GGUF metadata has too many levels of nesting", hint=KEEP_HINT
        ) from error
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"a token or a chat template is not valid Unicode text: {error}",
            hint=f"a faulty tool wrote the file; {KEEP_HINT}",
        ) from error


# The parts of a tokenizer that GGUF cannot express, stored for conversion back to Hugging Face.


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

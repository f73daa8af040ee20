"""Reads the tokenizer and the config of a checkpoint, and describes differences in text."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.families.configs import MODEL_TYPE
from weightctl.families.model import ARCHITECTURE
from weightctl.formats.huggingface import CONFIG, config
from weightctl.storage.files import is_file
from weightctl.text.untyped import is_list, is_object, is_sequence
from weightctl.text.wording import printable, say_more
from weightctl.translate.tokenizer.added import MAX_TOKENS, read_added, type_of_added
from weightctl.translate.tokenizer.directory import from_directory
from weightctl.translate.tokenizer.files import RWKV_VOCABULARY, open_files
from weightctl.translate.tokenizer.record import WORDS, Tokenizer, TokenType, from_metadata
from weightctl.translate.tokenizer.token_ids import read_token_ids
from weightctl.translate.tokenizer.tokenizer_config import read_chat_templates, read_special
from weightctl.weights.tree import header_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.families.config_keys import NamingConvention
    from weightctl.translate.tokenizer.files import TokenizerFiles
    from weightctl.verify.subject import Subject
    from weightctl.weights.metadata import MetadataValue


# The prefix of GGUF's tokenizer keys.
TOKENIZER_KEYS = "tokenizer.ggml."
_TOKENS = f"{TOKENIZER_KEYS}tokens"
_ID = "_token_id"
_GENERATION = "generation_config.json"
_FILES = {word: f"{name}_token" for name, word in WORDS.items()}


@dataclass(frozen=True, kw_only=True)
class Description:
    """The metadata of a checkpoint, in its own naming convention.

    `where` is the GGUF file, or the directory of config.json. `tokenizer` is None if the checkpoint
    has none, or if it cannot be read; `refusal` then gives the reason. `metadata` has the keys of a
    GGUF file. For a directory, `files` are its tokenizer files, and `config` and `generation` are
    the contents of config.json and generation_config.json.
    """

    subject: Subject
    convention: NamingConvention
    where: str
    tokenizer: Tokenizer | None
    refusal: str = ""
    files: TokenizerFiles | None = None
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict[str, "MetadataValue"])
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    generation: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def raw(self) -> Tokenizer | None:
        """The literal content of tokenizer.json, which may be more than GGUF can represent.

        None if the file does not exist or cannot be read.
        """
        try:
            return None if self.files is None else read_raw(self.files)
        except TokenizerError:
            return None

    @property
    def is_gguf(self) -> bool:
        return self.convention == "gguf"

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The values of config.json, including those nested in `text_config`."""
        nested = self.config.get("text_config")
        return {**nested, **self.config} if is_object(nested) else self.config

    def token_key(self, word: str) -> str:
        """Return the key that states a special token; `word` is GGUF's word for it, as in `eos`."""
        return f"{TOKENIZER_KEYS}{word}{_ID}" if self.is_gguf else _FILES.get(word, word)

    def place(self, key: str) -> str:
        """Return where a tokenizer key is stated: GGUF's key, or the path of the tokenizer file."""
        if self.is_gguf:
            return f"{TOKENIZER_KEYS}{key}"
        names = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", RWKV_VOCABULARY)
        paths = (os.path.join(self.where, name) for name in names)
        return next(filter(is_file, paths), self.where)


def describe(subject: Subject) -> Description | None:
    """Return the metadata of a checkpoint; None if it has neither GGUF keys nor config.json."""
    metadata, files = header_of(subject.stored).metadata, header_of(subject.stored).files
    if ARCHITECTURE in metadata or _TOKENS in metadata:
        return _describe_metadata(subject, files[0] if files else subject.path)
    directory = os.path.dirname(files[0]) if files else ""
    if not files or not is_file(os.path.join(directory, CONFIG)):
        return None
    return _describe_directory(subject, directory or ".", config(header_of(subject.stored)))


def _describe_metadata(subject: Subject, where: str) -> Description:
    metadata = header_of(subject.stored).metadata
    count = count_tokens(metadata)
    # Ids outside the vocabulary are left out: they are reported separately, and would prevent
    # reading the tokenizer.
    sound = {
        key: value
        for key, value in metadata.items()
        if not (key.startswith(TOKENIZER_KEYS) and key.endswith(_ID))
        or (is_id(value.content) and value.content < count)
    }
    tokenizer, refusal = None, ""
    try:
        tokenizer = from_metadata(sound, where)
    except TokenizerError as error:
        refusal = error.message.removeprefix(f"{where}: ")
    return Description(
        subject=subject,
        convention="gguf",
        where=where,
        tokenizer=tokenizer,
        refusal=refusal,
        metadata=metadata,
    )


def count_tokens(metadata: Mapping[str, MetadataValue]) -> int:
    """Return the number of tokens in GGUF metadata; 0 if there is no list of tokens."""
    tokens = metadata.get(_TOKENS)
    return len(tokens.content) if tokens is not None and is_sequence(tokens.content) else 0


def _describe_directory(
    subject: Subject, directory: str, document: Mapping[str, Any]
) -> Description:
    tokenizer, files, refusal = None, None, ""
    generation: Mapping[str, Any] = {}
    rows = 0 if subject.checkpoint is None else subject.checkpoint.config.vocabulary
    try:
        files = open_files(directory)
        generation = files.document(_GENERATION) or {}
        tokenizer = from_directory(directory, rows, str(document.get(MODEL_TYPE)))
    except TokenizerError as error:
        refusal = error.message.removeprefix(f"{directory}: ")
    return Description(
        subject=subject,
        convention="hugging_face",
        where=directory,
        tokenizer=tokenizer,
        refusal=refusal,
        files=files,
        config=document,
        generation=generation,
    )


def read_ends(description: Description) -> tuple[int, ...]:
    """Return the ids of the tokens that end generation, from a directory's configs.

    generation_config.json takes precedence over config.json, as in transformers.
    """
    for document in (description.generation, description.text_config):
        content = document.get("eos_token_id")
        if content is not None:
            return tuple(_list_ids(content))
    return ()


def _list_ids(content: Any) -> Iterator[int]:
    yield from filter(is_id, content if is_list(content) else [content])


def is_id(content: Any) -> bool:
    return isinstance(content, int) and not isinstance(content, bool) and content >= 0


def read_raw(files: TokenizerFiles) -> Tokenizer | None:
    """Return the literal content of tokenizer.json: tokens by id, types of added tokens, merges.

    Return None if the file or its `model` is missing. Raises `TokenizerError` if an added token
    lacks an id or a text, or if an id is larger than `MAX_TOKENS`.
    """
    document = files.tokenizer
    model: Any = None if document is None else document.get("model")
    if document is None or not is_object(model):
        return None
    where = files.path("tokenizer.json")
    texts, scores = _read_vocabulary(model.get("vocab"))
    added = read_added(document, where)
    texts |= {token: str(entry["content"]) for token, entry in added.items()}
    count = max(texts, default=-1) + 1
    if count > MAX_TOKENS:
        raise TokenizerError(f"{where}: the token id {count - 1:,} is too large")
    types = [int(TokenType.UNUSED)] * count
    for token in texts:
        entry = added.get(token)
        types[token] = int(TokenType.NORMAL if entry is None else type_of_added(entry))
    ids = {text: token for token, text in texts.items()}
    merges: Any = model.get("merges")
    return Tokenizer(
        model=str(model.get("type", "")),
        tokens=tuple(texts.get(token, "") for token in range(count)),
        types=tuple(types),
        scores=None if scores is None else tuple(scores.get(token, 0.0) for token in range(count)),
        merges=tuple(map(_join_merge, merges)) if is_list(merges) else None,
        special=read_special(files, ids, read_token_ids(files.directory)),
        chat_templates=read_chat_templates(files),
    )


def _read_vocabulary(vocabulary: Any) -> tuple[dict[int, str], Mapping[int, float] | None]:
    """Return the tokens' texts by id, and their scores by id; None if there are no scores."""
    if is_object(vocabulary):
        return {
            token: text
            for text, token in vocabulary.items()
            if type(token) is int and 0 <= token <= MAX_TOKENS
        }, None
    pairs = [
        (token, pair)
        for token, pair in enumerate(vocabulary if is_list(vocabulary) else [])
        if is_list(pair) and len(pair) == 2 and isinstance(pair[1], int | float)
    ]
    texts = {token: str(pair[0]) for token, pair in pairs}
    return texts, {token: float(pair[1]) for token, pair in pairs} if pairs else None


def _join_merge(merge: Any) -> str:
    return " ".join(map(str, merge)) if is_list(merge) else str(merge)


# The number of examples that a message gives for one kind of difference.
_MOST_EXAMPLES = 3
_LONGEST = 60


@dataclass(frozen=True)
class TokenizerPair:
    """Two descriptions to compare, and their tokenizers, which were read in the same way.

    `own` and `tokenizer` are those of the checkpoint, `other` and `reference` of the reference.
    """

    own: Description
    other: Description
    tokenizer: Tokenizer
    reference: Tokenizer

    @property
    def is_across(self) -> bool:
        return self.own.convention != self.other.convention


def state_differences(examples: Iterable[str], count: int) -> str:
    """Join examples of differences; `count` is the number of all differences of this kind."""
    shown = "; ".join(examples)
    more = say_more(count - _MOST_EXAMPLES)
    return f"{shown}; {more}" if more else shown


def first_examples(places: Sequence[int]) -> Sequence[int]:
    """Return the first places, up to the number of examples that a message gives."""
    return places[:_MOST_EXAMPLES]


def show_token(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's id and text, as in: 305 `a`."""
    if not 0 <= token < len(tokenizer.tokens):
        return f"{token}, which is outside the vocabulary of {len(tokenizer.tokens):,}"
    return f"{token} {quote(tokenizer.tokens[token])}"


def quote(text: str) -> str:
    """Return a text in backquotes, shortened if it is long."""
    shown = printable(text)
    return f"`{shown}`" if len(shown) <= _LONGEST else f"`{shown[: _LONGEST - 1]}…`"

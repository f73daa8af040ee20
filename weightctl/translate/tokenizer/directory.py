"""The tokenizer of a model's directory, whatever kind it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weightctl.errors import TokenizerError
from weightctl.system.registry import load
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer import READERS
from weightctl.translate.tokenizer.added import ADDED, MAX_TOKENS, padding
from weightctl.translate.tokenizer.chat_templates import read_chat_templates
from weightctl.translate.tokenizer.differences import differences
from weightctl.translate.tokenizer.files import KEEP_HINT, TokenizerFiles, open_files
from weightctl.translate.tokenizer.record import Tokenizer, TokenType
from weightctl.translate.tokenizer.remainder import remember_document
from weightctl.translate.tokenizer.sentencepiece.added_tokens import ADDED_SCORE
from weightctl.translate.tokenizer.special import read_flags, read_special
from weightctl.translate.tokenizer.token_ids import read_token_ids

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["from_directory"]

_SENTENCEPIECE_FILES = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model")


def from_directory(
    directory: str, vocabulary: int, model_type: str, name: str = ""
) -> Tokenizer | None:
    """Return the tokenizer of a model's directory, None if it has no file of one.

    `vocabulary` is the number of rows of the embedding, 0 where it is not known: this many tokens
    there are, those at the end that nothing represents being padding. `name` is what GGUF calls the
    model; its `notes` say where llama.cpp treats text otherwise. Raises `TokenizerError` for files
    that are damaged, of a kind that is not known, of more tokens than that, or that do to text what
    llama.cpp does not.
    """
    files = open_files(directory)
    kind = _kind(files)
    if kind is None:
        return None
    read = load(READERS[kind])
    try:
        tokenizer: Tokenizer = read(files, model_type)
        return _complete_tokenizer(_match_embedding(tokenizer, vocabulary, directory), files, name)
    except RecursionError as error:
        raise TokenizerError(
            f"{directory}: tokenizer.json is nested too deeply", hint=KEEP_HINT
        ) from error


def _kind(files: TokenizerFiles) -> str | None:
    if files.tokenizer is not None:
        return _kind_of(files.tokenizer, files)
    if any(map(files.has, _SENTENCEPIECE_FILES)):
        return "SentencePiece"
    if files.has("vocab.json") and files.has("merges.txt"):
        return "byte-level BPE"
    if files.has("vocab.txt"):
        return "WordPiece"
    return None


def _kind_of(document: Mapping[str, Any], files: TokenizerFiles) -> str:
    model = document.get("model")
    kind = model.get("type") if is_object(model) else None
    if kind is None and is_object(model):  # older files leave it out
        kind = "BPE" if "merges" in model else "WordPiece"
    if kind == "BPE" and _is_byte_level(document):
        return "byte-level BPE"
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
        and tokenizer.model == "llama"
        and {*tokenizer.types[vocabulary:]} <= ADDED
    ):
        # Tokens for what this model cannot see, as in the text models of gemma3.
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
    more = range(count, vocabulary)
    scores = tokenizer.scores
    return replace(
        tokenizer,
        tokens=(*tokenizer.tokens, *map(padding, more)),
        types=(*tokenizer.types, *[int(TokenType.UNUSED)] * len(more)),
        scores=None if scores is None else (*scores, *[ADDED_SCORE] * len(more)),
    )


def _complete_tokenizer(tokenizer: Tokenizer, files: TokenizerFiles, name: str) -> Tokenizer:
    ids = {text: token for token, text in enumerate(tokenizer.tokens)}
    given = read_token_ids(files.directory)
    special = {**tokenizer.special, **read_special(files, ids, given)}
    ends = tuple(token for token in given.ends if token < len(tokenizer.tokens))
    if {*ends} <= {special.get("eos")}:
        ends = ()
    flags = dict(tokenizer.flags)
    if tokenizer.model != "bert":  # llama.cpp surrounds its texts in any case
        stated = read_flags(files, special, ids)
        # Without a tokenizer.json the reader knows what the model's own class does.
        known = tokenizer.flags if files.tokenizer is None else dict[str, bool]()
        flags |= {
            flag: stated[flag] for flag in stated if flag in files.config or flag not in known
        }
    templates = {**tokenizer.chat_templates, **read_chat_templates(files)}
    complete = replace(tokenizer, special=special, ends=ends, flags=flags, chat_templates=templates)
    _check_text(complete, files.directory)
    notes = (*complete.notes, *differences(complete, files, name))
    return replace(remember_document(complete, files), notes=notes)


def _check_text(tokenizer: Tokenizer, directory: str) -> None:
    templates = tokenizer.chat_templates
    texts = (*tokenizer.tokens, *(tokenizer.merges or ()), *templates, *templates.values())
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:  # JSON can hold halves of characters
        raise TokenizerError(
            f"{directory}: a token of the tokenizer is not valid Unicode text: {error}",
            hint=KEEP_HINT,
        ) from error

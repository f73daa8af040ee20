"""The vocabulary in a SentencePiece tokenizer's tokenizer.json, as tokens with scores and types."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.record import TokenType
from weightctl.translate.tokenizer.sentencepiece.added_tokens import SPACE, VocabularyEntry
from weightctl.translate.tokenizer.sentencepiece.merges import rank_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from weightctl.translate.tokenizer.sentencepiece.added_tokens import TokenTable

__all__ = ["check_bytes", "check_words", "put_bpe", "put_unigram"]

_MAX_SCORE = 3.4e38  # of float32, in which GGUF keeps them
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_BYTES = 256
# Options of a BPE that llama.cpp does not have for SentencePiece's.
_OPTIONS = ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "ignore_merges")


def put_unigram(vocabulary: TokenTable, model: Mapping[str, Any], path: str) -> None:
    """Put the tokens of a unigram model into a vocabulary; raises `TokenizerError`."""
    unknown = model.get("unk_id")
    for index, entry in enumerate(model["vocab"]):
        match entry:
            case [str(text), int() | float() as score] if abs(score) < _MAX_SCORE:
                is_unknown = index == unknown
                vocabulary.put(index, _entry(text, float(score), model, is_unknown=is_unknown))
            case _:
                raise TokenizerError(
                    f"{path}: the vocabulary has the entry {entry!r:.200}, which is not a "
                    "token with a score",
                    hint=KEEP_HINT,
                )


def put_bpe(vocabulary: TokenTable, model: Mapping[str, Any], path: str, added: set[str]) -> None:
    """Put the tokens of a BPE into a vocabulary, with scores in the order of its merges.

    Tokens that merges make come first, in their order, then the others in the order of their ids,
    each with a score less by one than the one before, as in SentencePiece's own files. The tokens
    that are `added` take no place. Raises `TokenizerError`.
    """
    for option in _OPTIONS:
        if model.get(option):
            raise TokenizerError(
                f"{path}: `{option}` is {model[option]!r:.200}, which llama.cpp does not "
                "support in a SentencePiece BPE: text would be tokenized differently",
                hint=KEEP_HINT,
            )
    tokens = model.get("vocab")
    if not is_object(tokens) or not all(isinstance(index, int) for index in tokens.values()):
        raise TokenizerError(
            f"{path}: its vocabulary is not a JSON object that maps tokens to ids", hint=KEEP_HINT
        )
    if len({*tokens.values()}) != len(tokens):
        raise TokenizerError(f"{path}: two tokens have the same id", hint=KEEP_HINT)
    places = rank_tokens(_pairs(model.get("merges"), path))
    unknown = model.get("unk_token")
    score = 0.0
    for text in sorted(tokens, key=lambda text: (places.get(text, len(places)), tokens[text])):
        entry = _entry(text, score, model, is_unknown=text == unknown)
        vocabulary.put(tokens[text], entry)
        if entry.type == TokenType.NORMAL and text not in added:
            score -= 1.0


def check_bytes(entries: Sequence[VocabularyEntry], where: str, *, is_unigram: bool) -> None:
    """Check what becomes of characters that the vocabulary does not have.

    A BPE makes bytes of them in llama.cpp, and a unigram model the unknown token. Raises
    `TokenizerError` for a BPE without a token for every byte, and a unigram model that has them.
    """
    count = len({entry.text for entry in entries if entry.type == TokenType.BYTE})
    if is_unigram and count:
        raise TokenizerError(
            f"{where}: the unigram model splits characters without a token into bytes "
            "(`byte_fallback`), but llama.cpp replaces them with the unknown token: text "
            "would be tokenized differently",
            hint=KEEP_HINT,
        )
    if not is_unigram and count != _BYTES:
        raise TokenizerError(
            f"{where}: the SentencePiece BPE has tokens for {count} of the {_BYTES} bytes "
            "(`byte_fallback`); llama.cpp splits characters without a token into bytes, "
            "and stops if a byte has no token",
            hint=KEEP_HINT,
        )


def check_words(entries: Sequence[VocabularyEntry], where: str) -> None:
    """Check that no token reaches over words, where text is split into them first.

    llama.cpp does not split it. Raises `TokenizerError` that names such a token.
    """
    for entry in entries:
        if entry.type == TokenType.NORMAL and SPACE in entry.text[1:]:
            raise TokenizerError(
                f"{where}: tokenizer.json splits text into words, but the token "
                f"{entry.text!r:.200} spans several words: llama.cpp would find it in "
                "text, transformers would not",
                hint=KEEP_HINT,
            )


def _entry(
    text: str, score: float, model: Mapping[str, Any], *, is_unknown: bool
) -> VocabularyEntry:
    if is_unknown:
        return VocabularyEntry(text, 0.0, TokenType.UNKNOWN)
    if model.get("byte_fallback") is True and _BYTE.fullmatch(text):
        return VocabularyEntry(text, 0.0, TokenType.BYTE)
    return VocabularyEntry(text, score, TokenType.NORMAL)


def _pairs(written: object, path: str) -> Iterator[tuple[str, str]]:
    for merge in written if is_list(written) else ():
        match merge.split(" ") if isinstance(merge, str) else merge:
            case [str(left), str(right)]:
                yield left, right
            case _:
                raise TokenizerError(
                    f"{path}: the merge {merge!r:.200} is not a pair of tokens", hint=KEEP_HINT
                )

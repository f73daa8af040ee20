"""The tokens of a SentencePiece tokenizer's tokenizer.json, with scores and types.

SentencePiece, and llama.cpp in the same way, joins the neighbors whose concatenation is the token
with the highest score. Hugging Face's BPE joins the pair that is first in a list. The equivalent
list has every pair of tokens whose concatenation is a token, ordered by the score of the result.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING, Any

from weightctl.errors import TokenizerError
from weightctl.text.untyped import is_list, is_object
from weightctl.translate.tokenizer.files import KEEP_HINT
from weightctl.translate.tokenizer.record import TokenType
from weightctl.translate.tokenizer.sentencepiece.added_tokens import SPACE, VocabularyEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from weightctl.translate.tokenizer.sentencepiece.added_tokens import TokenTable

_MAX_SCORE = 3.4e38  # the largest float32, the type of scores in GGUF
_BYTE = re.compile("<0x[0-9A-Fa-f]{2}>")
_BYTES = 256
# Options of a BPE that llama.cpp does not support for SentencePiece.
_OPTIONS = ("continuing_subword_prefix", "end_of_word_suffix", "dropout", "ignore_merges")
# The limit for the total length of merges, ten times that of the largest vocabularies.
_MOST_TEXT = 50_000_000


def put_unigram(vocabulary: TokenTable, model: Mapping[str, Any], path: str) -> None:
    """Add the tokens of a unigram model to a vocabulary.

    Raises `TokenizerError` if an entry is not a token with a score.
    """
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
    """Add the tokens of a BPE model to a vocabulary, with scores in the order of its merges.

    Tokens that merges produce come first, in the order of the merges, then the others by id. Each
    normal token lowers the score by one, as in SentencePiece's own files; tokens in `added` do not.
    Raises `TokenizerError` if the model is invalid, or has an option that llama.cpp does not
    support.
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
    places = rank_tokens(list_pairs(model.get("merges"), path))
    unknown = model.get("unk_token")
    score = 0.0
    for text in sorted(tokens, key=lambda text: (places.get(text, len(places)), tokens[text])):
        entry = _entry(text, score, model, is_unknown=text == unknown)
        vocabulary.put(tokens[text], entry)
        if entry.type == TokenType.NORMAL and text not in added:
            score -= 1.0


def check_bytes(entries: Sequence[VocabularyEntry], where: str, *, is_unigram: bool) -> None:
    """Raise `TokenizerError` if llama.cpp treats characters outside of the vocabulary differently.

    In llama.cpp, a BPE model converts them to bytes, and a unigram model to the unknown token. So a
    BPE model must have a token for every byte, and a unigram model must not have such tokens.
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
    """Raise `TokenizerError` if a token spans words, which llama.cpp does not split."""
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


def list_pairs(written: object, path: str) -> Iterator[tuple[str, str]]:
    """Yield the merges of a tokenizer.json.

    Raises `TokenizerError` if one is not a pair of tokens.
    """
    for merge in written if is_list(written) else ():
        match merge.split(" ") if isinstance(merge, str) else merge:
            case [str(left), str(right)]:
                yield left, right
            case _:
                raise TokenizerError(
                    f"{path}: the merge {merge!r:.200} is not a pair of tokens", hint=KEEP_HINT
                )


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs of tokens whose concatenation is a token, the highest score first.

    Pairs with equal scores are ordered as in transformers (`generate_merges`): longer left parts
    first, then longer right parts, then the token that is first in `scores`. Raises
    `TokenizerError` if their total length exceeds that of any vocabulary.
    """
    made: list[tuple[str, str]] = []
    # Only a few of the positions at which a long token could be split must be checked.
    lengths = {len(token) for token in scores}
    size = 0
    for _, tokens in groupby(sorted(scores, key=lambda token: -scores[token]), scores.__getitem__):
        equal = list(tokens)
        pairs: list[tuple[str, str]] = []
        for token in equal:
            for cut in range(len(token) - 1, 0, -1):
                if cut not in lengths or len(token) - cut not in lengths:
                    continue
                left, right = token[:cut], token[cut:]
                if left in scores and right in scores:
                    pairs.append((left, right))
                    size += len(token)
                    if size > _MOST_TEXT:
                        raise TokenizerError(
                            f"tokens such as {token!r:.50} can be merged from other tokens in too "
                            "many ways",
                            hint=f"`tokenizer.ggml.tokens` is damaged; {KEEP_HINT}",
                        )
        if len(equal) > 1:  # the pairs of one token are already in order
            pairs.sort(key=lambda pair: (-len(pair[0]), -len(pair[1])))
        made += pairs
    return made


def rank_tokens(merges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return each token that merges produce, with its rank in the order of the merges."""
    made = dict.fromkeys(left + right for left, right in merges)
    return {token: place for place, token in enumerate(made)}

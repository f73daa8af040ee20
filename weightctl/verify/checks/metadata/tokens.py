"""Compares the vocabularies of two tokenizers: texts, types, scores and merges."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from weightctl.translate.tokenizer.added import is_padding
from weightctl.translate.tokenizer.record import TokenType
from weightctl.verify.checks.metadata.description import (
    first_examples,
    quote,
    show_token,
    state_differences,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.checks.metadata.description import TokenizerPair
    from weightctl.verify.results import Findings

# llama.cpp merges the pair with the highest score, so only the order of the scores matters.
_BY_ORDER = "llama"
_SCORED = {_BY_ORDER, "t5", "Unigram"}
_MERGED = {"gpt2", "gemma4", "BPE"}
# The types that are ordinary text in encoding. Other types differ in how tokens are shown, and in
# whether text may contain them; tools that write GGUF use them differently.
_ORDINARY = {int(TokenType.NORMAL), 0}
_BYTE, _UNUSED = int(TokenType.BYTE), int(TokenType.UNUSED)
# The rounding of float32, in which GGUF stores scores.
_ROUNDING = 1e-6


def compare_tokens(found: Findings, pair: TokenizerPair) -> None:
    """Compare the texts of tokens by id; tokens that only pad the vocabulary are ignored."""
    own, other = pair.tokenizer, pair.reference
    where = pair.own.place("tokens")
    if own.tokens != other.tokens:
        _compare_texts(found, where, own, other)
        _compare_counts(found, where, own, other)


def _compare_texts(found: Findings, where: str, own: Tokenizer, other: Tokenizer) -> None:
    places: Sequence[int] = [
        place
        for place, (text, wanted) in enumerate(zip(own.tokens, other.tokens, strict=False))
        if text != wanted and not (_is_padding(own, place) and _is_padding(other, place))
    ]
    if not places:
        return
    examples = [
        f"token {show_token(own, place)} is {quote(other.tokens[place])} in the reference"
        for place in first_examples(places)
    ]
    texts = sorted(own.tokens[place] for place in places)
    is_reordered = texts == sorted(other.tokens[place] for place in places)
    text = state_differences(examples, len(places))
    if is_reordered:
        what = "are swapped" if len(places) == 2 else ("are in another order than in the reference")
        text = f"{len(places):,} tokens {what}: {text}"
    found.add(where, text)


def _compare_counts(found: Findings, where: str, own: Tokenizer, other: Tokenizer) -> None:
    count, wanted = len(own.tokens), len(other.tokens)
    longer = own if count > wanted else other
    places: Sequence[int] = [
        place
        for place in range(min(count, wanted), max(count, wanted))
        if not _is_padding(longer, place)
    ]
    if not places:
        return
    shown = [f"token {show_token(longer, place)}" for place in first_examples(places)]
    what = "not in the reference" if longer is own else "missing, and in the reference"
    found.add(
        where,
        f"the vocabulary has {count:,} tokens here and {wanted:,} in the reference; {what}: "
        f"{state_differences(shown, len(places))}",
    )


def _is_padding(tokenizer: Tokenizer, place: int) -> bool:
    return tokenizer.types[place] == _UNUSED or is_padding(tokenizer, place)


def compare_types(found: Findings, pair: TokenizerPair) -> None:
    """Compare the types of the tokens that have the same id and text in both vocabularies.

    If a checkpoint is in GGUF, types that do not change the encoding of texts are notes.
    """
    own, other = pair.tokenizer, pair.reference
    if own.types == other.types:
        return
    changes: dict[tuple[int, int], list[int]] = {}
    texts = zip(own.tokens, other.tokens, strict=False)
    for place, (text, wanted) in enumerate(texts):
        change = own.types[place], other.types[place]
        if text == wanted and change[0] != change[1] and not {*change} <= _ORDINARY:
            changes.setdefault(change, []).append(place)
    for (kind, wanted_kind), places in changes.items():
        shown = [f"token {show_token(own, place)}" for place in first_examples(places)]
        examples = state_differences(shown, len(places))
        be = "is" if len(places) == 1 else "are"
        text = (
            f"{examples} {be} of type {_name_type(kind)} here and {_name_type(wanted_kind)} "
            "in the reference"
        )
        are_configs = not pair.own.is_gguf and not pair.other.is_gguf
        if are_configs or _matters(kind, wanted_kind):
            found.add(pair.own.place("token_type"), text)
        else:
            found.notes.append(text)


def _matters(kind: int, wanted: int) -> bool:
    return (kind in _ORDINARY) != (wanted in _ORDINARY) or _BYTE in {kind, wanted}


def _name_type(kind: int) -> str:
    return TokenType(kind).name if kind else TokenType.NORMAL.name


def compare_scores(found: Findings, pair: TokenizerPair) -> None:
    """Compare token scores, if the tokenizer uses them.

    For a `llama` tokenizer, only the order of the scores is compared; for others, each score.
    """
    own, other = pair.tokenizer, pair.reference
    if own.model not in _SCORED or own.scores == other.scores:
        return
    where = pair.own.place("scores")
    if own.scores is None or other.scores is None:
        text = "the vocabulary has scores, but that of the reference has none"
        if own.scores is None:
            text = "the vocabulary has no scores, but that of the reference has them"
        found.add(where, text)
        return
    places: Sequence[int] = [
        place
        for place, (text, wanted) in enumerate(zip(own.tokens, other.tokens, strict=False))
        if text == wanted
        and {own.types[place], other.types[place]} <= _ORDINARY
        and not _is_close(own.scores[place], other.scores[place])
    ]
    if own.model == _BY_ORDER:
        places = _find_out_of_order(own, other, places)
    if places:
        examples = [
            f"the score of token {show_token(own, place)} is {own.scores[place]:g} here and "
            f"{other.scores[place]:g} in the reference"
            for place in first_examples(places)
        ]
        found.add(where, state_differences(examples, len(places)))


def _is_close(score: float, wanted: float) -> bool:
    return score == wanted or abs(score - wanted) <= _ROUNDING * abs(wanted)


def _find_out_of_order(own: Tokenizer, other: Tokenizer, places: Sequence[int]) -> Sequence[int]:
    """Return `places`, whose scores differ; none if both rank all tokens in the same way."""
    if not places or own.scores is None or other.scores is None:
        return []
    count = min(len(own.tokens), len(other.tokens))
    ranked = [
        place for place in range(count) if {own.types[place], other.types[place]} <= _ORDINARY
    ]
    ours, theirs = own.scores, other.scores
    ranked.sort(key=lambda place: (ours[place], theirs[place]))
    is_alike = all(
        (ours[one] < ours[two]) == (theirs[one] < theirs[two])
        and (ours[one] == ours[two]) == (theirs[one] == theirs[two])
        for one, two in pairwise(ranked)
    )
    return [] if is_alike else places


def compare_merges(found: Findings, pair: TokenizerPair) -> None:
    """Compare the merges of byte-level BPE, including their order."""
    own, other = pair.tokenizer.merges or (), pair.reference.merges or ()
    if pair.tokenizer.model not in _MERGED or own == other:
        return
    places: Sequence[int] = [
        place
        for place, (merge, wanted) in enumerate(zip(own, other, strict=False))
        if merge != wanted
    ]
    examples = [
        f"merge {place} is {quote(own[place])} here and {quote(other[place])} in the reference"
        for place in first_examples(places)
    ]
    parts = [state_differences(examples, len(places))] if places else []
    if len(own) != len(other):
        parts.append(f"there are {len(own):,} merges here and {len(other):,} in the reference")
    elif sorted(own) == sorted(other):
        parts.insert(0, "the merges are in another order than in the reference")
    found.add(pair.own.place("merges"), ": ".join(parts))

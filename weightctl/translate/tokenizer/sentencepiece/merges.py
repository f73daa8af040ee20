"""Scores and merges: the two ways to say in which order SentencePiece's BPE joins tokens.

SentencePiece, and llama.cpp after it, joins the neighbours whose concatenation is the token of the
highest score. Hugging Face's BPE joins the pair that stands first in a list. The list that does
the same has every pair of tokens whose concatenation is a token, by the score of the result.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from weightctl.errors import TokenizerError
from weightctl.translate.tokenizer.files import KEEP_HINT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["merges_from_scores", "rank_tokens"]

# Ten times what the largest vocabularies make.
_MOST_TEXT = 50_000_000


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return the pairs that make each token out of two others, the highest score first.

    Between equal scores: the pair of the longer left part first, then of the longer right part,
    then of the token that comes first in `scores`, as transformers has it (`generate_merges`).
    Raises `TokenizerError` if that is more text than any vocabulary makes.
    """
    made: list[tuple[str, str]] = []
    # Of a long token few of all the places where it could be cut are worth a look.
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
                            f"many ways",
                            hint=f"`tokenizer.ggml.tokens` is damaged; {KEEP_HINT}",
                        )
        if len(equal) > 1:  # the pairs of one token are in order already
            pairs.sort(key=lambda pair: (-len(pair[0]), -len(pair[1])))
        made += pairs
    return made


def rank_tokens(merges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return each token that merges make, with its place when they are taken in order."""
    made = dict.fromkeys(left + right for left, right in merges)
    return {token: place for place, token in enumerate(made)}

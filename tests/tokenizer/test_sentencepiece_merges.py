"""Merges from scores, and scores from merges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from transformers.tokenization_utils_base import generate_merges

from weightctl.translate.tokenizer.sentencepiece.merges import merges_from_scores, rank_tokens

_SCORES = st.dictionaries(st.text("ab▁", min_size=1, max_size=5), st.integers(-9, 0).map(float))


def test_the_token_of_the_highest_score_is_joined_first_in_every_way_it_can_be() -> None:
    scores = {"a": -9.0, "b": -9.0, "ab": -2.0, "aba": -3.0, "ba": -1.0}
    assert merges_from_scores(scores) == [("b", "a"), ("a", "b"), ("ab", "a"), ("a", "ba")]


def keys(pair: tuple[str, str], scores: dict[str, float]) -> tuple[float, int, int]:
    left, right = pair
    return scores[left + right], len(left), len(right)


@given(_SCORES)
def test_merges_are_those_that_transformers_makes(scores: dict[str, float]) -> None:
    ids = {token: index for index, token in enumerate(scores)}
    made = generate_merges(ids, scores)
    # Where all else is equal the two have orders of their own, which joins nothing otherwise.
    assert sorted(merges_from_scores(scores)) == sorted(made)
    assert [keys(pair, scores) for pair in merges_from_scores(scores)] == [
        keys(pair, scores) for pair in made
    ]


@given(_SCORES)
def test_tokens_that_merges_make_are_ranked_as_their_scores_are(scores: dict[str, float]) -> None:
    distinct = {token: -float(place) for place, token in enumerate(scores)}
    made = rank_tokens(merges_from_scores(distinct))
    assert list(made) == sorted(made, key=distinct.__getitem__, reverse=True)

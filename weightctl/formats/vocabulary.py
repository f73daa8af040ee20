"""Contradictions in a GGUF's vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weightctl.text.untyped import is_sequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from weightctl.weights.metadata import MetadataValue

__all__ = ["absent_tokens"]

_PREFIX = "tokenizer.ggml."
_TOKENS = "tokenizer.ggml.tokens"


def absent_tokens(metadata: Mapping[str, MetadataValue]) -> tuple[str, ...]:
    """Return a sentence for each special token whose id is that of no token.

    A tool that writes -1, for a token that a model does not have, into an unsigned value makes it
    4294967295; llama.cpp takes that for none, and other readers fail on it.
    """
    tokens = metadata.get(_TOKENS)
    if tokens is None or not is_sequence(tokens.content):
        return ()
    count = len(tokens.content)
    return tuple(
        f"`{key}` is {value.content}, which is not a token: the vocabulary has {count}; "
        f"`--unset {key}` leaves it out"
        for key, value in metadata.items()
        if key.startswith(_PREFIX)
        and key.endswith("_token_id")
        and isinstance(value.content, int)
        and not 0 <= value.content < count
    )

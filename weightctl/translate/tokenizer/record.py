"""A model's tokenizer, in the terms that GGUF keeps it in."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WORDS", "TokenType", "Tokenizer"]

# What Hugging Face's files call `tokenizer.ggml.WORD_token_id`, in llama.cpp's order.
WORDS = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}


class TokenType(IntEnum):
    """What kind of token an id represents (ggml's `llama_token_type`)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenizer:
    """What both naming conventions say of a tokenizer.

    `model` is `tokenizer.ggml.model`: "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE with
    scores), "bert" (WordPiece), "t5" (unigram). `pre` is `tokenizer.ggml.pre`. `tokens` are spelt
    as GGUF spells them, and `types` are theirs, `TokenType`s; `merges` are "left right". `special`
    gives the ids of `bos`, `eos`, `unknown`, `seperator`, `padding`, `cls`, `mask`, `eot` ...: the
    words of the keys `tokenizer.ggml.WORD_token_id`. `ends` are all ids that end generation, in
    their order, where that is more than the `eos` of `special`. `flags` are `add_bos_token`,
    `add_space_prefix` ...: the keys `tokenizer.ggml.FLAG`. Of `chat_templates` "" is the default
    one. `token_type_count` is how many kinds of segment the model knows; `charsmap` is
    SentencePiece's compiled normalization; `remainder` what only Hugging Face's files say (see
    `remainder.py`). `notes` say where llama.cpp treats text differently from the files that the
    tokenizer was read from.
    """

    model: str
    pre: str | None = None
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...] | None = None
    merges: tuple[str, ...] | None = None
    special: Mapping[str, int] = field(default_factory=dict[str, int])
    ends: tuple[int, ...] = ()
    flags: Mapping[str, bool] = field(default_factory=dict[str, bool])
    chat_templates: Mapping[str, str] = field(default_factory=dict[str, str])
    token_type_count: int | None = None
    charsmap: bytes | None = None
    remainder: str | None = None
    notes: tuple[str, ...] = ()

    def first(self, count: int) -> Tokenizer:
        """Return the same of its first `count` tokens alone."""
        return replace(
            self,
            tokens=self.tokens[:count],
            types=self.types[:count],
            scores=None if self.scores is None else self.scores[:count],
            special={word: token for word, token in self.special.items() if token < count},
            ends=tuple(token for token in self.ends if token < count),
        )

"""Results of comparing the metadata of two checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weightctl.text.wording import printable, say_more
from weightctl.verify.results import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from weightctl.translate.tokenizer import Tokenizer
    from weightctl.verify.checks.metadata.description import Description

__all__ = ["Compared", "TokenizerPair", "quote", "show_token", "state_differences"]

# The number of examples of one kind of difference that a line has room for.
_MOST_EXAMPLES = 3
_LONGEST = 60


@dataclass(frozen=True)
class TokenizerPair:
    """Two descriptions to compare, and their tokenizers, both read in the same way."""

    own: Description
    other: Description
    tokenizer: Tokenizer
    reference: Tokenizer

    @property
    def is_across(self) -> bool:
        """Whether the two have different naming conventions."""
        return self.own.convention != self.other.convention


@dataclass
class Compared:
    """Problems, for differences that break the model in use, and notes on the others."""

    problems: list[Problem] = field(default_factory=list[Problem])
    notes: list[str] = field(default_factory=list[str])

    def add(self, where: str, text: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(where=where, text=text))

    def extend(self, other: Compared) -> None:
        """Add the problems and notes of another comparison."""
        self.problems += other.problems
        self.notes += other.notes


def state_differences(examples: Iterable[str], count: int) -> str:
    """Return text with some examples, and the number of further differences of the same kind."""
    shown = "; ".join(examples)
    more = say_more(count - _MOST_EXAMPLES)
    return f"{shown}; {more}" if more else shown


def first_examples(places: Sequence[int]) -> Sequence[int]:
    """Return the places to show as examples."""
    return places[:_MOST_EXAMPLES]


def show_token(tokenizer: Tokenizer, token: int) -> str:
    """Return a token's id and text: 305 `a`."""
    if not 0 <= token < len(tokenizer.tokens):
        return f"{token}, which is outside the vocabulary of {len(tokenizer.tokens):,}"
    return f"{token} {quote(tokenizer.tokens[token])}"


def quote(text: str) -> str:
    """Return a text in backquotes, shortened if it is long."""
    shown = printable(text)
    return f"`{shown}`" if len(shown) <= _LONGEST else f"`{shown[: _LONGEST - 1]}…`"

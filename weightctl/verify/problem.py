"""What is wrong with a checkpoint, and what may have caused it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_NAMED", "Cause", "Problem", "first_of"]

# Of thousands that are alike nobody reads more; a file may claim any number of them.
MOST_NAMED = 20


class Cause(NamedTuple):
    """What probably went wrong: a stable name for scripts, and a sentence for people."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong.

    `where` is a tensor or a key as the checkpoint calls it, a block of the model (`layers.3`) or a
    file; empty where it is the whole. `text` says what is wrong with that, and `cause` what
    probably caused it, where that is known; `hint` says what to do where the error does that was
    raised. `check` is the name of the check that found it, empty as long as that runs.
    """

    where: str
    text: str
    cause: Cause | None = None
    hint: str = ""
    check: str = ""

    @property
    def said(self) -> str:
        """What is wrong, without the name of where that is, for where it stands before it."""
        rest = self.text.removeprefix(self.where)
        is_named = self.where and rest != self.text and rest[:1] in {":", ","}
        return rest[1:].lstrip() if is_named else self.text

    def __str__(self) -> str:
        cause = f" ({self.cause.text})" if self.cause else ""
        return f"{self.where}: {self.said}{cause}" if self.where else f"{self.text}{cause}"


def first_of(problems: Sequence[Problem], others: str, where: str = "") -> Sequence[Problem]:
    """Return problems as they are, or the first of them and how many more there are.

    `others` says that, with `{}` where the number belongs, and `where` is where they are together.
    """
    left = len(problems) - MOST_NAMED
    if left <= 0:
        return problems
    return [*problems[:MOST_NAMED], Problem(where=where, text=others.format(left))]

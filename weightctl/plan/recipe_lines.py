"""Recipes: tables of rules that determine the type of each matrix of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    import re

    from weightctl.dtype import Encoding

# What names the choice of `Recipe.otherwise`.
OTHERWISE = "otherwise"


class RecipeLine(NamedTuple):
    """A line of a recipe: the type for some tensors; None keeps their types.

    `tensors` is a role, or a pattern that is searched in the name. `when` lists conditions,
    separated by commas, that must all be true; `not` before a condition negates it.
    """

    tensors: str | re.Pattern[str]
    when: str
    type: str | None

    def __str__(self) -> str:
        tensors = self.tensors if isinstance(self.tensors, str) else self.tensors.pattern
        return ": ".join(filter(None, (tensors, self.when)))


class Recipe(NamedTuple):
    """Types for the matrices of a model: the first line that applies to a tensor decides.

    `otherwise` is the type of the other matrices; None keeps their types. `file_type` is the
    recipe's number in llama.cpp (`llama_ftype` in llama.h), None if it has none. `path` is the file
    of the recipe. If `wants_importance` is True, llama.cpp requires an importance matrix.
    """

    name: str
    otherwise: str | None
    lines: tuple[RecipeLine, ...]
    file_type: int | None = None
    path: str = ""
    wants_importance: bool = False

    @property
    def encodings(self) -> list[Encoding]:
        """All encodings that the recipe can choose, each once."""
        types = [self.otherwise, *(line.type for line in self.lines)]
        return [ENCODINGS[name] for name in dict.fromkeys(types) if name is not None]

"""Recipes: tables of rules that determine the type of each matrix of a model.

`recipes.toml` has those of llama.cpp.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from weightctl.dtype import ENCODINGS

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator

    from weightctl.dtype import Encoding

# What names the choice of `Recipe.otherwise`.
OTHERWISE = "otherwise"

RECIPE_TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("recipes.toml").read_text("utf-8")
)


class RecipeLine(NamedTuple):
    """A line of a recipe: the type for some tensors; None keeps their types.

    `tensors` is a role, or a pattern that is searched in the name. `when` has the names of
    conditions that must all be true; `!` before a name negates it.
    """

    tensors: str | re.Pattern[str]
    when: tuple[str, ...]
    type: str | None

    def __str__(self) -> str:
        tensors = self.tensors if isinstance(self.tensors, str) else self.tensors.pattern
        return ": ".join(filter(None, (tensors, self.conditions)))

    @property
    def conditions(self) -> str:
        """The conditions in words."""
        words: dict[str, str] = RECIPE_TABLE["conditions"]
        return ", ".join(
            f"not {words[each[1:]]}" if each.startswith("!") else words[each] for each in self.when
        )


class Recipe(NamedTuple):
    """Types for the matrices of a model: the first line that applies to a tensor decides.

    `otherwise` is the type of the other matrices; None keeps their types. `file_type` is the
    recipe's number in llama.cpp (`llama_ftype` in llama.h), None if it has none, and
    `file_types.GUESSED` if no number names its types. `path` is the file
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


def _read_lines(rows: Iterable[Any]) -> Iterator[RecipeLine]:
    for row in rows:
        if isinstance(row, str):
            yield from _read_lines(RECIPE_TABLE["groups"][row.removeprefix("@")])
        else:
            tensors, when, kind = row
            yield RecipeLine(tensors, tuple(when.split()), kind)


LLAMA_RECIPES = {
    name: Recipe(
        name,
        entry["otherwise"],
        tuple(_read_lines(entry.get("lines", ()))),
        entry["file_type"],
        wants_importance=entry.get("importance", False),
    )
    for name, entry in RECIPE_TABLE["recipes"].items()
}

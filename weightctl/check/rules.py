"""What a rule is and what it finds, and the table of rules, `rules.toml`."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


class Level(StrEnum):
    """How serious a finding is: with an error, programs fail or compute something wrong."""

    ERROR = "error"
    WARNING = "warning"


class Rule(NamedTuple):
    """A rule: the function that finds violations, `(model: CheckedModel) -> Iterable[RuleFinding]`.

    `about` is a sentence that states what holds for sound files. `details` explain what happens if
    it does not hold. `fix` says what `--fix` does; it is empty if nothing can be fixed safely.
    """

    find: str
    level: Level
    about: str
    details: str
    fix: str = ""


class JsonChange(NamedTuple):
    """A change of a JSON file: the entry at `keys` gets a value, or is removed."""

    path: str
    keys: tuple[str, ...]
    value: Any = None
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFinding:
    """A violation of a rule: the file, the key or tensor in it, and a sentence.

    `where` is empty if the finding is about the whole file. `changes` correct the finding; there
    are none if it cannot be corrected safely. `rule` is the id of the rule, and `level`
    its level; they are missing while the rule runs.
    """

    path: str
    text: str
    where: str = ""
    hint: str = ""
    changes: tuple[JsonChange, ...] = ()
    rule: str = ""
    level: Level | None = None


def _read_rules() -> dict[str, Rule]:
    with open(os.path.join(os.path.dirname(__file__), "rules.toml"), "rb") as file:
        table = tomllib.load(file)
    return {
        name: Rule(**row | {"find": f"weightctl.check.{row['find']}", "level": Level(row["level"])})
        for name, row in table.items()
    }


RULES = _read_rules()

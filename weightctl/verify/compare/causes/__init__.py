"""The table of causes, `causes.toml`: what may have gone wrong, and what to do about it."""

from __future__ import annotations

import os
import tomllib
from typing import NamedTuple


class Cause(NamedTuple):
    """A mistake that may explain a problem: a sentence about it, and a remedy.

    A cause that changes a tensor's values is searched for in a pair of tensors. `detector` names a
    function `(pair, pairing, measured) -> Explanation | None`, which may return any of several
    causes. `guess` names a function `(pair, pairing) -> Iterator[Guess]`, which makes the mistake
    in the reference's tensor; a guess is right if its result equals the checkpoint's tensor. Both
    are empty for causes that a check detects itself.

    `computes_the_same` is set if the model gives the same results as the reference. `of_both` is
    set if the cause is about both checkpoints as a whole; such a cause comes first in a summary.
    `takes_another` is set if a tensor is in the place of another tensor of the model, which does
    not depend on the naming convention.
    """

    sentence: str
    remedy: str
    detector: str = ""
    guess: str = ""
    computes_the_same: bool = False
    of_both: bool = False
    takes_another: bool = False


def _read_causes() -> dict[str, Cause]:
    with open(os.path.join(os.path.dirname(__file__), "causes.toml"), "rb") as file:
        table = tomllib.load(file)
    causes: dict[str, Cause] = {}
    for name, row in table["causes"].items():
        row["remedy"] = table["remedies"][row["remedy"]]
        row |= {key: f"{__name__}.{row[key]}" for key in ("detector", "guess") if key in row}
        causes[name] = Cause(**row)
    return causes


# Detectors and guesses are tried in the order of the table.
CAUSES = _read_causes()


def is_of_both(name: str) -> bool:
    """Whether the cause is about both checkpoints as a whole; false for names not in `CAUSES`."""
    return name in CAUSES and CAUSES[name].of_both

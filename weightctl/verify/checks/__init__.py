"""The table of checks, `checks.toml`: what each looks at, its limits, and its remedy."""

from __future__ import annotations

import os
import tomllib
from typing import NamedTuple


class Limit(NamedTuple):
    """A limit that a user sets: its option, and the field of the request that holds it.

    If `needs_reference` is set, it limits a difference from the reference. If `of_whole_model` is
    set, it cannot be applied to some layers only.
    """

    option: str
    field: str
    needs_reference: bool = False
    of_whole_model: bool = False


class Check(NamedTuple):
    """A check: the function that runs it, `(request: Request) -> Result`, and texts about it.

    `about` is one line, and `details` say more. `figures` is the class of its measurements, which
    the schema of reports describes under the name of the check. `remedy` is what to do about
    problems without a known cause. `limits` are applied by this check.

    `needs_reference` is set if the check only compares two checkpoints, and `compares` if it lists
    differences when there is a reference. If `reads_tensors` is not set, it reads only headers.
    `opens_files` is set if it reports files that cannot be opened; no other check runs for them.
    `is_asked_for` is set if it runs only if it is selected by name.
    `prepares` is a function `(request: Request) -> object` that runs before all checks. It raises
    `ConversionError` for a request that the check cannot fulfill. `uses_torch` is set if it runs
    the model.
    """

    run: str
    about: str
    details: str
    figures: str = ""
    remedy: str = ""
    limits: tuple[Limit, ...] = ()
    needs_reference: bool = False
    compares: bool = False
    reads_tensors: bool = True
    opens_files: bool = False
    is_asked_for: bool = False
    prepares: str = ""
    uses_torch: bool = False


def _read_checks() -> dict[str, Check]:
    with open(os.path.join(os.path.dirname(__file__), "checks.toml"), "rb") as file:
        table = tomllib.load(file)
    for row in table.values():
        row |= {key: f"{__name__}.{row[key]}" for key in ("run", "prepares") if key in row}
        row["limits"] = tuple(Limit(**each) for each in row.get("limits", ()))
    return {name: Check(**row) for name, row in table.items()}


CHECKS = _read_checks()

"""What README.md and `schemas/verify.json` say of the tables of checks and causes.

`python tests/support/verify_tables.py` writes it into both.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from weightctl.verify import CHECKS
from weightctl.verify.compare.causes import CAUSES

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parent.parent.parent
README, SCHEMA = ROOT / "README.md", ROOT / "weightctl" / "schemas" / "verify.json"

_NAMES = re.compile(r'(?<="description": "A stable name: ).*(?=, or another\.",)')
_CHECKS = re.compile(r'(?<="propertyNames": \{"enum": \[).*(?=\]\})')
_FIGURES = re.compile(r'(?<="anyOf": \[\n {12}\{"type": "null"\},\n).*?(?=\n {10}\])', re.DOTALL)


def describe_checks() -> dict[str, str]:
    """Return the rows of README's table of checks."""
    return {name: check.details for name, check in CHECKS.items()}


def describe_causes() -> dict[str, str]:
    """Return the rows of README's table of causes."""
    note = ": a note, and not a problem, without `--max-rmse`"
    return {
        name: cause.sentence + (note if cause.computes_the_same else "")
        for name, cause in CAUSES.items()
    }


def update_readme(page: str) -> str:
    """Return the README with the tables as they are now."""
    page = _replace_table(page, "check", describe_checks())
    return _replace_table(page, "cause", describe_causes())


def update_schema(page: str) -> str:
    """Return the schema with the names of checks and causes as they are now."""
    measured = [name for name, check in CHECKS.items() if check.figures is not None]
    references = ",\n".join(f'            {{"$ref": "#/$defs/{name}"}}' for name in measured)
    page = _NAMES.sub(", ".join(CAUSES), page)
    page = _CHECKS.sub(", ".join(f'"{name}"' for name in CHECKS), page)
    return _FIGURES.sub(references, page)


def _replace_table(page: str, noun: str, rows: Mapping[str, str]) -> str:
    head = f"| {noun} | |\n|---|---|\n"
    before, _, rest = page.partition(head)
    _, _, after = rest.partition("\n\n")
    lines = "\n".join(f"| `{name}` | {text} |" for name, text in rows.items())
    return f"{before}{head}{lines}\n\n{after}"


if __name__ == "__main__":
    README.write_text(update_readme(README.read_text()))
    SCHEMA.write_text(update_schema(SCHEMA.read_text()))

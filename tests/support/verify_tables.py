"""What docs/verify.md and `schemas/verify.json` say of the tables of checks and causes.

`python tests/test_docs.py` writes both.
"""

from __future__ import annotations

import re
from pathlib import Path

from weightctl.verify import CHECKS
from weightctl.verify.compare.causes import CAUSES

ROOT = Path(__file__).parent.parent.parent
SCHEMA = ROOT / "weightctl" / "schemas" / "verify.json"

_NAMES = re.compile(r'(?<="description": "A stable name: ).*(?=, or another\.",)')
_CHECKS = re.compile(r'(?<="propertyNames": \{"enum": \[).*(?=\]\})')
_FIGURES = re.compile(r'(?<="anyOf": \[\n {12}\{"type": "null"\},\n).*?(?=\n {10}\])', re.DOTALL)


def describe_checks() -> dict[str, str]:
    """Return the rows of the table of checks."""
    return {name: check.details for name, check in CHECKS.items()}


def describe_causes() -> dict[str, str]:
    """Return the rows of the table of causes."""
    note = "; a note, not a problem, unless `--max-rmse` is given"
    return {
        name: cause.sentence + (note if cause.computes_the_same else "")
        for name, cause in CAUSES.items()
    }


def update_schema(page: str) -> str:
    """Return the schema with the names of checks and causes as they are now."""
    measured = [name for name, check in CHECKS.items() if check.figures is not None]
    references = ",\n".join(f'            {{"$ref": "#/$defs/{name}"}}' for name in measured)
    page = _NAMES.sub(", ".join(CAUSES), page)
    page = _CHECKS.sub(", ".join(f'"{name}"' for name in CHECKS), page)
    return _FIGURES.sub(references, page)

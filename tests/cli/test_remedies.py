"""Whatever a check says to be the cause, a person is told what to do about it."""

from __future__ import annotations

import ast
import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from weightctl.verify.compare.causes.dequantized import DEQUANTIZED
from weightctl.verify.report.remedies import list_remedies
from weightctl.verify.results import Cause, Problem, Report, Result

ROOT = Path(__file__).parent.parent.parent
README, SCHEMA = ROOT / "README.md", ROOT / "weightctl" / "schemas" / "verify.json"
SOURCES = sorted(Path(str(files("weightctl.verify"))).rglob("*.py"))


def causes() -> list[str]:
    """Return the names of all causes that are made in the checks."""
    found = {
        node.args[0].value
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Cause"
        and isinstance(node.args[0], ast.Constant)
    }
    return sorted(map(str, found))


def test_the_schema_and_the_readme_list_every_cause() -> None:
    listed = json.loads(SCHEMA.read_text())["$defs"]["cause"]["properties"]["name"]["description"]
    page = README.read_text()
    for name in (*causes(), DEQUANTIZED):
        assert re.search(rf"\b{name}\b", listed), name
        assert f"`{name}`" in page, name


def test_the_causes_are_found_in_the_sources() -> None:
    assert {"rope_rows", "config", "zeroed", "scale"} <= {*causes()}


@pytest.mark.parametrize("name", causes())
def test_there_is_something_to_do_about_every_cause(name: str) -> None:
    problem = Problem(check="values", where="a", text="is wrong", cause=Cause(name, "so"))
    report = Report(
        path="a",
        reference="b",
        description="a model",
        results={"values": Result(problems=(problem,))},
        seconds={"values": 0.0},
    )
    assert len(list_remedies(report)) == 1

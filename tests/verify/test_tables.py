"""The schema and the remedies follow the tables of checks and causes."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import faults
from doc_tables import SCHEMA, update_schema
from weightctl.system.registry import load
from weightctl.verify import CHECKS, Check, Explanation, Problem, Report, Request, Result, Subject
from weightctl.verify import verify as run_checks
from weightctl.verify.compare.causes import CAUSES, Cause
from weightctl.verify.figures import Figures
from weightctl.verify.report import list_remedies
from weightctl.verify.report.json_document import make_document
from weightctl.verify.report.markdown import render_page

if TYPE_CHECKING:
    from crossing_fixtures import Models
    from weightctl.verify.compare.distance import Measured
    from weightctl.verify.compare.pairing import Pair, Pairing

ROOT = Path(__file__).parent.parent.parent
FIXTURE = str(ROOT / "fixtures" / "tiny-llama")
SOURCES = sorted(Path(str(files("weightctl.verify"))).rglob("*.py"))
SCRIPT = "run `python tests/test_docs.py`"


def list_explained() -> set[str]:
    """Return the names of the causes by which checks and detectors explain problems."""
    return {
        str(node.args[0].value)
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "Explanation"
        and isinstance(node.args[0], ast.Constant)
    }


def test_the_schema_lists_the_checks_and_causes_of_the_tables() -> None:
    page = SCHEMA.read_text()
    assert update_schema(page) == page, SCRIPT
    assert all(name in page for name in (*CHECKS, *CAUSES))


@pytest.mark.parametrize("name", CHECKS)
def test_the_schema_describes_the_figures_of_each_check(name: str) -> None:
    kind = CHECKS[name].figures
    assert kind is not None
    described = json.loads(SCHEMA.read_text())["$defs"][name]["properties"]
    assert list(described) == [field.name for field in fields(kind)]  # type: ignore[arg-type]


def test_causes_are_those_that_explain_something() -> None:
    assert list_explained() == CAUSES.keys()


def test_what_the_tables_refer_to_is_there() -> None:
    references = [each.run for each in CHECKS.values()]
    references += [each.prepares for each in CHECKS.values() if each.prepares]
    for cause in CAUSES.values():
        assert not (cause.detector and cause.guess)
        references += filter(None, (cause.detector, cause.guess))
    assert all(callable(load(each)) for each in references)


@pytest.mark.parametrize("name", CAUSES)
def test_there_is_something_to_do_about_every_cause(name: str) -> None:
    problem = Problem(check="values", where="a", text="is wrong", cause=Explanation(name, "so"))
    report = Report(
        path="a",
        reference="b",
        description="a model",
        results={"values": Result(problems=(problem,))},
        seconds={"values": 0.0},
    )
    assert len(list_remedies(report)) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFigures(Figures):
    """How many letters the path of a checkpoint has."""

    letters: int

    def summarize(self) -> str:
        """Return what was measured, in a line."""
        return f"{self.letters} letters"


def check_letters(request: Request) -> Result:
    """Find that the path of a checkpoint is long."""
    count = len(request.subject.path)
    problem = Problem(where="", text="the path is long")
    return Result(problems=(problem,), figures=LetterFigures(letters=count))


def test_a_check_is_a_function_and_a_line_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    about = "the path is short"
    line = Check(f"{__name__}:check_letters", about, about, LetterFigures, "shorten it")
    monkeypatch.setitem(CHECKS, "letters", line)
    report = run_checks(Request(subject=Subject(FIXTURE)), ["letters"])
    assert [problem.check for problem in report.problems] == ["letters"]
    assert list_remedies(report) == ["shorten it"]
    document = make_document(report)
    assert document["checks"]["letters"]["figures"] == {"letters": len(FIXTURE)}
    assert "the path is long" in render_page(report)


def find_anything(pair: Pair, pairing: Pairing, found: Measured) -> Explanation:
    """Explain whatever differs."""
    del pairing, found
    return Explanation("anything", f"`{pair.name}` is anything")


def test_a_cause_is_a_function_and_a_line_of_the_table(
    healthy: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Cause("a tensor is anything", "do it", f"{__name__}:find_anything")
    monkeypatch.setitem(CAUSES, "anything", line)
    made = faults.read(healthy("tiny-llama"))
    module = "layers.0.mlp.down.weight"
    noise = np.random.default_rng(1).standard_normal(made.numbers(module).shape)
    made.put(module, noise.astype(np.float32))
    subject = Subject(made.write(tmp_path / "faulty"))
    request = Request(subject=subject, reference=Subject(healthy("tiny-llama")))
    report = run_checks(request, ["values"])
    causes = [problem.cause and problem.cause.name for problem in report.problems]
    assert (causes, list_remedies(report)) == (["anything"], ["do it"])

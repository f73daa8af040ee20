"""`weightctl check`: exit codes, what is printed, SARIF, and options that are refused."""

from __future__ import annotations

import json
from shutil import copytree
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft4Validator

from check_files import change
from commands import TINY
from commands import run_command as weightctl
from conftest import ROOT
from weightctl.check import RULES

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a model whose config states a wrong dtype and an unknown template."""
    copytree(ROOT / "fixtures" / "tiny-llama", tmp_path / "model")
    change(tmp_path / "model" / "config.json", torch_dtype="float16")
    (tmp_path / "model" / "chat_template.jinja").write_text("{% if %}")
    return tmp_path


def test_a_sound_model_has_exit_code_0() -> None:
    done = weightctl("check", TINY)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{TINY}: no findings ({len(RULES)} rules; verify checks the values)\n"
    assert weightctl("check", TINY, "-q").stdout == ""


def test_findings_have_exit_code_1(folder: Path) -> None:
    done = weightctl("check", "model", cwd=folder, COLUMNS="200")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        "model: 2 findings; --fix corrects 1",
        (
            "warning: model/config.json: `torch_dtype` is float16, and all values are "
            "BF16 [config-dtype]"
        ),
        (
            "error: model/chat_template.jinja: line 1 is not valid Jinja: Expected an expression, "
            "got 'end of statement block' [template-syntax]"
        ),
    ]


def test_a_correction_is_printed_and_what_is_left_has_exit_code_1(folder: Path) -> None:
    planned = weightctl("check", "model", "--fix", "-n", cwd=folder)
    assert planned.returncode == 1
    assert '"float16"' in (folder / "model" / "config.json").read_text()
    done = weightctl("check", "model", "--fix", cwd=folder, COLUMNS="200")
    assert done.returncode == 1
    assert done.stdout.splitlines()[:3] == [
        "model: 1 finding fixed in 1 file; 1 left",
        (
            "fixed: model/config.json: `torch_dtype` is float16, and all values are BF16 "
            "[config-dtype]"
        ),
        '  torch_dtype = "bfloat16"',
    ]
    (folder / "model" / "chat_template.jinja").unlink()
    assert weightctl("check", "model", "-q", cwd=folder).returncode == 0


def test_findings_are_results_of_sarif(folder: Path) -> None:
    done = weightctl("check", "model", "--sarif", "out.sarif", cwd=folder)
    assert done.returncode == 1
    log: Any = json.loads((folder / "out.sarif").read_text())
    schema = json.loads((ROOT / "fixtures" / "sarif-2.1.0.json").read_text())
    Draft4Validator(schema, format_checker=Draft4Validator.FORMAT_CHECKER).validate(log)
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [*RULES]
    assert [(each["ruleId"], each["level"]) for each in run["results"]] == [
        ("config-dtype", "warning"),
        ("template-syntax", "error"),
    ]
    (location,) = run["results"][0]["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "model/config.json"
    assert location["logicalLocations"] == [{"fullyQualifiedName": "torch_dtype"}]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("model -n", "--dry-run can only be used with --fix"),
        ("missing", "No such file or directory"),
        ("model --sarif model/config.json -f", "model/config.json"),
        ("model --sarif -", "--sarif cannot write to stdout"),
    ],
)
def test_mistakes_have_exit_code_2(options: str, reason: str, folder: Path) -> None:
    before = (folder / "model" / "config.json").read_bytes()
    done = weightctl("check", *options.split(), cwd=folder)
    assert done.returncode == 2
    assert reason in done.stderr
    assert (folder / "model" / "config.json").read_bytes() == before

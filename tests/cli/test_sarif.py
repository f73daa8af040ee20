"""`ls --scan --sarif FILE` writes a SARIF 2.1.0 log, and only replaces its own file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft4Validator

from conftest import ROOT
from payloads import call, whole

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Completed

    Run = Callable[..., Completed]

ATTACK = whole(call("os.system", "exit 0"))
UNKNOWN = whole(call("a.B"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "evil.pkl").write_bytes(ATTACK)
    (tmp_path / "odd name.pkl").write_bytes(UNKNOWN)
    (tmp_path / "cut.pkl").write_bytes(UNKNOWN[:-1])
    (tmp_path / "harmless.pkl").write_bytes(whole(call("collections.OrderedDict")))
    return tmp_path


def report(folder: Path) -> Any:
    """Return the log `out.sarif` after it was compared with the schema of SARIF 2.1.0."""
    log = json.loads((folder / "out.sarif").read_text())
    schema = json.loads((ROOT / "fixtures" / "sarif-2.1.0.json").read_text())
    Draft4Validator(schema, format_checker=Draft4Validator.FORMAT_CHECKER).validate(log)
    return log


def test_the_schema_refuses_what_is_not_sarif() -> None:
    schema = json.loads((ROOT / "fixtures" / "sarif-2.1.0.json").read_text())
    Draft4Validator.check_schema(schema)
    assert not Draft4Validator(schema).is_valid({"version": "2.1.0"})
    assert not Draft4Validator(schema).is_valid({"version": "2.1.0", "runs": [{"results": []}]})


def test_each_finding_is_a_result(weightctl: Run, folder: Path) -> None:
    done = weightctl("ls", "--scan", ".", "--sarif", "out.sarif", cwd=folder)
    assert done.returncode == 1, done.stderr
    (run,) = report(folder)["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "weightctl"
    found = [
        (
            each["locations"][0]["physicalLocation"]["artifactLocation"]["uri"],
            each["ruleId"],
            each["level"],
        )
        for each in run["results"]
    ]
    assert found == [
        ("./cut.pkl", "unread-pickle", "error"),
        ("./cut.pkl", "unknown-global", "warning"),
        ("./evil.pkl", "dangerous-global", "error"),
        ("./odd%20name.pkl", "unknown-global", "warning"),
    ]
    for each in run["results"]:
        assert driver["rules"][each["ruleIndex"]]["id"] == each["ruleId"]
    evil = run["results"][2]
    assert evil["message"]["text"] == "a pickle names os.system (byte 2)"
    assert evil["locations"][0]["physicalLocation"]["region"] == {"byteOffset": 2}
    assert run["invocations"][0]["exitCode"] == 1


def test_a_member_of_an_archive_is_a_logical_location(weightctl: Run, tmp_path: Path) -> None:
    attack = ROOT / "fixtures" / "attack.pt"
    weightctl("ls", "--scan", attack, "--sarif", "out.sarif", cwd=tmp_path)
    (result,) = report(tmp_path)["runs"][0]["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == attack.as_uri()
    assert location["logicalLocations"] == [{"fullyQualifiedName": "attack/data.pkl"}]


def test_a_clean_scan_has_no_results(weightctl: Run, folder: Path) -> None:
    done = weightctl("ls", "--scan", "-v", "harmless.pkl", "--sarif", "out.sarif", cwd=folder)
    assert done.returncode == 0
    assert report(folder)["runs"][0]["results"] == []


def test_what_is_allowed_is_not_a_result(weightctl: Run, folder: Path) -> None:
    options = ("--allow", "a.*", "--sarif", "out.sarif")
    done = weightctl("ls", "--scan", "odd name.pkl", *options, cwd=folder)
    assert done.returncode == 0
    assert report(folder)["runs"][0]["results"] == []


def test_a_path_that_cannot_be_read_is_a_notification(weightctl: Run, folder: Path) -> None:
    done = weightctl("ls", "--scan", "evil.pkl", "nope", "--sarif", "out.sarif", cwd=folder)
    assert done.returncode == 2
    (run,) = report(folder)["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    (notification,) = invocation["toolExecutionNotifications"]
    assert "nope" in notification["message"]["text"]
    assert len(run["results"]) == 1


def test_the_findings_are_printed_as_well(weightctl: Run, folder: Path) -> None:
    without = weightctl("ls", "--scan", "evil.pkl", cwd=folder)
    done = weightctl("ls", "--scan", "evil.pkl", "--sarif", "out.sarif", cwd=folder)
    assert done.stdout == without.stdout
    as_json = weightctl("ls", "--scan", "evil.pkl", "--json", "--sarif", "b.sarif", cwd=folder)
    assert json.loads(as_json.stdout)["path"] == "evil.pkl"


def test_a_report_that_exists_is_replaced_with_force_only(weightctl: Run, folder: Path) -> None:
    (folder / "out.sarif").write_text("mine")
    command = ("ls", "--scan", ".", "--sarif", "out.sarif")
    done = weightctl(*command, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "out.sarif exists" in done.stderr
    assert (folder / "out.sarif").read_text() == "mine"
    assert weightctl(*command, "--force", cwd=folder).returncode == 1
    assert report(folder)["version"] == "2.1.0"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("evil.pkl", "--sarif", "evil.pkl"), "evil.pkl is the input itself"),
        ((".", "--sarif", "evil.pkl"), "evil.pkl is the input itself"),
        (("evil.pkl", "--sarif", "."), ". is a directory"),
        (("evil.pkl", "--sarif", "no/out.sarif"), "does not exist"),
        (("evil.pkl", "--sarif", "-"), "--sarif cannot write to stdout"),
        (
            ("evil.pkl", "--sarif", "allow.txt", "--allow-file", "allow.txt"),
            "allow.txt is the allow-list",
        ),
    ],
)
def test_a_report_that_would_do_harm_is_refused(
    weightctl: Run, options: tuple[str, ...], message: str, folder: Path
) -> None:
    (folder / "allow.txt").write_text("a.B\n")
    done = weightctl("ls", "--scan", "--force", *options, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert (folder / "evil.pkl").read_bytes() == ATTACK
